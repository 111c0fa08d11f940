"""Default rules, each by name: what they add is shown with the rule as its origin."""

from __future__ import annotations

from typing import Literal

from shardwright.facts.facts import Facts
from shardwright.facts.spec_support import SpecTable
from shardwright.facts.versions import version_in
from shardwright.layout.provenance import Origin
from shardwright.layout.schema import Layout
from shardwright.resolve.deployment import Argument, EnvPair, RuleNote, Speculation

RUNNER_ENV = "VLLM_USE_V2_MODEL_RUNNER"
PARTITION_ENV = "VLLM_PP_LAYER_PARTITION"
READY_TIMEOUT_ENV = "VLLM_ENGINE_READY_TIMEOUT_S"

_READY_MARGIN_S = 60


def runner_env(layout: Layout) -> EnvPair | None:
    """`pp-runner-v2`: PP > 1 on CUDA pins model runner V2; FORCE_V2_RUNNER decides where it is given.

    Unset, the engine falls back to V1 for what V2 does not support, with one log line; pinned, it raises. The CPU
    engine has no V2 runner (it needs Triton), so there the variable stays unset.
    """
    if layout.v2_runner is not None:
        return EnvPair(RUNNER_ENV, layout.v2_runner, layout.origin("v2_runner") or Origin("layout", layout.file))
    if RUNNER_ENV in layout.env:
        return None
    if layout.parallel.pipeline > 1 and layout.engine.platform == "cuda":
        return EnvPair(RUNNER_ENV, "1", Origin("rule", "pp-runner-v2"))
    return None


def ready_timeout_env(layout: Layout) -> EnvPair | None:
    """`engine-ready-timeout`: the engine's own limit lies above ours, so that `deploy wait` is the one that decides.

    The engine's default of 600 s is at the limit of the measured starts (540 to 670 s).
    """
    if READY_TIMEOUT_ENV in layout.env:
        return None
    value = str(layout.wait_timeout_s + _READY_MARGIN_S)
    return EnvPair(READY_TIMEOUT_ENV, value, Origin("rule", "engine-ready-timeout"))


def custom_all_reduce_argument(layout: Layout) -> Argument | None:
    """`tp2-custom-all-reduce-off`: at TP=2 the custom all-reduce crashes while CUDA graphs are profiled.

    Measured: custom_all_reduce.cuh:164 'invalid argument' across a pair without NVLink, which the engine does not
    switch off by itself.
    """
    spellings = ("disable_custom_all_reduce", "disable-custom-all-reduce")
    asked = any(layout.serve.get(key) is not None for key in spellings)
    if layout.engine.platform != "cuda" or layout.parallel.tensor != 2 or asked:
        return None
    return Argument(("--disable-custom-all-reduce",), Origin("rule", "tp2-custom-all-reduce-off"))


def effective_runner(platform: str, version: str, pinned: str | None) -> Literal["v1", "v2"]:
    """The model runner that the engine will use; `pinned` is the text of VLLM_USE_V2_MODEL_RUNNER, if any."""
    if platform == "cpu":
        return "v1"
    if pinned in ("0", "1"):
        return "v2" if pinned == "1" else "v1"
    return "v2" if version_in(version, ">=0.30") else "v1"


def _pinned_runner(layout: Layout) -> str:
    pair = runner_env(layout)
    return pair.value if pair else layout.raw("env", RUNNER_ENV) or ""


def decide_speculation(layout: Layout, facts: Facts, table: SpecTable) -> tuple[Speculation, tuple[RuleNote, ...]]:
    """`spec-method-auto`: `auto` becomes mtp where the model has MTP layers and the topology supports it, else none."""
    given = layout.speculative
    asked, tokens = given.method, given.draft_tokens
    origin = layout.origin("speculative", "method") or Origin("rule", "no-speculation")
    if asked != "auto":
        return Speculation(asked, asked, tokens, origin, given.model, given.options), ()
    rule = Origin("rule", "spec-method-auto")
    none = Speculation("none", asked, tokens, rule)
    if facts.model is None:
        note = RuleNote("spec-method-auto", "speculation off: the model's config is not known here", warn=True)
        return none, (note,)
    if facts.model.num_mtp_layers == 0:
        return none, ()
    if layout.parallel.pipeline > 1:
        runner = effective_runner(layout.engine.platform, layout.engine.vllm, _pinned_runner(layout))
        row = table.lookup("mtp", layout.engine.vllm, facts.model.model_type, runner)
        if row is None or row.support != "works":
            reason = row.why if row else f"support in vLLM {layout.engine.vllm} is not known"
            text = f"speculation off: mtp with PP={layout.parallel.pipeline}: {reason}"
            return none, (RuleNote("spec-method-auto", text, warn=True),)
    return Speculation("mtp", asked, tokens, rule, given.model, given.options), ()
