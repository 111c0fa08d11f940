"""Borders of what is said of earlier starts, of indexer weights, of patches, waivers and status."""

from __future__ import annotations

from typing import Any

import pytest
from deployed import LAYOUT, deployed, fixes, mount, said, shipped
from msgspec.structs import replace

from shardwright.facts.checkpoint import CheckpointFacts
from shardwright.facts.facts import Facts
from shardwright.facts.host import Host
from shardwright.facts.model import IndexRule, ModelFacts
from shardwright.facts.shape import ModelShape
from shardwright.gates.finding import Finding, by_severity, overall_verdict
from shardwright.gates.history import check_compile_cache, check_earlier_log
from shardwright.gates.index_sharing import check_index_sharing
from shardwright.gates.indexer_weights import check_indexer_weights
from shardwright.gates.patches import check_patches
from shardwright.gates.status import check_status, check_waivers
from shardwright.plan.stages import Plan, build_stages

RULE = IndexRule(freq=4, offset=3)
GLM = ModelFacts("glm", "GlmMoeDsaForCausalLM", "glm_moe_dsa", 14, 1, 64, 1000, 2048, RULE, True)
# Full layers of fourteen: 0, 1, 2, 6 and 10.
TRANSPORT, RECOMPUTE = shipped("pp-index-transport", "pp-index-recompute")


@pytest.mark.parametrize(
    ("tensor", "pipeline", "made_for", "foreign"),
    [
        (2, 3, "tp2-pp3", False),
        (2, 3, "tp3-pp2", True),
        (1, 1, "tp1-pp1", False),
        (2, 1, "", True),
        (2, 3, "TP2_PP3", False),
        (2, 3, "tp=2 pp=3", False),
        (2, 3, "tp2", False),
        (2, 3, "tp3", True),
        (2, 3, "tp2-pp30", True),
        (2, 3, "something", True),
        (2, 3, "tp2-pp3-0.30.0", False),
        (2, 3, "tp2-pp3-v0.30", False),
        (2, 3, "tp2-pp3-abcdef", False),
    ],
)
def test_a_compile_cache_belongs_to_one_topology(tensor: int, pipeline: int, made_for: str, foreign: bool) -> None:
    facts = Facts(host=Host(caches=(("/c", made_for),)))
    text = f"compile-cache reject: the compile cache /c was made by {made_for}, this is tp{tensor}-pp{pipeline}"
    assert said(check_compile_cache, deployed(tensor=tensor, pipeline=pipeline), facts) == ([text] if foreign else [])


def test_a_compile_cache_belongs_to_one_engine() -> None:
    facts = Facts(host=Host(caches=(("/c", "tp1-pp1-0.28.0"),)))
    assert said(check_compile_cache, deployed(), facts) == [
        "compile-cache reject: the compile cache /c was made by tp1-pp1-0.28.0, this is tp1-pp1 on 0.30.0"
    ]
    assert said(check_compile_cache, deployed(engine={"vllm": "0.28.0"}), facts) == []
    assert said(check_compile_cache, deployed(engine={"vllm": "0.28.1.dev3"}), facts) == []


@pytest.mark.parametrize(
    ("target", "env", "kept"),
    [
        ("/root/.cache", {}, True),
        ("/root/", {}, True),
        ("/", {}, True),
        ("/rooted", {}, False),
        ("/root/.cache/huggingface", {}, False),
        ("/cache", {}, False),
        ("/cache", {"HOME": "/cache"}, True),
        ("/root/.cache", {"HOME": "/home/me"}, False),
        ("/home/me/.cache", {"HOME": "/home/me"}, True),
        ("/cache", {"XDG_CACHE_HOME": "/cache/x"}, True),
        ("/cache", {"VLLM_CACHE_ROOT": "/cache/vllm"}, True),
        ("/cache/vllm/deep", {"VLLM_CACHE_ROOT": "/cache/vllm"}, True),
        ("/cache/vllmx", {"VLLM_CACHE_ROOT": "/cache/vllm"}, False),
        ("/root/keyed", {"VLLM_CACHE_ROOT": "~/keyed"}, True),
        ("/cache", {"TORCHINDUCTOR_CACHE_DIR": "/cache/inductor"}, True),
        ("/cache", {"TRITON_CACHE_DIR": "/cache/triton"}, True),
        ("/cache", {"FLASHINFER_WORKSPACE_BASE": "/cache"}, True),
        ("/cache", {"DG_JIT_CACHE_DIR": "/cache/gemm"}, True),
        ("/cache", {"VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR": "/cache/tuned"}, True),
        ("/cache", {"CUDA_CACHE_PATH": "/cache/cuda"}, True),
        ("/cache", {"VLLM_CACHE_ROOT": "/cache/vllm", "VLLM_DISABLE_COMPILE_CACHE": "1"}, False),
        ("/cache", {"VLLM_CACHE_ROOT": "/cache/vllm", "VLLM_DISABLE_COMPILE_CACHE": "0"}, True),
    ],
)
def test_a_cache_is_found_where_the_variables_put_it(target: str, env: dict[str, str], kept: bool) -> None:
    asked = deployed(mounts=(mount(target, "/srv/cache", readonly=False),), patches=(TRANSPORT,), env=env)
    text = f"compile-cache warn: {target} outlives the container, and the layout has patches"
    assert said(check_compile_cache, asked) == ([text] if kept else [])


@pytest.mark.parametrize(
    ("target", "kept"),
    [
        ("/x/torch_compile_cache", True),
        ("/home/me/.cache/vllm", True),
        ("/home/me/.triton", True),
        ("/home/me/.cache/flashinfer", True),
        ("/x/torch_aot_compile/y", True),
        ("/root/.cache/vllm", True),
        ("/root/.cache/flashinfer", True),
        ("/root/.triton", True),
        ("/root/.deep_gemm", True),
        ("/root/.cache/huggingface", False),
    ],
)
def test_a_cache_that_outlives_the_container_is_named_where_patches_are(target: str, kept: bool) -> None:
    place = mount(target, "/srv/cache", readonly=False)
    found = said(check_compile_cache, deployed(mounts=(place,), patches=(TRANSPORT,)))
    assert found == (
        [f"compile-cache warn: {target} outlives the container, and the layout has patches"] if kept else []
    )
    assert said(check_compile_cache, deployed(mounts=(place,))) == []
    assert said(check_compile_cache, deployed(mounts=(replace(place, readonly=True),), patches=(TRANSPORT,))) == []
    named = replace(place, source="/srv/cache-tp1-pp1")
    assert said(check_compile_cache, deployed(mounts=(named,), patches=(TRANSPORT,))) == []


def test_the_cache_that_is_named_is_the_first_one_that_is_kept() -> None:
    places = (
        mount("/data"),
        mount("/a/.triton", "/srv/a", readonly=False),
        mount("/b/.triton", "/srv/b", readonly=False),
    )
    asked = deployed(mounts=places, patches=(TRANSPORT,))
    assert said(check_compile_cache, asked) == [
        "compile-cache warn: /a/.triton outlives the container, and the layout has patches"
    ]
    assert fixes(check_compile_cache, asked) == [
        "name the folder after the topology and the patches, e.g. /srv/a-tp1-pp1"
    ]


NEEDED = (
    "max seq len (100000), (4.26 GiB KV cache is needed, which is larger than the available KV cache memory (4.25 GiB)."
)
LOGS = [
    (None, None, ""),
    ("", None, ""),
    ("all well", None, ""),
    (
        f"{NEEDED} Based on the available memory,\n the estimated maximum model length is 99744.",
        "max_model_len 100000 needs 4.26 GiB of KV cache, of 4.25 GiB",
        "MAX_MODEL_LEN=99744",
    ),
    (
        NEEDED,
        "max_model_len 100000 needs 4.26 GiB of KV cache, of 4.25 GiB",
        "lower MAX_MODEL_LEN; how far: deploy plan",
    ),
    (
        "Free memory on device cuda:0 (59.32/79.15 GiB) on startup is less than desired",
        "only 59.32 of 79.15 GiB were free on a card",
        "nvidia-smi names the holder",
    ),
    (
        "custom_all_reduce.cuh:310 'invalid argument'",
        "custom all-reduce ended in 'invalid argument'",
        "write serve: {disable_custom_all_reduce: true}",
    ),
    (
        "Version mismatch: The cluster was started with:\n Ray: 2.43.0\n Python: 3\n"
        "This process on node 5\n Ray: 2.44.1",
        "Ray 2.43.0 started the cluster, a node has Ray 2.44.1",
        "use one image digest on all nodes",
    ),
]


@pytest.mark.parametrize(("log", "died", "fix"), LOGS)
def test_a_death_of_an_earlier_start_is_read_from_its_log(log: str | None, died: str | None, fix: str) -> None:
    facts = Facts(log=log)
    assert said(check_earlier_log, deployed(), facts) == (
        [f"earlier-log reject: the earlier start died: {died}"] if died else []
    )
    assert fixes(check_earlier_log, deployed(), facts) == ([fix] if died else [])


def indexers(*layers: int) -> CheckpointFacts:
    names = {f"model.layers.{layer}.self_attn.indexer.wk.weight" for layer in layers}
    return CheckpointFacts("index.json", frozenset({*names, "model.norm.weight", "x.self_attn.indexer.y"}))


def overridden(**changes: Any) -> Facts:
    shape = ModelShape("config.json", index_overrides=("index_topk_freq=1",))
    return replace(Facts(model=replace(GLM, index_rule=IndexRule(freq=1)), shape=shape), **changes)


def test_an_override_asks_for_indexers_that_are_there() -> None:
    asked = "indexer-weights {}: hf_overrides index_topk_freq=1 makes"
    unknown = said(check_indexer_weights, deployed(), overridden())
    assert unknown == [
        asked.format("unknown") + " 14 layers compute their index; whether they have indexer weights is not known"
    ]
    missing = " compute, but the checkpoint has no indexer weights for them"
    for have, told in (
        (range(8), "8,9,10,11,12,13"),
        (range(6), "6,7,8,9,10,11,12,13"),
        (range(5), "5,6,7,8,9,10,11,12,..."),
    ):
        found = said(check_indexer_weights, deployed(), overridden(checkpoint=indexers(*have)))
        assert found == [asked.format("reject") + f" layers {told}{missing}"]
    assert said(check_indexer_weights, deployed(), overridden(checkpoint=indexers(*range(14)))) == []
    assert said(check_indexer_weights, deployed(), overridden(checkpoint=indexers(*range(14)), model=None)) == []
    assert said(check_indexer_weights, deployed(), overridden(checkpoint=indexers(*range(3)), shape=None)) == []
    ruleless = replace(GLM, index_rule=None)
    assert said(check_indexer_weights, deployed(), overridden(checkpoint=indexers(0), model=ruleless)) == []


@pytest.mark.parametrize(("quantized", "why"), [(True, "a quantised model runs them"), (False, "the engine stops")])
def test_what_missing_indexers_do_depends_on_the_quantisation(quantized: bool, why: str) -> None:
    model = replace(GLM, index_rule=IndexRule(freq=1), quantized=quantized)
    (finding,) = check_indexer_weights(deployed(), Plan(), overridden(model=model, checkpoint=indexers(0)))
    assert finding.why.startswith(why)


@pytest.mark.parametrize(
    ("version", "platform", "carried", "warns"),
    [
        ("0.30.0", "cuda", range(14), True),
        ("0.29.9", "cuda", range(14), False),
        ("0.30.0", "cpu", range(14), False),
        ("0.30.0", "cuda", (0, 1, 2, 6, 10), False),
        ("0.30.0", "cuda", (0, 1, 2, 6, 10, 14), False),
        ("0.30.0", "cuda", (0, 1, 2, 6, 10, 13), True),
    ],
)
def test_weights_of_layers_that_an_override_shares_are_named(
    version: str, platform: str, carried: Any, warns: bool
) -> None:
    facts = overridden(
        model=GLM, shape=ModelShape("c", index_overrides=("index_topk_freq=4",)), checkpoint=indexers(*carried)
    )
    found = said(check_indexer_weights, deployed(engine={"vllm": version, "platform": platform}), facts)
    count = len([layer for layer in carried if layer < 14 and layer not in (0, 1, 2, 6, 10)])
    text = "hf_overrides index_topk_freq=4 shares layers for which the checkpoint carries indexer weights"
    assert found == ([f"indexer-weights warn: {text} ({count} of them)"] if warns else [])


def test_null_keys_are_named_before_all_else() -> None:
    facts = Facts(model=GLM, shape=ModelShape("c", null_keys=("index_topk_freq", "index_skip_topk_offset")))
    (found,) = said(check_indexer_weights, deployed(), facts)
    assert found.startswith("indexer-weights info: index_topk_freq and index_skip_topk_offset are null in the config")
    both = replace(facts, shape=ModelShape("c", null_keys=("index_topk_freq",), index_overrides=("index_topk_freq=1",)))
    assert [text.split(":")[0] for text in said(check_indexer_weights, deployed(), both)] == [
        "indexer-weights info",
        "indexer-weights unknown",
    ]


def staged(*partition: int) -> Plan:
    return Plan(build_stages(partition, RULE))


def sharing(*partition: int, facts: Facts | None = None, **changes: Any) -> list[Finding]:
    asked = deployed(pipeline=len(partition), **changes)
    return check_index_sharing(asked, staged(*partition), Facts(model=GLM) if facts is None else facts)


def test_an_aligned_split_of_two_stages_is_fine_and_others_are_not() -> None:
    assert [sharing(first, 14 - first) for first in (1, 2, 6, 10)] == [[]] * 4
    for first, orphans in ((3, "3,4,5"), (4, "4,5"), (5, "5"), (7, "7,8,9"), (12, "12,13"), (13, "13")):
        (found,) = sharing(first, 14 - first)
        plural = "s" if "," in orphans else ""
        count = len(orphans.split(","))
        assert (found.gate, found.verdict) == ("pp-dsa", "reject")
        assert found.message == (
            f"{count} orphan layer{plural} with the split {first},{14 - first}: stage 1 starts on layer {first} "
            f"and reads unwritten rows in {orphans}"
        )
        assert found.evidence == f"stages [0,{first}), [{first},14)"


def test_the_ways_out_are_numbered_and_fit_the_layout() -> None:
    (found,) = sharing(5, 9)
    assert found.fix == (
        "(1) the nearest split without orphan layers, PP_LAYER_PARTITION=6,8; or (2) carry the rows across the "
        "boundary with patches: [pp-index-transport]; or (3) use PP=1, where the sharing stays on one rank"
    )
    assert sharing(5, 9, patches=(TRANSPORT,)) == []


def test_a_remedy_of_another_models_code_covers_nothing() -> None:
    foreign = replace(TRANSPORT, reach=replace(TRANSPORT.reach, models=("OtherForCausalLM",)))
    (found,) = sharing(5, 9, patches=(foreign,))
    assert "(2) PP=2, where the layout's index transport patch covers the boundary" in found.fix
    everywhere = replace(TRANSPORT, reach=replace(TRANSPORT.reach, models=()))
    assert sharing(5, 9, patches=(everywhere,)) == []
    other = replace(TRANSPORT, remedies=("something-else",))
    assert "carry the rows" in sharing(5, 9, patches=(other,))[0].fix


def test_recomputing_orphans_needs_their_indexer_weights() -> None:
    facts = Facts(model=GLM)
    (unknown,) = sharing(4, 10, patches=(RECOMPUTE,))
    assert (unknown.verdict, unknown.message) == (
        "unknown",
        "pp-index-recompute makes layers 4,5 compute; whether they have indexer weights is not known",
    )
    (some,) = sharing(4, 10, patches=(RECOMPUTE,), facts=replace(facts, checkpoint=indexers(0, 1, 2, 4)))
    assert (some.verdict, some.message) == (
        "reject",
        "pp-index-recompute makes layers 5 compute, but the checkpoint has no indexer weights for them",
    )
    (all_there,) = sharing(4, 10, patches=(RECOMPUTE,), facts=replace(facts, checkpoint=indexers(4, 5)))
    assert all_there.verdict == "warn" and all_there.message.startswith("pp-index-recompute makes layers 4,5 compute")
    assert sharing(6, 8, patches=(RECOMPUTE,)) == []


@pytest.mark.parametrize(
    ("partition", "state", "way"),
    [
        ((2, 4, 8), "the split 2,4,8 has no orphan layers", "(1) PP=2 on an aligned split; or (2) carry"),
        (
            (4, 4, 6),
            "the split 4,4,6 has orphan layers 4,5,8,9",
            "(1) the nearest split without orphan layers, PP_LAYER_PARTITION=2,4,8 with ALLOW_UNVERIFIED_PP=1; or (2)",
        ),
    ],
)
def test_more_than_two_stages_are_refused_first(partition: tuple[int, ...], state: str, way: str) -> None:
    found = sharing(*partition)
    assert found[0].message == f"PP=3 has not been verified on a model that shares indices ({state})"
    assert found[0].verdict == "reject"
    assert len(found) == (2 if "orphan layers 4" in state else 1)
    assert found[0].fix.startswith(way)
    assert found[0].fix.endswith("accept it for research with ALLOW_UNVERIFIED_PP=1 or allow: [unverified-pp]")


def test_a_waiver_makes_refusals_warnings_and_leaves_the_rest() -> None:
    waived = sharing(4, 4, 6, waivers=("unverified-pp",))
    assert [finding.verdict for finding in waived] == ["warn", "warn"]
    assert all(finding.message.startswith("waived by unverified-pp: ") for finding in waived)
    assert [finding.fix for finding in waived] == ["after the start run: deploy degen"] * 2
    (unknown,) = sharing(4, 10, patches=(RECOMPUTE,), waivers=("unverified-pp",))
    assert unknown.verdict == "unknown" and not unknown.message.startswith("waived")
    assert sharing(4, 10, waivers=("other",))[0].verdict == "reject"


def test_what_cannot_share_or_cannot_be_known() -> None:
    assert check_index_sharing(deployed(), Plan(), Facts()) == []
    (unknown,) = check_index_sharing(deployed(pipeline=2), Plan(), Facts())
    assert unknown.verdict == "unknown" and "PP=2 cuts" in unknown.message
    for rule in (None, IndexRule(freq=1)):
        model = replace(GLM, index_rule=rule)
        assert sharing(4, 4, 6, facts=Facts(model=model)) == []
    (uncounted,) = check_index_sharing(deployed(pipeline=2), Plan(), Facts(model=GLM))
    assert uncounted.verdict == "unknown" and "before the partition is right" in uncounted.message
    (deep,) = check_index_sharing(deployed(pipeline=3), Plan(), Facts(model=GLM))
    assert deep.message.endswith("(the split cannot be judged)") and deep.evidence == ""
    assert deep.fix.startswith("(1) carry the rows")


def test_patches_that_are_missing_unfit_or_at_odds() -> None:
    assert said(check_patches, deployed(unknown_patches=("nope",))) == [
        "patches reject: the patch nope does not exist here"
    ]
    assert said(check_patches, deployed(patches=(TRANSPORT,))) == []
    old = said(check_patches, deployed(patches=(TRANSPORT,), engine={"vllm": "0.20.0"}))
    assert old[0].startswith("patches reject: the patch pp-index-transport has no edits for vLLM 0.20.0, only for ")
    only = replace(TRANSPORT, platforms=("rocm", "cpu"))
    assert said(check_patches, deployed(patches=(only,))) == [
        "patches reject: the patch pp-index-transport is for rocm, cpu, but the engine runs on cuda"
    ]
    assert said(check_patches, deployed(patches=(replace(TRANSPORT, platforms=("cuda",)),))) == []
    assert said(check_patches, deployed(patches=(replace(TRANSPORT, platforms=()),))) == []
    needing = replace(TRANSPORT, requires=("another",), conflicts=())
    assert said(check_patches, deployed(patches=(needing,))) == [
        "patches reject: the patch pp-index-transport requires another, which the layout does not name"
    ]
    alias = replace(RECOMPUTE, aliases=("another",), conflicts=(), requires=())
    assert said(check_patches, deployed(patches=(needing, alias))) == []
    at_odds = replace(TRANSPORT, conflicts=("another",))
    assert said(check_patches, deployed(patches=(at_odds,))) == []
    assert said(check_patches, deployed(patches=(at_odds, alias))) == [
        "patches reject: the patches pp-index-transport and another exclude each other"
    ]


@pytest.mark.parametrize(
    ("status", "found"),
    [
        ("ready", []),
        ("testing", ["status info: the layout case is in testing; missing proof: the layout does not say which"]),
        ("rejected", ["status reject: the layout case is rejected: the layout does not say which"]),
    ],
)
def test_a_status_speaks_for_itself(status: Any, found: list[str]) -> None:
    assert said(check_status, deployed(status=status)) == found
    told = [text.replace("the layout does not say which", "degen") for text in found]
    assert said(check_status, deployed(status=status, missing_proof="degen")) == told


def test_waivers_are_known_by_name() -> None:
    assert (
        said(check_waivers, deployed(waivers=("unverified-pp", "trust-remote-code", "small-shm", "idle-ranks"))) == []
    )
    asked = deployed(waivers=("unverified-qq", "zzz"))
    assert said(check_waivers, asked) == [
        "waivers reject: there is no waiver called 'unverified-qq'",
        "waivers reject: there is no waiver called 'zzz'",
    ]
    known = "known waivers: unverified-pp, trust-remote-code, small-shm, idle-ranks"
    assert fixes(check_waivers, asked) == ["did you mean unverified-pp?", known]


def test_the_worst_verdict_counts_and_comes_first() -> None:
    findings = [Finding("gate", verdict, "") for verdict in ("info", "unknown", "warn", "reject")]  # type: ignore[arg-type]
    assert [finding.verdict for finding in by_severity(findings)] == ["reject", "warn", "unknown", "info"]
    assert [overall_verdict(findings[:count]) for count in range(5)] == [
        "accept",
        "accept",
        "unknown",
        "warn",
        "reject",
    ]
    assert Finding("gate", "info", "text") == Finding("gate", "info", "text", "", "", "")
    assert LAYOUT.where == "case.yaml:1"
