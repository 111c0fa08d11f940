"""Overrides that nobody would give: never a traceback, always the variable or the key."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.fuzz.fuzz_driver import call, hold, profile, tokens
from tests.unit.helpers import BASE, OVERRIDES, SHIPPED, write_layout

VARIABLES = [name for name in OVERRIDES if name not in ("DEPLOY_PROJECT", "DEPLOY_LAYOUT")]
# What a process can be given: bytes without NUL, those that are no UTF-8 as lone surrogates.
TEXTS = st.one_of(
    st.binary(max_size=12).map(lambda data: data.replace(b"\0", b"").decode("utf-8", "surrogateescape")),
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(["", " ", "{", "[", "[1, 2]", "{a: 1}", "9" * 5000, "a" * 5000, "1," * 500, "[" * 5000]),
    st.sampled_from(tokens("1 0 true null ~ -1 1e9 \u0663 \uff14 0.0.0.0 a:b@sha256:1 -x /dev/null .. sha256:x")),
    st.sampled_from(tokens("41,37 39,39 20,20,20,18 41,37, +1,77 78 0,78 mtp none ngram auto local docker")),
    st.sampled_from(
        [
            '{"num_hidden_layers": 1000000000}',
            '{"num_hidden_layers": null}',
            '{"architectures": [{}]}',
            '{"index_topk_freq": 0}',
            '{"index_topk_freq": 1}',
            '{"index_topk": 1e999}',
            '{"text_config": 7}',
            '{"hidden_size": %s}' % ("9" * 400),
            '{"a": NaN}',
        ]
    ),
)
KEYS = st.one_of(
    st.text(max_size=10),
    st.lists(
        st.sampled_from(["", *tokens("parallel tensor layer_partition serve env A model path engine 0 x-a")]),
        min_size=1,
        max_size=4,
    ).map(".".join),
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    write_layout(folder, BASE)
    return folder


@profile(300)
@given(name=st.sampled_from([*SHIPPED, "demo"]), environ=st.dictionaries(st.sampled_from(VARIABLES), TEXTS, max_size=4))
def test_no_variable_ends_in_a_traceback(root: Path, name: str, environ: dict[str, str]):
    hold(call(root, "cmd", name, environ=environ), *environ, "configs/layouts/")


@profile(200)
@given(
    text=st.one_of(
        st.lists(st.integers(-2, 90), min_size=1, max_size=5).map(lambda counts: ",".join(map(str, counts))),
        st.text(st.sampled_from("0123456789,, +-_.\t\u0664\uff11"), max_size=10),
    ),
    stages=st.integers(1, 5),
)
def test_no_partition_ends_in_a_traceback(root: Path, text: str, stages: int):
    environ = {"PP_LAYER_PARTITION": text, "PP_SIZE": str(stages)}
    result = call(root, "cmd", "glm53-tp4pp2", environ=environ)
    hold(result, *environ)
    assert result.code in (0, 1)


@profile(250)
@given(name=st.sampled_from([*SHIPPED, "demo"]), key=KEYS, value=TEXTS)
def test_no_set_ends_in_a_traceback(root: Path, name: str, key: str, value: str):
    hold(call(root, "cmd", name, "--set", f"{key}={value}"), "--set")


WORDS = st.one_of(st.text(max_size=8), st.sampled_from(tokens("cmd check --json --set -h demo -- -")))


@profile(100)
@given(words=st.lists(WORDS, max_size=4))
def test_no_command_line_ends_in_a_traceback(root: Path, words: list[str]):
    harmful = {"start", "stop", "wait", "logs", "smoke", "degen", "patch", "doctor", "vtp", "plan"}
    result = call(root, *(word for word in words if word not in harmful))
    assert result.code in (0, 1, 64)
    assert "Traceback (most recent" not in result.out + result.err
