"""The index patches against vLLM's own classes and rules, with stages simulated: no model is loaded, no GPU is needed.

The checks run in an interpreter of their own, with the patched files first on its path; this file is their script too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.vllm

PATCHES = Path(__file__).resolve().parents[2] / "patches"
GLM = {"num_hidden_layers": 78, "index_topk": 16, "index_topk_freq": 4, "index_skip_topk_offset": 3}
ORPHANS = {
    (39, 39): [39, 40, 41],
    (40, 38): [40, 41],
    (41, 37): [41],
    (42, 36): [],
    (45, 33): [45],
    (20, 20, 20, 18): [20, 21, 40, 41, 60, 61],
    (18, 20, 20, 20): [],
    (39, 2, 37): [39, 40, 41],
}
TRANSPORT_CHECKS = (
    "rows_cross_every_unsafe_boundary_and_no_other",
    "a_stage_without_a_full_layer_passes_rows_on",
    "a_pattern_decides_as_the_model_does",
    "one_stage_or_a_dense_model_installs_nothing",
    "half_patched_pairs_fail_as_documented",
    "a_model_without_a_buffer_is_refused",
    "micro_batches_are_refused",
    "a_draft_that_skipped_attach_is_left_alone",
    "the_cuda_class_runs_the_patched_forward",
)
RECOMPUTE_CHECKS = ("exactly_the_orphans_compute",)


@pytest.fixture(scope="module")
def farms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    from shardwright.connect.trees import InstalledTree
    from shardwright.overlay.build import build_overlay
    from shardwright.overlay.farm import build_farm
    from shardwright.overlay.patch import read_patch

    tree, folder = InstalledTree(sys.executable), tmp_path_factory.mktemp("overlays")
    made = {}
    for name in ("pp-index-transport", "pp-index-recompute"):
        build_overlay([read_patch(PATCHES / name)], tree.vllm_version, tree, folder / name)
        made[name] = str(build_farm(folder / name, Path(tree.root)))
    return made


def run_checks(farm: str, checks: tuple[str, ...]) -> list[str]:
    answer = subprocess.run(
        [sys.executable, __file__, *checks],
        env={**os.environ, "PYTHONPATH": farm},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return [line.removeprefix("passed ") for line in answer.stdout.splitlines() if line.startswith("passed ")]


def test_transport_carries_rows_exactly_where_a_stage_starts_on_a_shared_layer(farms: dict[str, str]) -> None:
    assert run_checks(farms["pp-index-transport"], TRANSPORT_CHECKS) == list(TRANSPORT_CHECKS)


def test_recompute_turns_exactly_the_orphans_into_computing_layers(farms: dict[str, str]) -> None:
    assert run_checks(farms["pp-index-recompute"], RECOMPUTE_CHECKS) == list(RECOMPUTE_CHECKS)


def group_of(rank: int, size: int) -> SimpleNamespace:
    return SimpleNamespace(rank_in_group=rank, world_size=size, is_first_rank=rank == 0, is_last_rank=rank == size - 1)


def stages_of(split: tuple[int, ...], config: dict[str, Any] = GLM, **parallel: Any) -> list[SimpleNamespace]:
    """One attached causal model for each stage, with the real tensor factory and a buffer of 64 rows."""
    import torch
    from vllm._overlay import pp_index_transport as transport
    from vllm.model_executor.models.utils import make_empty_intermediate_tensors_factory

    stages, start = [], 0
    for rank, layers in enumerate(split):
        stage = SimpleNamespace(
            config=SimpleNamespace(**config),
            model=SimpleNamespace(
                start_layer=start,
                end_layer=start + layers,
                _pp_topk_buffer=torch.full((64, 16), -7, dtype=torch.int32),
            ),
            make_empty_intermediate_tensors=make_empty_intermediate_tensors_factory(["hidden_states", "residual"], 8),
        )
        transport.get_pp_group = lambda rank=rank: group_of(rank, len(split))
        transport.attach(stage, SimpleNamespace(parallel_config=SimpleNamespace(use_ubatching=False, **parallel)))
        stages.append(stage)
        start += layers
    return stages


def hidden(rows: int) -> Any:
    import torch
    from vllm.sequence import IntermediateTensors

    return IntermediateTensors({"hidden_states": torch.zeros(rows, 8), "residual": torch.zeros(rows, 8)})


def hand_over(sender: SimpleNamespace, receiver: SimpleNamespace, rows: int = 5) -> None:
    """What the first runner does between two stages: its own copy into persistent tensors, then the forward."""
    import torch
    from vllm._overlay import pp_index_transport as transport
    from vllm.v1.worker import gpu_model_runner

    gpu_model_runner.is_residual_scattered_for_sp = lambda *_arguments: False
    sent = transport.send(sender, hidden(rows))
    kept = receiver.make_empty_intermediate_tensors(64, torch.float32, torch.device("cpu"))
    runner = SimpleNamespace(
        intermediate_tensors=kept,
        vllm_config=SimpleNamespace(parallel_config=SimpleNamespace(tensor_parallel_size=1)),
    )
    received = gpu_model_runner.GPUModelRunner.sync_and_gather_intermediate_tensors(runner, rows, sent, True)
    transport.receive(receiver, received)


def by_name_copy(sent: Any, kept: Any, rows: int) -> dict[str, Any]:
    """The second runner's rule: it copies what it keeps, by name."""
    return {key: value[:rows].copy_(sent.tensors[key][:rows]) for key, value in kept.tensors.items()}


def unsafe_boundaries(split: tuple[int, ...]) -> list[int]:
    starts = [sum(split[:index]) for index in range(1, len(split))]
    return [start for start in starts if start in ORPHANS[split]]


def rows_cross_every_unsafe_boundary_and_no_other() -> None:
    import torch
    from vllm._overlay import pp_index_transport as transport

    for split in ORPHANS:
        stages = stages_of(split)
        carried = [right.model.start_layer for right in stages if right._topk_receives]
        assert carried == unsafe_boundaries(split), split
        for left, right in pairwise(stages):
            assert left._topk_sends == right._topk_receives
            left.model._pp_topk_buffer[:5] = torch.arange(80, dtype=torch.int32).view(5, 16)
            hand_over(left, right)
            same = torch.equal(left.model._pp_topk_buffer[:5], right.model._pp_topk_buffer[:5])
            assert same == left._topk_sends
            assert (right.model._pp_topk_buffer[5:] == -7).all()
            kept = right.make_empty_intermediate_tensors(64, torch.float32, torch.device("cpu"))
            assert set(by_name_copy(transport.send(left, hidden(5)), kept, 5)) == set(kept.tensors)


def a_stage_without_a_full_layer_passes_rows_on() -> None:
    import torch

    first, middle, last = stages_of((39, 2, 37))
    assert (middle._topk_receives, middle._topk_sends) == (True, True)
    first.model._pp_topk_buffer[:5] = torch.arange(80, dtype=torch.int32).view(5, 16)
    hand_over(first, middle)
    hand_over(middle, last)
    assert torch.equal(first.model._pp_topk_buffer[:5], last.model._pp_topk_buffer[:5])


def a_pattern_decides_as_the_model_does() -> None:
    config = {"num_hidden_layers": 4, "index_topk": 16, "index_topk_pattern": "FSF"}
    assert [stage._topk_receives for stage in stages_of((1, 3), config)] == [False, True]
    assert [stage._topk_receives for stage in stages_of((2, 2), config)] == [False, False]
    assert [stage._topk_receives for stage in stages_of((3, 1), config)] == [False, False]


def one_stage_or_a_dense_model_installs_nothing() -> None:
    from vllm._overlay import pp_index_transport as transport

    dense = {"num_hidden_layers": 78}
    for stages in (stages_of((78,)), stages_of((39, 39), dense)):
        for stage in stages:
            assert not stage._topk_receives and not stage._topk_sends
            assert stage.make_empty_intermediate_tensors.__name__ == "make_empty_intermediate_tensors"
            assert set(transport.send(stage, hidden(5)).tensors) == {"hidden_states", "residual"}
            transport.receive(stage, None)


def half_patched_pairs_fail_as_documented() -> None:
    import torch
    from vllm._overlay import pp_index_transport as transport

    left, right = stages_of((39, 39))
    (plain,) = stages_of((78,))
    device = torch.device("cpu")
    raises(KeyError, lambda: hand_over(left, plain))
    raises(
        KeyError,
        lambda: by_name_copy(hidden(5), right.make_empty_intermediate_tensors(64, torch.float32, device), 5),
    )
    sent = transport.send(left, hidden(5))
    dropped = by_name_copy(sent, plain.make_empty_intermediate_tensors(64, torch.float32, device), 5)
    assert transport.KEY in sent.tensors and transport.KEY not in dropped


def a_model_without_a_buffer_is_refused() -> None:
    from vllm._overlay import pp_index_transport as transport

    (stage,) = stages_of((78,))
    del stage.model._pp_topk_buffer
    stage.model.start_layer = 39
    transport.get_pp_group = lambda: group_of(1, 2)
    config = SimpleNamespace(parallel_config=SimpleNamespace(use_ubatching=False))
    raises(RuntimeError, lambda: transport.attach(stage, config))


def micro_batches_are_refused() -> None:
    from vllm._overlay import pp_index_transport as transport

    stage = stages_of((42, 36))[1]
    config = SimpleNamespace(parallel_config=SimpleNamespace(use_ubatching=True))
    transport.get_pp_group = lambda: group_of(1, 2)
    transport.attach(stage, config)
    stage.model.start_layer = 41
    raises(RuntimeError, lambda: transport.attach(stage, config))


def a_draft_that_skipped_attach_is_left_alone() -> None:
    from vllm._overlay import pp_index_transport as transport

    draft = SimpleNamespace()
    transport.receive(draft, None)
    assert set(transport.send(draft, hidden(5)).tensors) == {"hidden_states", "residual"}


def the_cuda_class_runs_the_patched_forward() -> None:
    import inspect

    from vllm.model_executor.models.deepseek_v2 import DeepseekV2ForCausalLM
    from vllm.models.deepseek_v32.nvidia.model import DeepseekV32ForCausalLM, DeepseekV32Model

    assert DeepseekV32ForCausalLM.forward is DeepseekV2ForCausalLM.forward
    assert "pp_index_transport.send(" in inspect.getsource(DeepseekV32ForCausalLM.forward)
    assert "pp_index_transport.attach(" in inspect.getsource(DeepseekV2ForCausalLM.__init__)
    assert "self.topk_indices_buffer = " in inspect.getsource(DeepseekV32Model.__init__)


def exactly_the_orphans_compute() -> None:
    import inspect

    from vllm._overlay import pp_index_recompute as recompute
    from vllm.model_executor.models.deepseek_v2 import DeepseekV2MLAAttention
    from vllm.models.deepseek_v32.attention import DeepseekV32Attention

    config = SimpleNamespace(**GLM)
    for split, orphans in ORPHANS.items():
        os.environ["VLLM_PP_LAYER_PARTITION"] = ",".join(str(layers) for layers in split)
        found = []
        for rank in range(len(split)):
            recompute.get_pp_group = lambda rank=rank, size=len(split): group_of(rank, size)
            found += [layer for layer in range(78) if recompute.is_orphan(config, layer)]
        assert found == orphans, split
    for attention in (DeepseekV2MLAAttention, DeepseekV32Attention):
        assert "is_orphan(config, layer_id)" in inspect.getsource(attention.__init__)


def raises(kind: type[BaseException], act: Any) -> None:
    try:
        act()
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


if __name__ == "__main__":
    for check in sys.argv[1:]:
        globals()[check]()
        print("passed", check)
