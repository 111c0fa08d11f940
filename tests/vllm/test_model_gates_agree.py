"""The gates of lengths, backends and idle code agree with the installed engine's own code, over generated grids."""

from __future__ import annotations

import itertools
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from shardwright.connect.project import open_project
from shardwright.connect.trees import InstalledTree
from shardwright.facts.attention_backends import DENSE_BACKENDS, KV_FORMATS
from shardwright.facts.engine_tables import bundled_table
from shardwright.facts.kernels import QUANTISATION
from shardwright.facts.positions import longest_request, positions_of, unasked_length
from shardwright.facts.served_code import IDLE_CODE, idle_code
from shardwright.facts.versions import version_in
from shardwright.overlay.reach import Reacher

pytestmark = pytest.mark.vllm

CARDS = ("7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1")
ROPES: tuple[dict[str, Any] | None, ...] = (
    None,
    *({"rope_type": kind, "factor": 4.0} for kind in ("linear", "dynamic", "su", "longrope", "llama3", "yarn")),
    {"rope_type": "default"},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1000},
    {"full_attention": {"rope_type": "linear", "factor": 2.0}, "sliding_attention": {"rope_type": "default"}},
)


@pytest.fixture(scope="module")
def version() -> str:
    import vllm

    return ".".join(vllm.__version__.split("+")[0].split(".")[:3])


def test_lengths_are_refused_exactly_when_the_engine_refuses_them(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.config.model import _get_and_verify_max_len
    from vllm.transformers_utils.model_arch_config_convertor import ModelArchConfigConvertorBase

    monkeypatch.delenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", raising=False)
    sizes = ({}, {"seq_length": 800}, {"model_max_length": 6000}, {"sliding_window": 500})
    kinds = ("llama", "gemma3_text")
    for rope, more, kind, off in itertools.product(ROPES, sizes, kinds, (False, True)):
        config = {"max_position_embeddings": 1000, "model_type": kind, **more}
        hf = SimpleNamespace(**config, rope_parameters=rope)
        key = ModelArchConfigConvertorBase(hf, hf).derive_max_model_len_and_key()
        arch = SimpleNamespace(derived_max_model_len_and_key=key)
        ours = positions_of({**config, "rope_parameters": rope})
        assert ours is not None
        longest = longest_request(ours, version, sliding_off=off)[0]
        for length in (longest, longest + 1):
            try:
                _get_and_verify_max_len(hf, arch, None, length, off, more.get("sliding_window"))  # type: ignore[arg-type]
                taken = True
            except ValueError:
                taken = False
            assert taken == (length == longest), (config, rope, off, length)


def test_the_length_that_nobody_asked_for_is_the_one_that_the_engine_takes(version: str) -> None:
    from vllm.config.model import _get_and_verify_max_len
    from vllm.transformers_utils.model_arch_config_convertor import ModelArchConfigConvertorBase

    sizes = ({}, {"original_max_position_embeddings": 250}, {"sliding_window": 500})
    for rope, more, off in itertools.product(ROPES, sizes, (False, True)):
        config = {"max_position_embeddings": 1000, "model_type": "llama", **more}
        hf = SimpleNamespace(**config, rope_parameters=rope)
        key = ModelArchConfigConvertorBase(hf, hf).derive_max_model_len_and_key()
        arch = SimpleNamespace(derived_max_model_len_and_key=key)
        theirs = _get_and_verify_max_len(hf, arch, None, None, off, more.get("sliding_window"))  # type: ignore[arg-type]
        ours = positions_of({**config, "rope_parameters": rope})
        assert ours is not None
        assert unasked_length(ours, version, sliding_off=off) == theirs, (config, rope, off)


def test_parsers_are_those_of_the_engine(version: str) -> None:
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    table = bundled_table(open_project({}), version)
    assert table is not None
    assert list(table.tool_parsers) == sorted(ToolParserManager.list_registered())
    assert list(table.reasoning_parsers) == sorted(ReasoningParserManager.list_registered())


def test_dense_backends_are_those_of_the_engine(version: str) -> None:
    from vllm.platforms.interface import DeviceCapability
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    seen = 0
    for name in sorted({row.name for row in DENSE_BACKENDS}):
        rows = [row for row in DENSE_BACKENDS if row.name == name and version_in(version, row.versions)]
        try:
            backend = AttentionBackendEnum[name].get_class()
        except (ImportError, AssertionError):
            # Its kernels are not in this build.
            continue
        seen += 1
        assert {row.kind for row in rows} == {"mla" if backend.is_mla() else "gqa"}, name
        formats = {dtype for row in rows for dtype in row.dtypes}
        assert formats == {dtype for dtype in backend.supported_kv_cache_dtypes if dtype in KV_FORMATS}, name
        for card in CARDS:
            major, minor = map(int, card.split("."))
            theirs = backend.supports_compute_capability(DeviceCapability(major, minor))
            # FlashMLA's own capability test leaves out what its kernels refuse: they are for 9.x only.
            if name != "FLASHMLA" or major != 10:
                assert any(row.cards.hold(card) for row in rows) == theirs, (name, card)
        block = min(row.block for row in rows)
        try:
            sizes = [size for size in (8, 16, 32, 64, 128) if backend.supports_block_size(size)]
        except (AssertionError, RuntimeError):
            # It asks a card.
            continue
        assert sizes == [size for size in (8, 16, 32, 64, 128) if size % block == 0], name
    assert seen > 2


def test_quantisation_starts_on_the_engines_least_card() -> None:
    from vllm.model_executor.layers.quantization import get_quantization_config

    seen = 0
    for method, cards in QUANTISATION.items():
        try:
            least = get_quantization_config(method).get_min_capability()
        except (ImportError, ValueError):
            continue
        seen += 1
        # The two whose config class takes more cards, or fewer, than their usual schemes.
        if method not in ("compressed-tensors", "modelopt"):
            assert cards.first == f"{least // 10}.{least % 10}", method
    assert seen > 4


def test_idle_code_is_what_the_engines_registry_does_not_lead_to(version: str) -> None:
    reacher = Reacher(InstalledTree(sys.executable))
    for row, platform in itertools.product(IDLE_CODE, ("cuda", "rocm", "cpu")):
        for architecture in row.architectures:
            closure = reacher.closure(architecture, platform)
            assert closure is not None
            for name in row.classes:
                idle = idle_code(architecture, platform, version, row.module, name) is not None
                assert idle == (f"{row.module}:{name}" not in closure.symbols), (architecture, platform, name)
            if not row.classes:
                idle = idle_code(architecture, platform, version, row.module, None) is not None
                runs = any(module == row.module or module.startswith(f"{row.module}.") for module in closure.modules)
                assert idle == (not runs), (architecture, platform, row.module)
