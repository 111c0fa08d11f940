"""Layouts that nobody would write: never a traceback, always the file and the reason."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.campaign.request import prepare
from shardwright.connect.project import Project
from tests.unit.fuzz.fuzz_driver import call, hold, profile, tokens
from tests.unit.helpers import BASE, ROOT, SHIPPED

PLACES = ("configs/", "demo.yaml", "--set ", "env ")
FORMS = st.sampled_from([(), ("--json",), ("--explain",)])

MERGED: dict[str, Any] = {
    name: dict(prepare(name, {}, project=Project(ROOT, (ROOT,))).layout.document.data) for name in SHIPPED
}
for _data in MERGED.values():
    _data.pop("extends", None)
    _data["name"] = "demo"

SCRAPS = st.sampled_from(
    [
        *"[]{}:,-?&*!|>'\"%@`#~ \n\t\x00\x85\u2028\ufeff🙂",
        *[": ", "- ", "\n  ", "\n- ", "&a ", "<<: ", "!!str ", "---\n", "...\n", "9" * 400],
        *tokens("*a \\x00 schema name model engine serve env secrets extends parallel container shardwright/v1"),
        *tokens("1 0.10 -1 null true no 1e999"),
    ]
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=10**300, max_value=10**301),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["", " ", "a" * 5000, "9" * 5000, "\x00", *tokens("- --x / .. ~ 1,2, 127.0.0.1:0:0 0.30.0 ² é")]),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=6,
)


def paths(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place of nested data but the root."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [place for key, value in items for place in ((*path, key), *paths(value, (*path, key)))]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "configs" / "layouts").mkdir(parents=True)
    return folder


def judge(root: Path, text: bytes, *words: str) -> None:
    (root / "configs" / "layouts" / "demo.yaml").write_bytes(text)
    hold(call(root, "cmd", "demo", *words), *PLACES)


@profile(250)
@given(scraps=st.lists(SCRAPS, max_size=40), rest=st.booleans())
def test_no_scrap_of_yaml_ends_in_a_traceback(root: Path, scraps: list[str], rest: bool):
    judge(root, ((BASE if rest else "") + "".join(scraps)).encode())


@profile(250)
@given(
    name=st.sampled_from(SHIPPED),
    cut=st.tuples(st.floats(0, 1), st.integers(0, 60)),
    insert=st.one_of(st.binary(max_size=6), SCRAPS.map(str.encode)),
)
def test_no_damaged_file_ends_in_a_traceback(root: Path, name: str, cut: tuple[float, int], insert: bytes):
    text = (ROOT / "configs/layouts" / f"{name}.yaml").read_bytes()
    start = int(cut[0] * len(text))
    judge(root, text[:start] + insert + text[start + cut[1] :])


@profile(200)
@given(name=st.sampled_from(SHIPPED), data=st.data())
def test_no_line_left_out_doubled_or_moved_ends_in_a_traceback(root: Path, name: str, data: st.DataObject):
    lines = (ROOT / "configs/layouts" / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        to = data.draw(st.integers(0, len(lines) - 1))
        lines[at : at + 1] = data.draw(st.sampled_from([[], [lines[at]] * 2, [lines[to]], ["  " + lines[at]]]))
        if not lines:
            break
    judge(root, "\n".join(lines).encode())


@profile(500)
@given(name=st.sampled_from(SHIPPED), form=FORMS, data=st.data())
def test_no_value_of_another_type_ends_in_a_traceback(
    root: Path, name: str, form: tuple[str, ...], data: st.DataObject
):
    layout = copy.deepcopy(MERGED[name])
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.sampled_from(paths(layout)))
        inner = layout
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = data.draw(VALUES)
    judge(root, json.dumps(layout, ensure_ascii=False).encode(errors="replace"), *form)


SECTIONS = tokens("serve env secrets patches allow nodes container capacity probes wait")


@profile(100)
@given(
    extra=st.dictionaries(
        st.sampled_from(SECTIONS),
        VALUES,
        min_size=1,
        max_size=3,
    )
)
def test_no_added_section_ends_in_a_traceback(root: Path, extra: dict[str, Any]):
    layout = {**MERGED["glm53-tp8pp1"], **extra}
    judge(root, json.dumps(layout, ensure_ascii=False).encode(errors="replace"))


# Flags and variables whose values a gate or the planner reads as numbers, lists or JSON.
READ_FLAGS = tokens(
    "block-size data-parallel-size data-parallel-size-local decode-context-parallel-size prefill-context-parallel-size "
    "nnodes node-rank master-port gpu-memory-utilization kv-cache-memory-bytes num-gpu-blocks-override max-num-seqs "
    "max-num-batched-tokens max-model-len kv-cache-dtype dtype device-ids hf-overrides compilation-config "
    "speculative-config kv-transfer-config attention-backend all2all-backend swap-space cpu-offload-gb tokenizer "
    "num-redundant-experts eplb-config enable-expert-parallel quantization load-format"
)
READ_VARIABLES = tokens(
    "VLLM_CPU_KVCACHE_SPACE VLLM_ENGINE_READY_TIMEOUT_S VLLM_USE_V2_MODEL_RUNNER VLLM_PP_LAYER_PARTITION "
    "CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES NCCL_ALGO NCCL_PROTO NCCL_SOCKET_IFNAME NCCL_MAX_NCHANNELS PYTHONPATH "
    "PYTORCH_CUDA_ALLOC_CONF VLLM_CACHE_ROOT VLLM_ATTENTION_BACKEND"
)


@profile(250)
@given(
    name=st.sampled_from(SHIPPED),
    serve=st.dictionaries(st.sampled_from(READ_FLAGS), VALUES, max_size=2),
    env=st.dictionaries(st.sampled_from(READ_VARIABLES), LEAVES, max_size=2),
    gpus=st.one_of(st.just("all"), LEAVES),
)
def test_no_flag_or_variable_that_a_gate_reads_ends_in_a_traceback(
    root: Path, name: str, serve: dict[str, Any], env: dict[str, Any], gpus: Any
):
    layout = copy.deepcopy(MERGED[name])
    layout["serve"] = {**(layout.get("serve") or {}), **serve}
    layout["env"] = {**(layout.get("env") or {}), **env}
    layout["container"] = {**(layout.get("container") or {}), "gpus": gpus}
    judge(root, json.dumps(layout, ensure_ascii=False).encode(errors="replace"))


@pytest.mark.parametrize("number", ["²", "9" * 5000, "99999999999", "0", "-1", "1e400", "nan", ""])
@pytest.mark.parametrize("name", ["glm53-tp4pp2", "tiny-cpu-pp2"])
def test_no_number_of_another_script_or_size_ends_in_a_traceback(root: Path, name: str, number: str):
    for flag in READ_FLAGS:
        layout = {**MERGED[name], "serve": {**MERGED[name]["serve"], flag: number}}
        judge(root, json.dumps(layout, ensure_ascii=False).encode())
    for variable in READ_VARIABLES:
        layout = {**MERGED[name], "env": {**MERGED[name]["env"], variable: number}}
        judge(root, json.dumps(layout, ensure_ascii=False).encode())
    layout = {**MERGED[name], "container": {**MERGED[name]["container"], "gpus": number}}
    judge(root, json.dumps(layout, ensure_ascii=False).encode())


@pytest.mark.parametrize(
    "text",
    [
        "x-a: " + "[" * 60 + "]" * 60,
        "x-a: " + "[" * 100_000,
        "x-a: " + "{a: " * 100_000,
        "- " * 100_000,
        "x-a: " + "9" * 100_000,
        "x-a: " + "a" * 1_000_000,
        "? " * 10_000,
        "&a " * 1000,
        "\n".join(f"x-{index}: 1" for index in range(30_000)),
        "x-a: &a {b: *a}",
        "\ufeffx-a: 1",
        "\x00",
        "%YAML 9.9\n---\na: 1",
        "%TAG ! tag:x,2000:\n---\na: !b 1",
    ],
)
def test_nothing_is_too_deep_too_long_or_too_much(root: Path, text: str):
    judge(root, (BASE + text).encode())
