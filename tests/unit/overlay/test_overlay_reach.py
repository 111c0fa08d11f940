"""An edit that applies to code which nobody calls is found before a start, with the code that runs instead."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from overlay_samples import MemoryTree, edit, new_module

from shardwright.overlay.edits import Edit
from shardwright.overlay.patch import Patch
from shardwright.overlay.reach import Reacher
from shardwright.overlay.report import check_patch
from shardwright.overlay.verdicts import EditVerdict, Verdict

MakePatch = Callable[..., Patch]

REGISTRY = b"""\
_MODELS = {
    "Served": ("vllm.models.served", "Served"),
    "Plain": ("generic", "Generic"),
}
"""
SERVED = b"""\
from vllm.platforms import current_platform

if current_platform.is_cuda():
    from .fast import FastModel as Served
else:
    from vllm.model_executor.models.generic import Generic as Served
"""
GENERIC = b"""\
from vllm.model_executor.layers.linear import Linear


class Layer:
    def __init__(self, config):
        _skip_rows = config.pattern == "S"
        self.linear = Linear()


class Body:
    def __init__(self, config):
        self.layers = [Layer(config)]
        self.rows = None


class Generic:
    body_class = Body

    def __init__(self, config):
        self.body = self.body_class(config)
        assert not isinstance(self, Unused)

    def forward(self, x: Unused) -> Unused:
        return helper(x)

    def load(self):
        return 1


class Unused:
    def __init__(self):
        self.x = 1


def helper(x):
    return x
"""
FAST = b"""\
from vllm.model_executor.models.generic import Generic


class FastBody:
    def __init__(self, config):
        skip_rows = config.pattern == "S"
        self.rows = skip_rows


class FastModel(Generic):
    body_class = FastBody

    def load(self):
        return super().load()
"""


@pytest.fixture
def tree() -> MemoryTree:
    return MemoryTree(
        {
            "model_executor/models/registry.py": REGISTRY,
            "models/served/__init__.py": SERVED,
            "models/served/fast.py": FAST,
            "model_executor/models/generic.py": GENERIC,
            "model_executor/layers/linear.py": b"class Linear:\n    def __init__(self):\n        self.w = 1\n",
            "v1/worker.py": b"class Worker:\n    def run(self):\n        self.ready = 1\n",
        }
    )


def at(symbol: str, module: str = "vllm.model_executor.models.generic") -> Edit:
    return Edit("one", module, symbol, "before", "x", 1, "y")


@pytest.mark.parametrize(
    ("symbol", "on_cuda", "on_cpu"),
    [
        ("Generic.__init__", True, True),
        ("Generic.forward", True, True),
        ("Generic.load", True, True),
        ("Body.__init__", False, True),
        ("Layer.__init__", False, True),
        ("Unused.__init__", False, False),
        ("helper", True, True),
        ("", True, True),
    ],
)
def test_reach_is_a_matter_of_symbols_not_of_files(tree: MemoryTree, symbol: str, on_cuda: bool, on_cpu: bool) -> None:
    reacher = Reacher(tree)
    assert reacher.reached(at(symbol), ["Served"], "cuda") is on_cuda
    assert reacher.reached(at(symbol), ["Served"], "cpu") is on_cpu


def test_a_method_that_is_replaced_without_super_does_not_run(tree: MemoryTree) -> None:
    tree.files["models/served/fast.py"] = FAST.replace(b"super().load()", b"2")
    assert Reacher(tree).reached(at("Generic.load"), ["Served"], "cuda") is False


def test_a_branch_for_another_platform_is_not_followed(tree: MemoryTree) -> None:
    tree.files["models/served/__init__.py"] = SERVED + (
        b"if current_platform.is_rocm():\n    from .amd import AmdModel as Served\n"
    )
    tree.files["models/served/amd.py"] = b"class AmdModel:\n    def __init__(self):\n        self.x = 1\n"
    tree.files["models/served/fast.py"] = FAST.replace(
        b"        skip_rows",
        b"        if current_platform.is_cuda():\n            One()\n"
        b"        else:\n            Two()\n        skip_rows",
    ) + (
        b"\n\nclass One:\n    def __init__(self):\n        self.x = 1\n"
        b"\n\nclass Two:\n    def __init__(self):\n        self.x = 1\n"
    )
    reacher = Reacher(tree)
    assert reacher.reached(at("FastModel.load", "vllm.models.served.fast"), ["Served"], "cuda") is True
    assert reacher.reached(at("AmdModel.__init__", "vllm.models.served.amd"), ["Served"], "rocm") is True
    assert reacher.reached(at("AmdModel.__init__", "vllm.models.served.amd"), ["Served"], "cuda") is False
    assert reacher.reached(at("One.__init__", "vllm.models.served.fast"), ["Served"], "cuda") is True
    assert reacher.reached(at("Two.__init__", "vllm.models.served.fast"), ["Served"], "cuda") is False


def test_what_cannot_be_followed_is_unknown_and_never_unreached(tree: MemoryTree) -> None:
    reacher = Reacher(tree)
    assert reacher.reached(at("Worker.run", "vllm.v1.worker"), ["Served"], "cuda") is None
    assert reacher.reached(at("Generic.__init__"), ["NotInTheRegistry"], "cuda") is None
    assert reacher.reached(at("Generic.__init__"), [], "cuda") is None
    assert reacher.reached(at("Linear.__init__", "vllm.model_executor.layers.linear"), ["Served"], "cpu") is True
    assert reacher.reached(at("Linear.__init__", "vllm.model_executor.layers.linear"), ["Served"], "cuda") is None


BACKEND = b"""\
class Backend:
    @staticmethod
    def get_builder_cls():
        if current_platform.is_cpu():
            from vllm.model_executor.models.generic import Builder

            return Builder
"""


def test_a_class_of_the_model_code_that_a_backend_hands_back_runs(tree: MemoryTree) -> None:
    tree.files["model_executor/models/generic.py"] = GENERIC.replace(
        b"        self.linear = Linear()", b"        self.linear = Linear(Backend)"
    ).replace(b"\n\n\nclass Layer", b"\nfrom vllm.v1.backend import Backend\n\n\nclass Layer") + (
        b"\n\nclass Builder:\n    def build(self):\n        self.x = 1\n"
    )
    tree.files["v1/backend.py"] = BACKEND
    reacher = Reacher(tree)
    assert reacher.reached(at("Builder.build"), ["Plain"], "cpu") is True
    assert reacher.reached(at("Builder.build"), ["Plain"], "cuda") is False
    assert reacher.reached(at("Unused.__init__"), ["Plain"], "cpu") is False


def dead_edit(**keys: object) -> dict[str, object]:
    where = {"module": "vllm.model_executor.models.generic", "symbol": "Layer.__init__"}
    return edit(find='_skip_rows = config.pattern == "S"', op="after", **where, **keys)


def only(patch: Patch, tree: MemoryTree, platform: str | None = None) -> EditVerdict:
    (row,) = check_patch(patch, tree, platform)
    return row


def test_an_edit_that_applies_to_dead_code_is_unreached_and_its_sibling_is_named(
    tree: MemoryTree, make_patch: MakePatch
) -> None:
    patch = make_patch(dead_edit(), reach={"models": ["Served"]})
    row = only(patch, tree)
    assert (row.verdict, row.reached) == (Verdict.UNREACHED, False)
    assert "Served is served by vllm.models.served.fast:FastModel (registry.py:2)" in row.message
    assert "models/served/fast.py:6 in FastBody.__init__" in row.message
    assert only(patch, tree, "cpu").verdict is Verdict.OK


def test_an_edit_may_say_on_which_platforms_it_is_needed(tree: MemoryTree, make_patch: MakePatch) -> None:
    row = only(make_patch(dead_edit(required_on=["cpu"]), reach={"models": ["Served"]}), tree)
    assert (row.verdict, row.reached) == (Verdict.OK, False)


def test_an_added_module_is_run_by_the_edits_that_are(tree: MemoryTree, make_patch: MakePatch) -> None:
    patch = make_patch(
        new_module(body="module.pyfrag"),
        edit(module="vllm.model_executor.models.generic", symbol="Generic.load", find="return 1"),
        bodies={"module.pyfrag": "EXTRA = 1\n"},
        reach={"models": ["Served"]},
    )
    assert [(row.verdict, row.reached) for row in check_patch(patch, tree)] == [(Verdict.OK, True)] * 2
