"""The gates agree with the engine's own code where that raises without a GPU: command line, TP, DCP, PCP, runner."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from shardwright.campaign.request import prepare
from shardwright.connect.project import open_project
from shardwright.errors import UsageError
from shardwright.facts.engine_cache import tree_table
from shardwright.facts.engine_tables import bundled_table, release
from shardwright.facts.shape import ModelShape, Quantisation
from shardwright.gates.runner import v2_lacks
from shardwright.plan.divisibility import obstacles
from shardwright.render.command import render

pytestmark = pytest.mark.vllm

KINDS = {
    "int": {"int"},
    "float": {"float"},
    "human_readable_int": {"size"},
    "human_readable_int_or_auto": {"size_or_auto"},
    "loads": {"json"},
    "parse_dataclass": {"config"},
    "_parse_type": {"json"},
    "union_dict_and_str": {"json_or_text"},
}
# Choices that depend on the platform, or that are every order of the given ones, are not in the sources as a list.
WITHOUT_CHOICES = {"--mm-processor-device", "--collect-detailed-traces"}


@pytest.fixture(scope="module")
def version() -> str:
    import vllm

    found = release(vllm.__version__)
    if found is None or bundled_table(open_project({}), found) is None:
        pytest.fail(f"there is no bundled table for the installed vLLM {vllm.__version__}")
    return found


@pytest.fixture(scope="module")
def parser() -> Any:
    import sys

    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    words = sys.argv
    sys.argv = ["vllm", "serve"]
    try:
        return make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
    finally:
        sys.argv = words


def test_the_bundled_table_is_what_the_engine_parses_with(version: str, parser: Any) -> None:
    table = bundled_table(open_project({}), version)
    assert table is not None
    ours = {flag.name: flag for flag in table.flags}
    actions = {
        next(option for option in action.option_strings if option.startswith("--")): action
        for action in parser._actions
        if action.option_strings and action.dest != "help"
    }
    assert set(ours) == set(actions)
    for name, action in actions.items():
        flag = ours[name]
        spellings = {name, *flag.aliases}
        if flag.kind == "bool":
            spellings |= {text.replace("--", "--no-", 1) for text in spellings if text.startswith("--")}
        assert spellings == set(action.option_strings), name
        assert action.nargs == {"switch": 0, "bool": 0, "list": "+", "optional": "?"}.get(flag.kind), name
        kind = getattr(action.type, "__name__", "")
        assert flag.kind in KINDS.get(kind, {flag.kind}) | {"list"}, name
        if name not in WITHOUT_CHOICES:
            choices = {str(choice) for choice in action.choices or ()} - {"None"}
            assert set(flag.choices) == choices, name


def test_the_bundled_variables_are_those_that_the_engine_reads(version: str) -> None:
    from vllm import envs

    table = bundled_table(open_project({}), version)
    assert table is not None
    assert set(table.envs) == set(envs.environment_variables)


def test_a_table_read_from_the_installed_engine_equals_the_bundled_one(version: str, tmp_path: Path) -> None:
    import sys

    from shardwright.connect.trees import InstalledTree

    bundled = bundled_table(open_project({}), version)
    read = tree_table(InstalledTree(sys.executable), tmp_path)
    assert bundled is not None
    assert (read.flags, read.envs, read.attention_backends) == (
        bundled.flags,
        bundled.envs,
        bundled.attention_backends,
    )


VALUES: list[Any] = [True, False, 1, 0.5, "8k", "auto", "nonsense", [1, 2], {"a": 1}, "{"]
FLAGS = [
    *("max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "enforce_eager", "headless"),
    *("dtype", "kv_cache_dtype", "block_size", "enable_prefix_caching", "moe_backend", "all2all_backend", "seed"),
    *("hf_overrides", "override_generation_config", "kv_transfer_config", "served_model_name", "chat_template"),
    *(
        "disable_log_requests",
        "swap_space",
        "max_modle_len",
        "max_model",
        "max",
        "cudagraph_capture_sizes",
        "middleware",
    ),
    *("allowed_origins", "distributed_executor_backend", "attention_backend", "tool_call_parser", "disable_log_stats"),
]
# Values that only a later step of the engine refuses, or that need the platform, say nothing about the parser.
OBJECTS = {"kv_transfer_config"}
LATER = {"attention_backend", "distributed_executor_backend"}


@pytest.mark.parametrize("flag", FLAGS)
def test_a_command_line_is_refused_exactly_when_the_engines_parser_refuses_it(
    flag: str, version: str, parser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("DEPLOY_PROJECT", str(tmp_path))
    wrong = []
    for value in VALUES:
        layout = {
            "schema": "shardwright/v1",
            "name": "case",
            "runtime": "local",
            "model": {"path": "org/name"},
            "engine": {"vllm": version, "platform": "cpu"},
            "serve": {flag: value},
        }
        file = tmp_path / "case.yaml"
        file.write_text(yaml.safe_dump(layout))
        try:
            request = prepare(str(file), dict(os.environ))
        except UsageError:
            # Refused before it is judged; the engine merges overrides into the config and needs an object too.
            continue
        argv = list(render(request.deployment).argv)
        words = argv[argv.index("serve") + 1 :]
        ours = any(f.gate == "engine-flags" and f.verdict == "reject" for f in request.assessment.findings)
        try:
            parser.parse_args(words)
            theirs = False
        except (SystemExit, ValueError):
            theirs = True
        # Which fields a JSON object may have is not in the table.
        unjudged = flag in OBJECTS and isinstance(value, dict)
        if ours != theirs and not (flag in LATER and ours) and not unjudged:
            wrong.append((words, "we refuse" if ours else "the engine refuses"))
    capsys.readouterr()
    assert wrong == []


@pytest.mark.parametrize(("change", "status"), [("serve.seed=1", 0), ("serve.compilation_config={nonsense: 1}", 1)])
def test_the_engine_itself_is_asked_for_its_verdict_on_the_command_line(
    change: str, status: int, project_root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    from shardwright.cli.main import run

    monkeypatch.chdir(project_root)
    monkeypatch.setenv("DEPLOY_PYTHON", sys.executable)
    assert run(["check", "tiny-cpu", "--in-image", "--set", change]) == status
    said = "refuses: argument --compilation-config" if status else "own parser takes the command line"
    assert said in capsys.readouterr().out


def _raises(call: Any) -> bool:
    try:
        call()
    except (ValueError, AssertionError, NotImplementedError):
        return True
    return False


HEADS = (1, 12, 25, 32, 40, 48, 52, 64, 96)
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 16)


def test_heads_are_refused_exactly_when_the_engine_refuses_them() -> None:
    from vllm.config import ModelConfig, ParallelConfig

    for heads, tensor in itertools.product(HEADS, SIZES):
        model = SimpleNamespace(
            model_arch_config=SimpleNamespace(total_num_attention_heads=heads), multimodal_config=None, use_mla=True
        )
        parallel = ParallelConfig(tensor_parallel_size=tensor)
        theirs = _raises(lambda m=model, p=parallel: ModelConfig.verify_with_parallel_config(m, p))
        ours = bool(obstacles(ModelShape("", heads=heads), tensor, expert_parallel=False))
        assert ours == theirs, (heads, tensor)


def test_vocabulary_and_widths_are_refused_exactly_when_the_engine_refuses_them() -> None:
    from vllm.distributed.utils import divide
    from vllm.model_executor.layers.vocab_parallel_embedding import pad_vocab_size

    for number, tensor in itertools.product((32000, 129280, 151936, 154880, 2048, 2112, 18944), SIZES):
        theirs = _raises(lambda n=number, t=tensor: divide(pad_vocab_size(n), t))
        assert bool(obstacles(ModelShape("", vocabulary=number), tensor, expert_parallel=False)) == theirs
        theirs = _raises(lambda n=number, t=tensor: divide(n, t))
        assert bool(obstacles(ModelShape("", intermediate=number), tensor, expert_parallel=False)) == theirs


def test_fp8_blocks_are_refused_exactly_when_the_engine_refuses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm import distributed
    from vllm.model_executor.layers.quantization.utils.fp8_utils import validate_fp8_block_shape_moe

    for width, tensor, block in itertools.product((768, 1536, 2048, 3072), (2, 4, 8, 16), ([128, 128], [64, 128])):
        monkeypatch.setattr(distributed, "get_tensor_model_parallel_world_size", lambda size=tensor: size)
        theirs = _raises(lambda w=width // tensor, b=block: validate_fp8_block_shape_moe(w, b))
        quant = Quantisation("fp8", block=(block[0], block[1]))
        shape = ModelShape("", experts=128, moe_intermediate=width, all_layers_moe=True, quantisation=quant)
        assert bool(obstacles(shape, tensor, expert_parallel=False)) == theirs, (width, tensor, block)


@pytest.mark.parametrize("kv_heads", [1, 2, 4, 8])
def test_context_parallel_sizes_are_refused_exactly_when_the_engine_refuses_them(
    kv_heads: int, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.config import ModelConfig, ParallelConfig

    monkeypatch.setenv("DEPLOY_PROJECT", str(tmp_path))
    heads = 32
    for tensor, decode, prefill in itertools.product((1, 2, 4, 8), (1, 2, 3, 4, 8), (1, 2)):

        def engine(tensor: int = tensor, decode: int = decode, prefill: int = prefill) -> None:
            parallel = ParallelConfig(
                tensor_parallel_size=tensor,
                decode_context_parallel_size=decode,
                prefill_context_parallel_size=prefill,
            )
            model = SimpleNamespace(
                model_arch_config=SimpleNamespace(total_num_attention_heads=heads),
                multimodal_config=None,
                use_mla=False,
                get_total_num_kv_heads=lambda: kv_heads,
            )
            ModelConfig.verify_with_parallel_config(model, parallel)

        file, facts = tmp_path / "case.yaml", tmp_path / "facts.json"
        serve = {"decode_context_parallel_size": decode, "prefill_context_parallel_size": prefill}
        layout = {
            "schema": "shardwright/v1",
            "name": "case",
            "model": {"path": "org/name"},
            "engine": {"image": "engine:1.0", "vllm": version},
            "parallel": {"tensor": tensor},
            "serve": serve,
        }
        file.write_text(yaml.safe_dump(layout))
        facts.write_text(f'{{"model": {{"num_attention_heads": {heads}, "num_key_value_heads": {kv_heads}}}}}')
        found = prepare(str(file), dict(os.environ), facts_file=facts).assessment.findings
        refused = [f for f in found if f.gate == "context-parallel" and f.verdict == "reject"]
        # The model runner refuses PCP without latent attention later, which the config code does not know.
        ours = [f for f in refused if "latent" not in f.message]
        assert bool(ours) == _raises(engine), (tensor, decode, prefill, refused)


def test_the_methods_that_runner_v2_lacks_are_those_that_the_engine_lists(version: str) -> None:
    from vllm.config import VllmConfig

    methods = ["ngram", "ngram_gpu", "draft_model", "suffix", "medusa", "mlp_speculator", "custom_class", "mtp"]
    for method in [*methods, "eagle", "eagle3", "dflash", "dspark"]:
        config = SimpleNamespace(
            model_config=None,
            speculative_config=SimpleNamespace(method=method, parallel_drafting=False),
            compilation_config=SimpleNamespace(mode=None, pass_config=SimpleNamespace(enable_sp=False)),
            parallel_config=SimpleNamespace(
                tensor_parallel_size=1,
                pipeline_parallel_size=1,
                distributed_executor_backend=None,
                use_ubatching=False,
                enable_elastic_ep=False,
            ),
            cache_config=SimpleNamespace(mamba_cache_mode="none"),
        )
        listed = VllmConfig._get_v2_model_runner_unsupported_features(config)  # type: ignore[arg-type]
        assert v2_lacks(version, method) == bool(listed), method
