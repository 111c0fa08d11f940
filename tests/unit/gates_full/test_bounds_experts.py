"""Borders of experts: over how many ranks they are cut, who pads them, and what load balancing needs."""

from __future__ import annotations

import pytest
from deployed import deployed, fixes, said

from shardwright.facts.facts import Facts
from shardwright.facts.shape import ModelShape, Quantisation
from shardwright.gates.parallelism import check_expert_parallel, check_tensor_parallel
from shardwright.plan.divisibility import largest_tensor, obstacles

BLOCKS = Quantisation("fp8", block=(128, 128))
MOE = ModelShape("c", "Moe", experts=64, moe_intermediate=1536, all_layers_moe=True, quantisation=BLOCKS)
EP = "--enable-expert-parallel"


@pytest.mark.parametrize(
    ("flags", "tensor", "found"),
    [
        ((), 4, None),
        (("--data-parallel-size 2",), 4, "TP=4 x 2 (DP x PCP) does not fit Moe: routed expert width 1536 / 8 = 192"),
        (("--data-parallel-size 2",), 2, None),
        (("--data-parallel-size 2", EP), 4, None),
        (("--data-parallel-size 1",), 8, "TP=8 does not fit Moe: routed expert width 1536 / 8 = 192"),
        (("--prefill-context-parallel-size 8",), 1, "TP=1 x 8 (DP x PCP) does not fit Moe: routed expert width"),
        (("--data-parallel-size 5",), 1, "TP=1 x 5 (DP x PCP) does not fit Moe: routed expert width 1536 % 5 = 1"),
    ],
)
def test_without_expert_parallelism_experts_are_cut_over_all_replicas(
    flags: tuple[str, ...], tensor: int, found: str | None
) -> None:
    texts = said(check_tensor_parallel, deployed(*flags, tensor=tensor), Facts(shape=MOE))
    assert [text.startswith(f"tensor-parallel reject: {found}") for text in texts] == ([True] if found else [])


def test_the_way_out_of_replicas_is_one_that_fits_them() -> None:
    asked = deployed("--data-parallel-size 2", tensor=8)
    assert fixes(check_tensor_parallel, asked, Facts(shape=MOE)) == [
        "serve: {enable_expert_parallel: true}, which keeps each routed expert whole; or TP_SIZE=6, the largest below "
        "it that works"
    ]
    none = deployed("--data-parallel-size 5", tensor=2)
    assert fixes(check_tensor_parallel, none, Facts(shape=MOE)) == [
        "serve: {enable_expert_parallel: true}, which keeps each routed expert whole"
    ]
    assert largest_tensor(MOE, 4, expert_parallel=False, replicas=5) is None
    assert largest_tensor(MOE, 1, expert_parallel=False) is None


def test_whole_experts_are_not_judged() -> None:
    odd = ModelShape("c", "Moe", experts=64, moe_intermediate=1537, all_layers_moe=True, quantisation=BLOCKS)
    assert obstacles(odd, 4, expert_parallel=True) == obstacles(odd, 1, expert_parallel=False) == ()
    narrow = ModelShape("c", "Moe", experts=64, moe_intermediate=192, shared_intermediate=192, quantisation=BLOCKS)
    assert obstacles(narrow, 1, expert_parallel=False) == ()
    assert [item.what[:13] for item in obstacles(narrow, 1, expert_parallel=False, replicas=3)] == ["routed expert"]
    assert largest_tensor(MOE, 5, expert_parallel=False) == 4


def test_gpt_oss_pads_its_experts_itself() -> None:
    quant = Quantisation("mxfp4", fp4_experts=True)
    shape = ModelShape("c", "GptOssForCausalLM", experts=32, moe_intermediate=2880, quantisation=quant)
    assert obstacles(shape, 8, expert_parallel=False) == ()
    (odd,) = obstacles(shape, 7, expert_parallel=False)
    assert odd.what == "routed expert width 2880 % 7 = 3"
    other = ModelShape("c", "Other", experts=32, moe_intermediate=2880, quantisation=quant)
    assert len(obstacles(other, 8, expert_parallel=False)) == 1


SPARE = '--eplb-config {"num_redundant_experts":4}'
REAL = "--all2all-backend real"


@pytest.mark.parametrize(
    ("flags", "tensor", "platform", "found"),
    [
        (("--enable-eplb", EP), 4, "cuda", None),
        (("--enable-eplb", EP, "--data-parallel-size 2"), 1, "cuda", None),
        (("--enable-eplb", EP), 1, "cuda", "enable_eplb is set with one rank"),
        (("--enable-eplb",), 4, "cuda", "enable_eplb is set without expert parallelism"),
        (("--enable-eplb", EP), 4, "cpu", "enable_eplb is set on the CPU engine"),
        ((EP, SPARE), 4, "cuda", "num_redundant_experts is 4, but enable_eplb is not set"),
        ((SPARE,), 4, "cuda", "num_redundant_experts is 4, but enable_eplb is not set"),
        ((EP, "--no-enable-eplb", SPARE), 4, "cuda", "num_redundant_experts is 4, but enable_eplb is not set"),
        ((EP, '--eplb-config {"num_redundant_experts":0}'), 4, "cuda", None),
        ((), 4, "cuda", None),
        (("--enable-elastic-ep", EP), 4, "cuda", "enable_elastic_ep is set without enable_eplb"),
        (("--enable-elastic-ep",), 4, "cuda", "enable_elastic_ep is set without enable_eplb"),
        (("--enable-elastic-ep", "--enable-eplb", EP), 4, "cuda", None),
        (("--no-enable-elastic-ep", EP), 4, "cuda", None),
    ],
)
def test_load_balancing_needs_experts_on_several_gpus(
    flags: tuple[str, ...], tensor: int, platform: str, found: str | None
) -> None:
    asked = deployed(REAL, *flags, tensor=tensor, engine={"platform": platform})
    assert said(check_expert_parallel, asked) == ([f"expert-parallel reject: {found}"] if found else [])
