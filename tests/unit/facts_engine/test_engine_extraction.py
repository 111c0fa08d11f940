"""Flags and variables read from an engine's sources: a small tree with every form that the engine uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.errors import DeployError
from shardwright.facts.engine_cache import tree_table
from shardwright.facts.engine_flags import extract_engine_table
from shardwright.facts.engine_tables import Flag, encode_table

FILES = {
    "_version.py": "__version__ = '0.99.0'\n",
    "config/__init__.py": "from vllm.config.cache import CacheConfig\nfrom .model import ModelConfig\n",
    "config/cache.py": """
from typing import Literal
from vllm.config.utils import config
CacheDType = Literal["auto", "fp8"]
@config
class CacheConfig:
    cache_dtype: CacheDType = "auto"
    block_size: int | None = None
    gpu_memory_utilization: float = Field(default=0.92, gt=0)
    kv_cache_memory_bytes: int | None = None
    enable_prefix_caching: bool = True
    either: bool | str | None = None
""",
    "config/model.py": """
from typing import TYPE_CHECKING, Any, Literal
from vllm.config.utils import config
if TYPE_CHECKING:
    from vllm.layers import Method
else:
    Method = Any
@config
class Nested:
    x: int = 1
class Base:
    seed: int = 0
@config
class ModelConfig(Base):
    max_model_len: int = None
    nested: Nested = field(default_factory=Nested)
    overrides: dict[str, Any] = field(default_factory=dict)
    either: Literal["a", "b"] | str = "a"
    quantization: Method | str | None = None
    names: str | list[str] | None = None
    sizes: list[int] | None = None
    levels: list[Literal["x", "y"]] | None = None
    moe_backend: Literal["flashinfer_cutlass", "triton"] = "triton"
""",
    "config/utils.py": "def config(cls): return cls\n",
    "engine/arg_utils.py": """
from vllm.config import CacheConfig, ModelConfig
class EngineArgs:
    @staticmethod
    def add_cli_args(parser):
        model_kwargs = get_kwargs(ModelConfig)
        cache_kwargs = get_kwargs(CacheConfig)
        group = parser.add_argument_group()
        for name in ("seed",):
            pass
        group.add_argument("--seed", **model_kwargs["seed"])
        group.add_argument("--max-model-len", "-mml", **model_kwargs["max_model_len"])
        group.add_argument("--nested", **model_kwargs["nested"])
        group.add_argument("--overrides", **model_kwargs["overrides"])
        group.add_argument("--either", **model_kwargs["either"])
        group.add_argument("--quantization", "-q", **model_kwargs["quantization"])
        group.add_argument("--names", **model_kwargs["names"])
        group.add_argument("--sizes", **model_kwargs["sizes"])
        group.add_argument("--levels", **model_kwargs["levels"])
        moe_kwargs = model_kwargs["moe_backend"]
        moe_kwargs["type"] = lambda s: s.lower().replace("-", "_")
        group.add_argument("--moe-backend", **moe_kwargs)
        group.add_argument("--kv-cache-dtype", **cache_kwargs["cache_dtype"])
        group.add_argument("--block-size", **cache_kwargs["block_size"])
        group.add_argument("--gpu-memory-utilization", **cache_kwargs["gpu_memory_utilization"])
        group.add_argument("--kv-cache-memory-bytes", **cache_kwargs["kv_cache_memory_bytes"])
        group.add_argument("--enable-prefix-caching", **{**cache_kwargs["enable_prefix_caching"], "default": None})
        group.add_argument("--optional", **cache_kwargs["either"])
        group.add_argument("--plain", type=int, default=3, help="It is deprecated.")
        group.add_argument("--choice", choices=["one", "two"], default=None)
        group.add_argument("--switch", action="store_true")
        return parser
""",
    "entrypoints/common/cli_args.py": """
class BaseFrontendArgs:
    lora_modules: list[str] | None = None
    dropped: int = 1
    @classmethod
    def _customize_cli_kwargs(cls, frontend_kwargs):
        frontend_kwargs["lora_modules"]["type"] = optional_type(str)
        frontend_kwargs["lora_modules"]["action"] = LoRAParserAction
        del frontend_kwargs["dropped"]
        return frontend_kwargs
class FrontendArgs(BaseFrontendArgs):
    port: int = 8000
    middleware: list[str] = field(default_factory=list)
    allowed_origins: list[str] = field(default_factory=list)
    @classmethod
    def _customize_cli_kwargs(cls, frontend_kwargs):
        frontend_kwargs["allowed_origins"]["type"] = json.loads
        del frontend_kwargs["allowed_origins"]["nargs"]
        frontend_kwargs["middleware"]["action"] = "append"
        return frontend_kwargs
def make_arg_parser(parser):
    parser.add_argument("model_tag", type=str, nargs="?")
    parser.add_argument("--api-server-count", "-asc", type=int, default=None)
    return parser
""",
    "envs.py": "environment_variables = {\n  'VLLM_ONE': lambda: 1,\n  'VLLM_TWO': lambda: 2,\n}\n",
    "v1/attention/backends/registry.py": """
class AttentionBackendEnum(Enum):
    FLASH_ATTN = 'x'
    TRITON_MLA = 'y'
""",
}


class Tree:
    """Files in memory, as a source tree."""

    identity = "memory"
    root = "vllm"
    vllm_version = "0.99.0"

    def __init__(self, files: dict[str, str]) -> None:
        self.files = files
        self.reads = 0

    def read(self, relative: str) -> bytes:
        self.reads += 1
        if relative not in self.files:
            raise FileNotFoundError(relative)
        return self.files[relative].encode()

    def exists(self, relative: str) -> bool:
        return relative in self.files


@pytest.fixture(scope="module")
def flags() -> dict[str, Flag]:
    return {flag.name: flag for flag in extract_engine_table(Tree(FILES), "0.99.0", "memory").flags}


@pytest.mark.parametrize(
    ("name", "kind", "choices", "optional"),
    [
        ("--seed", "int", (), False),
        ("--max-model-len", "size_or_auto", (), False),
        ("--nested", "config", (), False),
        ("--overrides", "json", (), False),
        ("--either", "text", (), False),
        ("--quantization", "text", (), True),
        ("--names", "list", (), True),
        ("--levels", "list", ("x", "y"), True),
        ("--moe-backend", "text", ("flashinfer_cutlass", "triton"), False),
        ("--kv-cache-dtype", "text", ("auto", "fp8"), False),
        ("--block-size", "int", (), True),
        ("--gpu-memory-utilization", "float", (), False),
        ("--kv-cache-memory-bytes", "size", (), True),
        ("--enable-prefix-caching", "bool", (), False),
        ("--optional", "optional", (), False),
        ("--plain", "int", (), False),
        ("--choice", "text", ("one", "two"), False),
        ("--switch", "switch", (), False),
        ("--lora-modules", "list", (), True),
        ("--middleware", "append", (), False),
        ("--allowed-origins", "json", (), False),
        ("--port", "int", (), False),
        ("--api-server-count", "int", (), False),
    ],
)
def test_a_flag_keeps_the_form_that_the_engine_gives_it(
    name: str, kind: str, choices: tuple[str, ...], optional: bool, flags: dict[str, Flag]
) -> None:
    flag = flags[name]
    assert (flag.kind, flag.choices, flag.optional) == (kind, choices, optional)


def test_a_list_of_numbers_is_told_from_a_list_of_texts(flags: dict[str, Flag]) -> None:
    assert flags["--sizes"].item == "int"
    assert flags["--names"].item == ""


def test_aliases_defaults_and_deprecation_are_kept(flags: dict[str, Flag]) -> None:
    assert flags["--max-model-len"].aliases == ("-mml",)
    assert flags["--gpu-memory-utilization"].default == "0.92"
    assert flags["--enable-prefix-caching"].default == "null"
    assert flags["--plain"].deprecated and not flags["--seed"].deprecated
    assert flags["--moe-backend"].folds and not flags["--choice"].folds


def test_no_flag_is_made_of_what_the_engine_drops(flags: dict[str, Flag]) -> None:
    assert "--dropped" not in flags
    assert not any("model-tag" in name for name in flags)


def test_variables_and_backends_are_read() -> None:
    table = extract_engine_table(Tree(FILES), "0.99.0", "memory")
    assert table.envs == ("VLLM_ONE", "VLLM_TWO")
    assert table.attention_backends == ("FLASH_ATTN", "TRITON_MLA")


def test_a_tree_without_flag_definitions_is_refused_and_not_read_as_empty() -> None:
    with pytest.raises(DeployError, match="does not hold the flag definitions"):
        extract_engine_table(Tree({"_version.py": "", "envs.py": ""}), "0.99.0", "memory")


def test_a_changed_engine_is_not_served_from_the_cache(tmp_path: Path) -> None:
    tree = Tree(dict(FILES))
    first = tree_table(tree, tmp_path)
    before = tree.reads
    assert tree_table(tree, tmp_path) == first
    assert tree.reads - before == 3
    tree.files["envs.py"] = "environment_variables = {'VLLM_THREE': lambda: 3}\n"
    assert tree_table(tree, tmp_path).envs == ("VLLM_THREE",)


def test_a_broken_cache_file_is_made_anew(tmp_path: Path) -> None:
    table = tree_table(Tree(FILES), tmp_path)
    (file,) = tmp_path.glob("engine-*.json")
    file.write_text(encode_table(table)[:100])
    assert tree_table(Tree(FILES), tmp_path) == table
