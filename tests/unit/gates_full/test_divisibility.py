"""What a tensor-parallel size must divide, in units of the quantisation."""

from __future__ import annotations

import pytest

from shardwright.facts.shape import ModelShape, Quantisation, model_shape
from shardwright.plan.divisibility import largest_tensor, obstacles


def moe(width: int, quant: Quantisation | None = None, **rest: int) -> ModelShape:
    return ModelShape("", experts=64, moe_intermediate=width, all_layers_moe=True, quantisation=quant, **rest)


@pytest.mark.parametrize(
    ("ignored", "quantised"),
    [
        (("lm_head",), True),
        (("re:.*mlp.gate$",), True),
        (("re:.*shared_experts.*",), True),
        (("re:.*mlp.experts.*",), False),
        (("model.layers.0.mlp.experts",), True),
    ],
)
def test_an_ignore_list_spares_routed_experts_only_when_it_names_all_of_them(
    ignored: tuple[str, ...], quantised: bool
) -> None:
    quant = Quantisation("fp8", block=(128, 128), ignored=ignored)
    assert bool(obstacles(moe(1536, quant), 8, expert_parallel=False)) == quantised


def test_an_ignored_shared_expert_may_have_any_width() -> None:
    quant = Quantisation("fp8", block=(128, 128), ignored=("re:.*shared_experts.*",))
    assert obstacles(moe(2048, quant, shared_intermediate=192), 2, expert_parallel=False) == ()
    bare = Quantisation("fp8", block=(128, 128))
    assert obstacles(moe(2048, bare, shared_intermediate=192), 2, expert_parallel=False)


def test_dense_layers_of_a_mixed_model_are_judged_by_their_own_width() -> None:
    shape = ModelShape("", experts=8, moe_intermediate=1024, intermediate=1002, quantisation=None)
    (found,) = obstacles(shape, 4, expert_parallel=True)
    assert found.what.startswith("dense MLP width 1002 % 4") and not found.expert


def test_a_width_that_no_layer_uses_is_not_judged() -> None:
    config = {"num_experts": 8, "moe_intermediate_size": 1024, "intermediate_size": 1001}
    assert obstacles(model_shape(config, ""), 4, expert_parallel=False) == ()


@pytest.mark.parametrize("expert", [True, False])
def test_only_routed_experts_are_cured_by_expert_parallelism(expert: bool) -> None:
    quant = Quantisation("x", group_size=128)
    found = obstacles(moe(768, quant, shared_intermediate=768), 4, expert_parallel=expert)
    assert [item.expert for item in found] == ([False] if expert else [True, False])
    odd = obstacles(moe(1000), 3, expert_parallel=False)
    assert odd[0].expert


def test_mxfp4_scales_are_not_cut() -> None:
    quant = Quantisation("mxfp4", fp4_experts=True)
    assert obstacles(moe(2048, quant), 64, expert_parallel=False) == ()
    (found,) = obstacles(moe(2048, quant), 128, expert_parallel=False)
    assert found.expert


def test_latent_attention_has_no_kv_heads_to_divide() -> None:
    config = {"num_attention_heads": 64, "num_key_value_heads": 3, "kv_lora_rank": 512}
    assert obstacles(model_shape(config, ""), 4, expert_parallel=False) == ()


def test_the_largest_size_that_works_is_the_largest_and_works() -> None:
    shape = ModelShape("", heads=48, kv_heads=8, vocabulary=151936)
    for below in range(2, 33):
        found = largest_tensor(shape, below, expert_parallel=False)
        assert not obstacles(shape, found, expert_parallel=False)
        assert all(obstacles(shape, size, expert_parallel=False) for size in range(found + 1, below))


def test_groups_are_read_wherever_checkpoints_state_them() -> None:
    for quantisation in (
        {"group_size": 128},
        {"config_groups": {"group_0": {"weights": {"group_size": 128}}}},
        {"q_group_size": 128},
    ):
        shape = model_shape({"quantization_config": quantisation}, "")
        assert shape.quantisation is not None and shape.quantisation.group_size == 128
    channels = model_shape({"quantization_config": {"group_size": -1}}, "")
    assert channels.quantisation is not None and channels.quantisation.group_size is None


def test_heads_of_linear_attention_are_divided_too() -> None:
    shape = model_shape({"linear_num_key_heads": 16, "linear_num_value_heads": 32}, "")
    assert obstacles(shape, 16, expert_parallel=False) == ()
    (keys,) = obstacles(shape, 32, expert_parallel=False)
    assert keys.what == "16 heads of linear attention % 32 = 16" and not keys.expert
    assert len(obstacles(shape, 3, expert_parallel=False)) == 2
    alike = model_shape({"linear_num_key_heads": 16, "linear_num_value_heads": 16}, "")
    assert len(obstacles(alike, 3, expert_parallel=False)) == 1
