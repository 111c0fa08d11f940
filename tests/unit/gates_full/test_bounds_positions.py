"""Borders of max_model_len against the positions that a model's config gives, as each engine version scales them."""

from __future__ import annotations

from typing import Any

import pytest
from deployed import deployed, fixes, said

from shardwright.errors import UsageError
from shardwright.facts.facts import Facts
from shardwright.facts.positions import Positions, Rope, positions_of
from shardwright.facts.shape import ModelShape
from shardwright.gates.positions import check_max_model_len

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1000}
OLD, NEW = "0.29.9", "0.30.0"


def longest(config: dict[str, Any], version: str = NEW, *flags: str) -> int | None:
    """The longest request that the gate lets through; None where it says nothing of any."""
    facts = Facts(shape=ModelShape("c", positions=positions_of(config)))
    engine = {"vllm": version}

    def fits(length: int) -> bool:
        found = said(check_max_model_len, deployed(f"--max-model-len {length}", *flags, engine=engine), facts)
        assert [text[:21] for text in found] in ([], ["max-model-len reject:"])
        return not found

    if fits(1_000_000):
        return None
    low, high = 1, 1_000_000
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        ({"max_position_embeddings": 1000}, 1000),
        ({"max_position_embeddings": 1000, "n_positions": 900}, 900),
        ({"seq_length": 800, "max_position_embeddings": 1000}, 800),
        ({"max_position_embeddings": 1000, "model_max_length": 5000}, 5000),
        ({"max_position_embeddings": 1000, "model_max_length": 0}, 1000),
        ({}, None),
        ({"max_position_embeddings": None}, None),
        ({"max_position_embeddings": True}, None),
        ({"max_position_embeddings": -1}, None),
        ({"max_position_embeddings": 1000, "rope_scaling": {"type": "linear", "factor": 4}}, 4000),
        ({"max_position_embeddings": 1000, "rope_scaling": {"rope_type": "dynamic", "factor": 2.5}}, 2500),
        ({"max_position_embeddings": 1000, "rope_parameters": {"rope_type": "linear", "factor": 4.0}}, 4000),
        ({"max_position_embeddings": 1000, "rope_parameters": {"full": {"rope_type": "linear", "factor": 3}}}, 3000),
        ({"max_position_embeddings": 1000, "rope_scaling": {"rope_type": "linear", "factor": None}}, 1000),
        ({"max_position_embeddings": 1000, "rope_scaling": {"rope_type": "linear", "factor": True}}, 1000),
        ({"max_position_embeddings": 1000, "rope_scaling": {"rope_type": "linear", "factor": 0}}, 1000),
        ({"max_position_embeddings": 1000, "rope_scaling": {"mrope_section": [1, 2]}}, 1000),
        ({"max_position_embeddings": 1000, "rope_scaling": {"rope_type": "linear", "factor": 0.5}}, 1000),
        *(
            ({"max_position_embeddings": 1000, "rope_scaling": {"rope_type": kind, "factor": 4.0}}, 1000)
            for kind in ("su", "longrope", "llama3")
        ),
        (
            {
                "max_position_embeddings": 1000,
                "model_type": "gemma3_text",
                "rope_scaling": {"type": "linear", "factor": 4},
            },
            1000,
        ),
    ],
)
def test_positions_are_derived_as_the_engine_derives_them(config: dict[str, Any], tokens: int | None) -> None:
    assert longest(config) == longest(config, OLD) == tokens


@pytest.mark.parametrize("kind", ["yarn", "deepseek_yarn", "deepseek_llama_scaling"])
def test_yarn_stretches_the_positions_before_0_30_only(kind: str) -> None:
    config = {"max_position_embeddings": 1000, "rope_scaling": {**YARN, "rope_type": kind}}
    assert (longest(config, OLD), longest(config, NEW)) == (4000, 1000)
    longer = {"max_position_embeddings": 2000, "rope_scaling": {**YARN, "rope_type": kind}}
    assert (longest(longer, OLD), longest(longer, NEW)) == (4000, 2000)
    without = {"max_position_embeddings": 1000, "rope_scaling": {"rope_type": kind, "factor": 2.0}}
    assert (longest(without, OLD), longest(without, NEW)) == (2000, 1000)


@pytest.mark.parametrize(
    ("window", "flags", "tokens"),
    [
        (400, ("--disable-sliding-window",), 400),
        (1000, ("--disable-sliding-window",), 1000),
        (400, (), 1000),
        (4000, ("--disable-sliding-window",), 1000),
        (None, ("--disable-sliding-window",), 1000),
    ],
)
def test_a_window_without_sliding_is_all_that_there_is(window: int | None, flags: tuple[str, ...], tokens: int) -> None:
    config = {"max_position_embeddings": 1000, "sliding_window": window}
    assert longest(config, NEW, *flags) == tokens
    assert longest({**config, "use_sliding_window": False}, NEW, *flags) == 1000


def test_the_key_that_decides_is_named() -> None:
    asked = deployed("--max-model-len 1001", "--disable-sliding-window")
    for window, key in ((999, "sliding_window"), (1000, "max_position_embeddings"), (None, "max_position_embeddings")):
        positions = Positions(1000, "max_position_embeddings", sliding_window=window)
        (found,) = said(check_max_model_len, asked, Facts(shape=ModelShape("c", positions=positions)))
        assert found.endswith(f"positions of the model ({key})")


FACTS = Facts(shape=ModelShape("c", positions=Positions(1000, "max_position_embeddings")))


@pytest.mark.parametrize(
    ("allow", "verdict"), [(None, "reject"), ("0", "reject"), ("1", "warn"), ("True", "warn"), (" true ", "warn")]
)
def test_the_engines_own_switch_turns_the_refusal_into_a_warning(allow: str | None, verdict: str) -> None:
    env = {} if allow is None else {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": allow}
    text = "max_model_len 1,001 is above the 1,000 positions of the model (max_position_embeddings)"
    assert said(check_max_model_len, deployed("--max-model-len 1001", env=env), FACTS) == [
        f"max-model-len {verdict}: {text}"
    ]
    (found,) = check_max_model_len(deployed("--max-model-len 1001", env=env), None, FACTS)  # type: ignore[arg-type]
    assert found.evidence == "c" and found.why


def test_what_leaves_the_length_to_the_engine_is_not_judged() -> None:
    for flags in ((), ("--max-model-len auto",), ("--max-model-len -1",), ("--max-model-len 1k",)):
        assert said(check_max_model_len, deployed(*flags), FACTS) == []
    asked = deployed("--max-model-len 1001")
    assert (
        said(check_max_model_len, asked, Facts()) == said(check_max_model_len, asked, Facts(shape=ModelShape(""))) == []
    )
    assert said(check_max_model_len, deployed("--max-model-len 1K"), FACTS) != []
    assert said(check_max_model_len, deployed("--max-model-len x"), FACTS)[0].startswith("max-model-len reject: 'x'")


def test_the_way_out_names_the_length_and_where_yarn_reaches_that_far_the_override() -> None:
    assert fixes(check_max_model_len, deployed("--max-model-len 1001"), FACTS) == ["MAX_MODEL_LEN=1000"]
    rope = Positions(1000, "max_position_embeddings", (Rope("yarn", 4.0, 1000),))
    facts = Facts(shape=ModelShape("c", positions=rope))
    (near,) = fixes(check_max_model_len, deployed("--max-model-len 4000"), facts)
    assert near == (
        "MAX_MODEL_LEN=1000; or hf_overrides: {max_position_embeddings: 4000}, which this version wants beside YaRN's "
        "factor"
    )
    assert fixes(check_max_model_len, deployed("--max-model-len 4001"), facts) == ["MAX_MODEL_LEN=1000"]
    old = deployed("--max-model-len 4001", engine={"vllm": OLD})
    assert fixes(check_max_model_len, old, facts) == ["MAX_MODEL_LEN=4000"]
    other = Positions(1000, "max_position_embeddings", (Rope("linear", 2.0, 9000), Rope("yarn", 4.0, None)))
    plain = fixes(check_max_model_len, deployed("--max-model-len 2001"), Facts(shape=ModelShape("c", positions=other)))
    assert plain == ["MAX_MODEL_LEN=2000"]


def test_a_length_beyond_reason_is_refused_as_the_flag_is() -> None:
    with pytest.raises(UsageError):
        from shardwright.resolve.counts import parse_count

        parse_count("9" * 99)
    assert said(check_max_model_len, deployed(f"--max-model-len {'9' * 99}"), FACTS)[0].startswith(
        "max-model-len reject: "
    )
