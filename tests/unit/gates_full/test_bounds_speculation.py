"""Borders of speculation: methods by version and runner, settings of a draft, and the table of pipelines."""

from __future__ import annotations

from typing import Any

import pytest
from deployed import LAYOUT, deployed, fixes, said
from msgspec.structs import replace

from shardwright.facts.engine import EngineFacts
from shardwright.facts.engine_tables import EngineTable, Flag
from shardwright.facts.facts import Facts
from shardwright.facts.model import ModelFacts
from shardwright.facts.spec_support import SpecRule, SpecTable
from shardwright.gates.assess import assess
from shardwright.gates.drafts import check_draft_settings
from shardwright.gates.runner import check_model_runner, v2_lacks
from shardwright.gates.speculation import check_speculation
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment, Speculation

RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
METHODS = (
    *("ngram", "ngram_gpu", "draft_model", "suffix", "medusa", "mlp_speculator", "custom_class"),
    *("extract_hidden_states", "mtp", "eagle", "dspark"),
)


def drafting(method: str, *flags: str, tokens: int = 3, model: str | None = None, **changes: Any) -> Deployment:
    options = tuple(changes.pop("options", {}).items())
    return deployed(*flags, speculation=Speculation(method, "auto", tokens, LAYOUT, model, options), **changes)


@pytest.mark.parametrize(
    ("versions", "lacking"),
    [
        (("0.28.0", "0.29.9"), METHODS[:8]),
        (("0.30.0", "0.31.9"), METHODS[:7]),
        (("0.32.0", "0.32.9"), METHODS[3:7]),
        (("0.33.0", "0.33.9"), (METHODS[3], METHODS[6])),
    ],
)
def test_what_the_second_runner_lacks_in_each_version(versions: tuple[str, ...], lacking: tuple[str, ...]) -> None:
    for version in versions:
        assert tuple(method for method in METHODS if v2_lacks(version, method)) == lacking


def test_a_version_that_was_not_read_is_neither_lacking_nor_not() -> None:
    assert [v2_lacks(version, "suffix") for version in ("0.27.9", "0.34.0")] == [None, None]


@pytest.mark.parametrize(
    ("method", "version", "pinned", "found"),
    [
        ("suffix", "0.30.0", None, "warn: suffix makes vLLM 0.30.0 change to model runner V1 with one log line"),
        ("suffix", "0.30.0", "0", None),
        (
            "suffix",
            "0.30.0",
            "1",
            f"reject: model runner V2 of vLLM 0.30.0 does not have suffix, and {RUNNER}=1 demands it",
        ),
        (
            "suffix",
            "0.28.0",
            "1",
            f"reject: model runner V2 of vLLM 0.28.0 does not have suffix, and {RUNNER}=1 demands it",
        ),
        ("suffix", "0.28.0", None, None),
        ("suffix", "0.29.9", None, None),
        ("suffix", "0.34.0", None, None),
        ("mtp", "0.30.0", None, None),
        ("mtp", "0.30.0", "1", None),
        ("glm4_moe_mtp", "0.30.0", None, None),
        ("none", "0.30.0", "1", None),
        ("dspark", "0.30.0", "0", f"reject: dspark needs model runner V2, and {RUNNER}=0 forbids it"),
        ("dspark", "0.28.0", "0", f"reject: dspark needs model runner V2, and {RUNNER}=0 forbids it"),
        ("dspark", "0.33.9", "0", f"reject: dspark needs model runner V2, and {RUNNER}=0 forbids it"),
        ("dspark", "0.27.9", "0", None),
        ("dspark", "0.34.0", "0", None),
        ("dspark", "0.30.0", "1", None),
        ("dspark", "0.30.0", None, None),
        ("mtp", "0.30.0", "0", None),
    ],
)
def test_the_runner_changes_neither_silently_nor_against_its_pin(
    method: str, version: str, pinned: str | None, found: str | None
) -> None:
    env = {} if pinned is None else {RUNNER: pinned}
    asked = drafting(method, env=env, engine={"vllm": version})
    assert said(check_model_runner, asked) == ([f"model-runner {found}"] if found else [])
    assert said(check_model_runner, drafting(method, env=env, engine={"vllm": version}, pipeline=2)) == []


@pytest.mark.parametrize(
    ("version", "method", "options", "lacking"),
    [
        ("0.30.0", "eagle", {"parallel_drafting": True}, "eagle with parallel_drafting"),
        ("0.30.0", "eagle", {"parallel_drafting": False}, None),
        ("0.30.0", "eagle", {"parallel_drafting": 1}, None),
        ("0.30.0", "dflash", {"parallel_drafting": True}, None),
        ("0.30.0", "dspark", {"parallel_drafting": True}, None),
        ("0.33.9", "eagle", {"parallel_drafting": True}, "eagle with parallel_drafting"),
        ("0.34.0", "eagle", {"parallel_drafting": True}, None),
        ("0.32.0", "eagle", {"use_heterogeneous_vocab": True}, "eagle with use_heterogeneous_vocab"),
        ("0.33.9", "dflash", {"use_heterogeneous_vocab": True}, "dflash with use_heterogeneous_vocab"),
        ("0.31.9", "eagle", {"use_heterogeneous_vocab": True}, None),
        ("0.34.0", "eagle", {"use_heterogeneous_vocab": True}, None),
    ],
)
def test_settings_that_the_second_runner_lacks(
    version: str, method: str, options: dict[str, Any], lacking: str | None
) -> None:
    asked = drafting(method, options=options, engine={"vllm": version}, env={RUNNER: "1"})
    text = f"model-runner reject: model runner V2 of vLLM {version} does not have {lacking}, and {RUNNER}=1 demands it"
    assert said(check_model_runner, asked) == ([text] if lacking else [])
    before = drafting("eagle", options={"parallel_drafting": True}, engine={"vllm": "0.27.9"}, env={RUNNER: "1"})
    first = drafting("eagle", options={"parallel_drafting": True}, engine={"vllm": "0.28.0"}, env={RUNNER: "1"})
    assert (len(said(check_model_runner, before)), len(said(check_model_runner, first))) == (0, 1)


@pytest.mark.parametrize(("pinned", "speaks"), [("1", True), ("0", False), (None, False)])
def test_the_cpu_engine_has_the_first_runner_only(pinned: str | None, speaks: bool) -> None:
    asked = drafting("suffix", env={} if pinned is None else {RUNNER: pinned}, engine={"platform": "cpu"})
    assert said(check_model_runner, asked) == ([f"model-runner reject: {RUNNER}=1 on the CPU engine"] if speaks else [])


@pytest.mark.parametrize(
    ("pinned", "size", "speaks"),
    [("0", 2, True), ("0", 1, False), ("0", None, False), ("1", 2, False), (None, 2, False)],
)
def test_prefill_context_parallelism_needs_the_second_runner(
    pinned: str | None, size: int | None, speaks: bool
) -> None:
    flags = [] if size is None else [f"--prefill-context-parallel-size {size}"]
    for pipeline in (1, 2):
        asked = deployed(*flags, env={} if pinned is None else {RUNNER: pinned}, pipeline=pipeline)
        text = f"model-runner reject: prefill context parallelism needs model runner V2, and {RUNNER}=0 forbids it"
        assert said(check_model_runner, asked) == ([text] if speaks else [])


def rule(support: Any, runner: str | None = None, models: tuple[str, ...] | None = None) -> SpecTable:
    return SpecTable(
        (SpecRule(("mtp", "ngram", "suffix", "ngram_gpu"), ">=0.30", support, "<method> why", models, runner),)
    )


def speculated(asked: Deployment, table: SpecTable, runner: str = "v2", facts: Facts | None = None) -> list[str]:
    found = check_speculation(asked, Plan(), facts or Facts(), table, runner)
    return [f"{item.gate} {item.verdict}: {item.message} | {item.why} | {item.fix} | {item.evidence}" for item in found]


@pytest.mark.parametrize(
    ("method", "gate"), [("mtp", "pp-mtp"), ("ngram", "pp-ngram"), ("ngram_gpu", "pp-ngram"), ("suffix", "pp-ngram")]
)
def test_speculation_across_stages_follows_the_table(method: str, gate: str) -> None:
    asked = drafting(method, pipeline=2)
    start = f"{method} with PP=2 on vLLM 0.30.0"
    assert speculated(asked, rule("works")) == []
    assert speculated(asked, rule("unverified")) == [
        f"{gate} warn: {start} is unverified | {method} why | run: deploy degen | >=0.30"
    ]
    auto = "SPEC_METHOD=none, or SPEC_METHOD=auto to let the topology decide"
    for support in ("refused", "broken"):
        assert speculated(asked, rule(support)) == [
            f"{gate} reject: {start} does not work | {method} why | {auto} | >=0.30"
        ]
    (v1,) = speculated(asked, rule("refused"), "v1")
    assert "| SPEC_METHOD=none, or let the rule pin model runner V2 (remove FORCE_V2_RUNNER=0) |" in v1
    assert speculated(drafting(method), rule("refused")) == []
    assert speculated(drafting("none", pipeline=2), rule("refused")) == []


def test_a_method_that_the_table_lacks_is_unknown_and_a_name_that_is_none_says_so() -> None:
    old = drafting("mtp", pipeline=2, engine={"vllm": "0.29.0"})
    assert speculated(old, rule("works")) == [
        "pp-mtp unknown: whether mtp with PP=2 on vLLM 0.29.0 works is not known |  |  | case.yaml:1"
    ]
    (odd,) = speculated(drafting("mpt", pipeline=2), rule("works"))
    assert odd.startswith(
        "pp-mtp unknown: 'mpt' is not a known method |  | known methods: mtp, ngram, ngram_gpu, suffix; or"
    )
    assert speculated(drafting("glm4_moe_mtp", pipeline=2), rule("works")) == []


@pytest.mark.parametrize(("pinned", "runner"), [("0", "v1"), ("1", "v2"), (None, "v2")])
def test_the_table_is_asked_for_the_runner_that_will_run(pinned: str | None, runner: str) -> None:
    env = {"OTHER": "1"} if pinned is None else {"OTHER": "1", RUNNER: pinned}
    asked = drafting("mtp", pipeline=2, env=env)
    for row in ("v1", "v2"):
        found = assess(asked, Facts(), rule("refused", runner=row)).findings
        assert [item.gate for item in found if item.gate == "pp-mtp"] == ["pp-mtp"]
        assert ("pp-mtp", "reject") in {(item.gate, item.verdict) for item in found} or row != runner


def test_the_row_of_the_models_own_type_counts() -> None:
    model = ModelFacts("c", "X", "glm", 4, 1, None, None, None, None, False)
    for models, row in ((("glm",), True), (("other",), False), (("",), False)):
        found = speculated(drafting("mtp", pipeline=2), rule("refused", models=models), facts=Facts(model=model))
        assert found[0].startswith("pp-mtp reject" if row else "pp-mtp unknown")
    nameless = speculated(drafting("mtp", pipeline=2), rule("refused", models=("",)))
    assert nameless[0].startswith("pp-mtp reject")


CHOICES = (
    "ngram",
    "suffix",
    "eagle",
    "eagle3",
    "dflash",
    "draft_model",
    "medusa",
    "mlp_speculator",
    "mtp",
    "x_mtp",
    "dspark",
)
TABLE = EngineTable("0.30.0", "t", (Flag("--seed"), Flag("--spec-method", choices=CHOICES)), (), ())
KNOWN = Facts(engine=EngineFacts(TABLE))


def test_a_method_is_one_of_the_version() -> None:
    asked = drafting("egle3", model="m")
    assert said(check_draft_settings, asked, KNOWN) == [
        "speculative reject: vLLM 0.30.0 has no speculative method 'egle3' (case.yaml:1)"
    ]
    assert fixes(check_draft_settings, asked, KNOWN) == ["did you mean eagle3? Or SPEC_METHOD=none"]
    (far,) = fixes(check_draft_settings, drafting("zzz"), KNOWN)
    assert far == f"SPEC_METHOD=none, or one of {', '.join(name for name in CHOICES if name != 'x_mtp')}"
    bare = Facts(engine=EngineFacts(EngineTable("0.30.0", "t", (Flag("--seed", choices=CHOICES),), (), ())))
    for facts in (None, bare, Facts(engine=EngineFacts(None))):
        assert said(check_draft_settings, asked, facts) == []


@pytest.mark.parametrize(
    ("method", "needs"),
    [
        *(
            (name, True)
            for name in ("eagle", "eagle3", "dflash", "draft_model", "medusa", "mlp_speculator", "custom_class")
        ),
        *((name, False) for name in ("mtp", "ngram", "dspark", "suffix", "none")),
    ],
)
def test_a_draft_that_is_a_checkpoint_is_named(method: str, needs: bool) -> None:
    text = f"speculative info: {method} drafts with a checkpoint of its own, and speculative.model names none"
    assert said(check_draft_settings, drafting(method)) == ([text] if needs else [])
    assert said(check_draft_settings, drafting(method, model="m")) == []
    assert said(check_draft_settings, drafting(method, engine={"command": ()})) == []


@pytest.mark.parametrize(
    ("method", "options", "found"),
    [
        (
            "mtp",
            {"prompt_lookup_max": 3},
            "warn: speculative.prompt_lookup_max means nothing to mtp, only to ngram and ngram_gpu",
        ),
        ("ngram", {"prompt_lookup_max": 3}, None),
        ("ngram_gpu", {"prompt_lookup_max": 3}, None),
        ("mtp", {"suffix_decoding_x": 3}, "warn: speculative.suffix_decoding_x means nothing to mtp, only to suffix"),
        ("suffix", {"suffix_decoding_x": 3}, None),
        ("mtp", {"dspark_draft_topk": 3}, "reject: speculative.dspark_draft_topk goes with dspark only, not with mtp"),
        ("dspark", {"dspark_draft_topk": 3}, None),
        ("mtp", {"dspark_draft_topk": None}, None),
        (
            "dspark",
            {"index_share_for_mtp_iteration": True},
            "reject: speculative.index_share_for_mtp_iteration goes with mtp only, not with dspark",
        ),
        ("x_mtp", {"index_share_for_mtp_iteration": True}, None),
        ("ngram", {"prompt_lookup_min": 3, "prompt_lookup_max": 3}, None),
        ("ngram", {"prompt_lookup_min": 3}, None),
        (
            "ngram",
            {"prompt_lookup_min": 4, "prompt_lookup_max": 3},
            "reject: speculative.prompt_lookup_min 4 is above prompt_lookup_max 3",
        ),
        ("mtp", {"draft_tensor_parallel_size": 1}, None),
        ("mtp", {"draft_tensor_parallel_size": 4}, None),
        (
            "mtp",
            {"draft_tensor_parallel_size": 2},
            "reject: speculative.draft_tensor_parallel_size 2 is neither 1 nor TP=4",
        ),
        (
            "mtp",
            {"draft_tensor_parallel_size": 0},
            "reject: speculative.draft_tensor_parallel_size 0 is neither 1 nor TP=4",
        ),
        ("mtp", {"max_model_len": 100}, None),
        ("mtp", {"max_model_len": 101}, "reject: speculative.max_model_len 101 is above the target's 100"),
    ],
)
def test_settings_of_a_draft_are_read_by_its_method(method: str, options: dict[str, Any], found: str | None) -> None:
    asked = drafting(method, "--max-model-len 100", options=options, tensor=4)
    assert said(check_draft_settings, asked) == ([f"speculative {found}"] if found else [])


def test_all_idle_settings_are_to_be_removed_and_the_first_is_named() -> None:
    asked = drafting("mtp", options={"prompt_lookup_min": 2, "prompt_lookup_max": 3})
    assert said(check_draft_settings, asked)[0].startswith("speculative warn: speculative.prompt_lookup_min means")
    assert fixes(check_draft_settings, asked) == ["remove prompt_lookup_min, prompt_lookup_max"]


def test_a_length_is_compared_only_with_one_that_is_given() -> None:
    assert said(check_draft_settings, drafting("mtp", options={"max_model_len": 101})) == []


@pytest.mark.parametrize(
    ("method", "layers", "tokens", "fit"),
    [
        ("mtp", 1, 3, None),
        ("mtp", 2, 2, None),
        ("mtp", 2, 1, None),
        ("mtp", 2, 3, 2),
        ("mtp", 2, 4, None),
        ("mtp", 3, 5, 3),
        ("mtp", 3, 7, 6),
        ("mtp", 4, 3, None),
        ("x_mtp", 2, 3, 2),
        ("dspark", 2, 3, None),
        ("mtp", None, 3, None),
    ],
)
def test_draft_tokens_are_a_multiple_of_the_layers_that_draft_them(
    method: str, layers: int | None, tokens: int, fit: int | None
) -> None:
    model = ModelFacts("c", "X", "x", 4, layers or 0, None, None, None, None, False)
    facts = Facts() if layers is None else Facts(model=model)
    asked = drafting(method, tokens=tokens)
    text = f"speculative reject: {tokens} draft tokens are no multiple of the model's {layers} MTP layers"
    assert said(check_draft_settings, asked, facts) == ([text] if fit else [])
    assert fixes(check_draft_settings, asked, facts) == ([f"num_speculative_tokens: {fit}"] if fit else [])
    assert (
        said(check_draft_settings, replace(asked, speculation=replace(asked.speculation, method="none")), facts) == []
    )
