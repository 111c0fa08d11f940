"""Borders of parallel sizes against the model's, and of what the command line says."""

from __future__ import annotations

from typing import Any

import pytest
from deployed import LAYOUT, deployed, fixes, said, shipped
from msgspec.structs import replace

from shardwright.errors import UsageError
from shardwright.facts.engine import EngineFacts
from shardwright.facts.engine_tables import EngineTable
from shardwright.facts.facts import Facts
from shardwright.facts.model import IndexRule, ModelFacts
from shardwright.facts.shape import ModelShape
from shardwright.gates.assess import Assessment, plan_stages
from shardwright.gates.finding import Finding
from shardwright.gates.options import (
    flag_arguments,
    json_of,
    misread,
    node_count,
    number_of,
    switched_on,
    value_of,
    whole_number,
    world_size,
)
from shardwright.gates.parallelism import (
    check_capacity_flags,
    check_context_parallel,
    check_expert_parallel,
    check_hybrid_stages,
    check_tensor_parallel,
)
from shardwright.gates.partition import check_layer_partition
from shardwright.layout.schema import Node
from shardwright.plan.stages import Plan, build_stages
from shardwright.resolve.deployment import Speculation

GQA = ModelShape("c", "Llama", heads=64, kv_heads=8)
MLA = ModelShape("c", "Glm", heads=64, mla=True)
MOE = ModelShape("c", "Moe", experts=64, moe_intermediate=1000)
EP = "--enable-expert-parallel"


def shaped(shape: ModelShape | None, **changes: Any) -> Facts:
    return Facts(shape=shape if shape is None else replace(shape, **changes))


def test_a_size_that_fits_needs_no_word() -> None:
    assert said(check_tensor_parallel, deployed(tensor=8), shaped(GQA)) == []
    assert said(check_tensor_parallel, deployed(tensor=3), Facts()) == []
    three = said(check_tensor_parallel, deployed(tensor=3), shaped(GQA))
    assert [text.split(":")[0] for text in three] == ["tensor-parallel reject"] * 2
    assert three[0] == "tensor-parallel reject: TP=3 does not fit Llama: 64 attention heads % 3 = 1"
    assert "does not fit the model:" in said(check_tensor_parallel, deployed(tensor=3), shaped(GQA, architecture=""))[0]
    assert said(check_tensor_parallel, deployed(tensor=3, engine={"command": ()}), shaped(GQA)) == []
    assert said(check_tensor_parallel, deployed(tensor=1), shaped(GQA, heads=7)) == []
    assert len(said(check_tensor_parallel, deployed(tensor=2), shaped(GQA, heads=7))) == 1


def test_the_patch_that_pads_answers_for_the_size_itself() -> None:
    assert said(check_tensor_parallel, deployed(tensor=3, patches=shipped("virtual-tp")), shaped(GQA)) == []
    assert len(said(check_tensor_parallel, deployed(tensor=3, patches=shipped("pp-cpu-eager")), shaped(GQA))) == 2


def test_the_ways_out_of_a_size_that_does_not_fit() -> None:
    below = "TP_SIZE=2, the largest below it that works"
    pipelined = "TP_SIZE=1 PP_SIZE=6, or so many independent servers; or patches: [virtual-tp], which pads the weights"
    assert fixes(check_tensor_parallel, deployed(tensor=3, pipeline=2), shaped(GQA, kv_heads=None)) == [
        f"{below}; or {pipelined}"
    ]
    expert = "serve: {enable_expert_parallel: true}, which keeps each routed expert whole"
    assert fixes(check_tensor_parallel, deployed(tensor=3), shaped(MOE)) == [f"{expert}; or {below}"]
    assert fixes(check_tensor_parallel, deployed(tensor=3), shaped(MOE, heads=6)) == [f"{expert}; or {below}"]
    assert said(check_tensor_parallel, deployed(EP, tensor=3), shaped(MOE)) == []
    heads_too = fixes(check_tensor_parallel, deployed(tensor=3), shaped(MOE, heads=4))
    assert [fix.startswith(below) for fix in heads_too] == [True, True]


UNREAL = "expert-parallel info: expert parallelism runs over all-gather and reduce-scatter, which is no all-to-all"


@pytest.mark.parametrize(
    ("shape", "refused"),
    [
        (ModelShape("c", "Llama"), True),
        (ModelShape("c"), False),
        (ModelShape("c", "X", experts=8), False),
        (ModelShape("c", "X", moe_intermediate=8), False),
        (None, False),
    ],
)
def test_expert_parallelism_needs_experts(shape: ModelShape | None, refused: bool) -> None:
    text = "expert-parallel reject: expert parallelism is asked for, but Llama has no experts"
    assert said(check_expert_parallel, deployed(EP), shaped(shape)) == ([text] if refused else [UNREAL])
    assert said(check_expert_parallel, deployed(), shaped(shape)) == []


@pytest.mark.parametrize(
    ("backend", "real"),
    [(None, False), ("allgather_reducescatter", False), ("naive", False), ("deepep_low_latency", True)],
)
def test_the_gain_of_expert_parallelism_is_not_assumed(backend: str | None, real: bool) -> None:
    flags = [EP] if backend is None else [EP, f"--all2all-backend {backend}"]
    assert said(check_expert_parallel, deployed(*flags), shaped(MOE)) == ([] if real else [UNREAL])


UNEVEN = "{0} experts do not spread evenly over {1} ranks ({0} % {1} = {2})"


@pytest.mark.parametrize(
    ("flags", "tensor", "changes", "verdict", "sum_text"),
    [
        ((), 4, {}, None, ""),
        ((), 3, {}, "info", UNEVEN.format(64, 3, 1)),
        (("--enable-eplb",), 3, {}, "reject", UNEVEN.format(64, 3, 1)),
        ((), 3, {"model_type": "deepseek_v4"}, "reject", UNEVEN.format(64, 3, 1)),
        ((), 3, {"model_type": "deepseek_v3"}, "info", UNEVEN.format(64, 3, 1)),
        ((), 3, {"architecture": ""}, "reject", UNEVEN.format(64, 3, 1)),
        (("--data-parallel-size 3",), 2, {}, "info", UNEVEN.format(64, 6, 4)),
        (
            ("--prefill-context-parallel-size 3",),
            2,
            {},
            "info",
            UNEVEN.format(64, 6, 4),
        ),
        (("--enable-eplb", '--eplb-config {"num_redundant_experts":2}'), 3, {}, None, ""),
        (
            ("--enable-eplb", '--eplb-config {"num_redundant_experts":1}'),
            3,
            {},
            "reject",
            UNEVEN.format(65, 3, 2),
        ),
        (
            ("--enable-eplb", '--eplb-config {"num_redundant_experts":"2"}'),
            3,
            {},
            "reject",
            UNEVEN.format(64, 3, 1),
        ),
        ((), 3, {"experts": None}, None, ""),
    ],
)
def test_experts_spread_over_all_ranks(
    flags: tuple[str, ...], tensor: int, changes: dict[str, Any], verdict: str | None, sum_text: str
) -> None:
    asked = deployed(EP, "--all2all-backend real", *flags, tensor=tensor)
    found = said(check_expert_parallel, asked, shaped(MOE, **changes))
    assert found == ([f"expert-parallel {verdict}: {sum_text}"] if verdict else [])


def test_the_redundant_experts_that_would_fill_up_are_counted() -> None:
    asked = deployed(EP, "--all2all-backend real", tensor=6)
    assert fixes(check_expert_parallel, asked, shaped(MOE)) == [
        "enable_eplb with num_redundant_experts: 2 gives 66; it cures nothing but this"
    ]


PER_KV = "per KV head are not a multiple of DCP=2"
PCP = "PCP takes cards of its own and adds no KV shards"


@pytest.mark.parametrize(
    ("decode", "prefill", "tensor", "shape", "found", "fix"),
    [
        (None, None, 8, GQA, None, ""),
        (1, 1, 8, GQA, None, ""),
        (4, None, 8, MLA, None, ""),
        (4, None, 8, None, None, ""),
        (3, None, 8, MLA, "TP=8 is not a multiple of DCP=3", "use DCP 1 to 8, dividing it"),
        (0, None, 8, MLA, "TP=8 is not a multiple of DCP=0", "use DCP 1 to 8, dividing it"),
        (3, None, 8, GQA, "TP=8 is not a multiple of DCP=3", "use DCP 1 to 8, dividing it"),
        (2, None, 8, GQA, "DCP=2 needs TP above the model's 8 KV heads, but TP=8", "use a larger TP, or no DCP"),
        (2, None, 16, GQA, None, ""),
        (4, None, 16, GQA, "DCP=4 exceeds 2, which is TP=16 over 8 KV heads", "use DCP of at most 2"),
        (
            2,
            None,
            16,
            replace(GQA, heads=24),
            "3 query heads per KV head are not a multiple of DCP=2",
            "use a DCP that divides them",
        ),
        (
            2,
            None,
            16,
            replace(GQA, heads=None),
            "1 query heads per KV head are not a multiple of DCP=2",
            "use a DCP that divides them",
        ),
        (2, None, 16, replace(GQA, kv_heads=None), None, ""),
        (1, None, 8, GQA, None, ""),
    ],
)
def test_decode_context_is_spread_over_copies(
    decode: int | None, prefill: int | None, tensor: int, shape: ModelShape | None, found: str | None, fix: str
) -> None:
    flags = [] if decode is None else [f"--decode-context-parallel-size {decode}"]
    flags += [] if prefill is None else [f"--prefill-context-parallel-size {prefill}"]
    asked = deployed(*flags, tensor=tensor)
    assert said(check_context_parallel, asked, shaped(shape)) == (
        [f"context-parallel reject: {found}"] if found else []
    )
    assert fixes(check_context_parallel, asked, shaped(shape)) == ([fix] if found else [])


@pytest.mark.parametrize(
    ("decode", "found"),
    [
        (1, []),
        (2, []),
        (8, []),
        (4, ["reject: DCP=4 does not go with TP=4, PCP=2"]),
        (0, ["reject: DCP=0 does not go with TP=4, PCP=2"]),
    ],
)
def test_decode_context_goes_along_an_axis_of_the_prefill_context(decode: int, found: list[str]) -> None:
    asked = deployed(f"--decode-context-parallel-size {decode}", "--prefill-context-parallel-size 2", tensor=4)
    texts = said(check_context_parallel, asked, shaped(MLA))
    assert texts == [f"context-parallel {text}" for text in [*found, f"info: {PCP}"]]
    assert fixes(check_context_parallel, asked, shaped(MLA))[: len(found)] == ["use DCP of 1, 2, 8"] * len(found)


@pytest.mark.parametrize(
    ("method", "version", "refused"),
    [
        ("none", "0.30.0", None),
        ("mtp", "0.30.0", None),
        ("x_mtp", "0.30.0", None),
        ("dspark", "0.30.0", None),
        ("ngram", "0.30.0", "its prefill context parallelism takes mtp or dspark"),
        ("mtp", "0.29.9", "its prefill context parallelism takes no speculation"),
    ],
)
def test_prefill_context_takes_few_methods(method: str, version: str, refused: str | None) -> None:
    speculation = Speculation(method, "auto", 3, LAYOUT)
    asked = deployed("--prefill-context-parallel-size 2", speculation=speculation, engine={"vllm": version})
    found = check_context_parallel(asked, Plan(), shaped(MLA))
    assert [item.why for item in found[:-1]] == ([refused] if refused else [])
    assert all((item.verdict, item.fix) == ("reject", "use SPEC_METHOD=none") for item in found[:-1])
    assert (found[-1].verdict, found[-1].message) == ("info", PCP)


def test_prefill_context_needs_a_latent_model() -> None:
    asked = deployed("--prefill-context-parallel-size 2")
    assert [text.split(":")[0] for text in said(check_context_parallel, asked, shaped(GQA))] == [
        "context-parallel reject",
        "context-parallel info",
    ]
    assert said(check_context_parallel, asked)[0].startswith("context-parallel unknown: whether the model has latent")


@pytest.mark.parametrize(
    ("flag", "named"),
    [
        ("--num-gpu-blocks-override 5", True),
        ("--kv-cache-memory-bytes 5", True),
        ("--block-size 64", True),
        ("--max-num-seqs 8", False),
    ],
)
def test_flags_that_give_no_cache_are_named(flag: str, named: bool) -> None:
    text = f"capacity-flags info: {flag.split()[0]} adds no KV cache"
    assert said(check_capacity_flags, deployed(flag)) == ([text] if named else [])
    whys = [finding.why[:8] for finding in check_capacity_flags(deployed(flag), Plan(), Facts())]
    assert whys == [{"--n": "it makes", "--k": "it pins ", "--b": "it chang", "--m": ""}[flag[:3]]] * named


@pytest.mark.parametrize(("size", "named"), [(None, False), (1, False), (2, True)])
def test_data_parallelism_adds_no_cache(size: int | None, named: bool) -> None:
    flags = [] if size is None else [f"--data-parallel-size {size}"]
    found = said(check_capacity_flags, deployed(*flags))
    assert [text[:45] for text in found] == ["capacity-flags info: data parallelism multipl"] * named


def test_every_stage_of_a_hybrid_has_a_full_layer() -> None:
    kinds = (False, True, False, True, False, False)
    facts = shaped(ModelShape("config.json", full_attention=kinds))
    for partition, bare in (((2, 4), ""), ((4, 2), "1 [4,6)"), ((1, 1, 4), "0 [0,1)"), ((1, 3, 2), "0 [0,1), 2 [4,6)")):
        asked, plan = deployed(pipeline=len(partition)), Plan(build_stages(partition, None))
        text = f"hybrid-stages reject: stages without a full-attention layer: {bare}"
        assert said(check_hybrid_stages, asked, facts, plan) == ([text] if bare else [])
        assert (
            said(check_hybrid_stages, asked, shaped(GQA), plan) == said(check_hybrid_stages, asked, Facts(), plan) == []
        )
    (finding,) = check_hybrid_stages(deployed(pipeline=2), Plan(build_stages((4, 2), None)), facts)
    assert finding.fix.endswith("one of the full-attention layers 1,3") and finding.evidence == "config.json"
    assert said(check_hybrid_stages, deployed(), facts, Plan(build_stages((1,), None))) == []


def test_flags_are_read_as_the_engine_takes_them() -> None:
    asked = deployed("/models/m", "--size 1", "--size=2", "--bare", "--list a b", "--empty=")
    assert [(name, values) for name, values, _ in flag_arguments(asked)] == [
        ("--size", ("1",)),
        ("--size", ("2",)),
        ("--bare", ()),
        ("--list", ("a", "b")),
        ("--empty", ("",)),
    ]
    assert [value_of(asked, f"--{name}") for name in ("size", "bare", "list", "empty", "other")] == [
        "2",
        "",
        "a",
        "",
        None,
    ]
    assert [number_of(asked, f"--{name}", 7) for name in ("size", "bare", "other")] == [2, 7, 7]
    assert list(flag_arguments(replace(asked, engine=replace(asked.engine, command=())))) == []
    assert value_of(replace(asked, engine=replace(asked.engine, command=())), "--size") is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("12", 12),
        ("9" * 15, 10**15 - 1),
        ("9" * 16, None),
        ("", None),
        (None, None),
        ("-1", None),
        ("٣", None),
    ],
)
def test_whole_numbers_are_plain_and_not_endless(text: str | None, number: int | None) -> None:
    assert whole_number(text) == number


def test_switches_and_maps_are_read_from_their_last_word() -> None:
    asked = deployed("--flag", "--no-flag", "--no-other", '--map {"a":1}', "--bad [1]", "--worse {", "--part.x 1")
    assert [switched_on(asked, f"--{name}") for name in ("flag", "other", "map", "none")] == [False, False, True, None]
    assert switched_on(deployed("--no-flag", "--flag"), "--flag") is True
    assert switched_on(deployed("--a--b"), "--a--b") is True and switched_on(deployed("--no-a--b"), "--a--b") is False
    assert [dict(json_of(asked, f"--{name}")) for name in ("map", "bad", "worse", "none", "part")] == [
        {"a": 1},
        {},
        {},
        {},
        {"x": 1},
    ]
    assert json_of(replace(asked, engine=replace(asked.engine, command=())), "--map") == {}


def test_a_flag_that_does_not_read_is_said_once() -> None:
    error = UsageError("it does not read", fix="write a number")
    found = Finding("gate", "reject", "it does not read", "the engine stops on its command line", "write a number")
    assert misread("gate", error, Facts()) == misread("gate", error, Facts(engine=EngineFacts(None))) == [found]
    assert misread("gate", error, Facts(engine=EngineFacts(EngineTable("0.30.0", "t", (), (), ())))) == []


def test_hosts_and_ranks_are_counted() -> None:
    listed = (Node(0, "a", None), Node(1, "b", None))
    assert [
        node_count(item) for item in (deployed(), deployed(nodes=listed), deployed("--nnodes 3", nodes=listed))
    ] == [1, 2, 3]
    assert node_count(deployed("--nnodes 0")) == 1
    assert world_size(deployed(tensor=3, pipeline=2)) == 6
    assert world_size(deployed("--prefill-context-parallel-size 5", tensor=3, pipeline=2)) == 30


def model(layers: int) -> ModelFacts:
    return ModelFacts("c", "X", "x", layers, 0, None, None, None, IndexRule(freq=4, offset=3), False)


@pytest.mark.parametrize(
    ("partition", "pipeline", "layers", "stages", "error"),
    [
        (None, 2, 8, (4, 4), ""),
        (None, 8, 8, (1,) * 8, ""),
        (None, 9, 8, (), "PP=9 exceeds 8 layers"),
        ("5,3", 2, 8, (5, 3), ""),
        ("5,4", 2, 8, (), "5,4 does not split 8 layers into 2 stages"),
        ("5,3", 3, 8, (), "5,3 does not split 8 layers into 3 stages"),
        ("8", 2, 8, (), "8 does not split 8 layers into 2 stages"),
        ("x", 1, 8, (), "x"),
        ("5,3", 2, None, (), ""),
    ],
)
def test_stages_come_from_the_hand_or_from_the_engine(
    partition: str | None, pipeline: int, layers: int | None, stages: tuple[int, ...], error: str
) -> None:
    facts = Facts() if layers is None else Facts(model=model(layers))
    plan = plan_stages(deployed(pipeline=pipeline, partition=partition), facts)
    assert plan.partition == stages
    assert plan.partition_error == error if error != "x" else "x" in plan.partition_error
    assert Plan().partition_error == ""


@pytest.mark.parametrize(
    ("verdict", "refused"), [("reject", True), ("warn", False), ("unknown", False), ("info", False)]
)
def test_only_a_refusal_refuses(verdict: Any, refused: bool) -> None:
    assert Assessment(Plan(), (Finding("gate", verdict, ""),)).refused == refused


@pytest.mark.parametrize(
    ("layers", "stages", "example"),
    [
        (8, 2, "e.g. PP_LAYER_PARTITION=4,4"),
        (2, 2, "e.g. PP_LAYER_PARTITION=1,1"),
        (1, 2, "commas"),
        (None, 2, "commas"),
    ],
)
def test_an_example_is_given_where_there_is_one(layers: int | None, stages: int, example: str) -> None:
    asked = deployed(pipeline=stages)
    asked = replace(asked, parallel=replace(asked.parallel, layer_partition="1,2,3"))
    facts = Facts() if layers is None else Facts(model=model(layers))
    (fix,) = fixes(check_layer_partition, asked, facts)
    assert fix.endswith(example)
