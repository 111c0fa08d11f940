"""Flags that hide in a file, and a scheduler step that is smaller than the requests in it."""

from __future__ import annotations

import pytest
from deployed import deployed, said

from shardwright.facts.facts import Facts
from shardwright.facts.positions import Positions
from shardwright.facts.shape import ModelShape
from shardwright.gates.hidden import check_batch_size, check_config_file


def test_flags_in_a_file_are_not_passed_over() -> None:
    assert said(check_config_file, deployed("--config /srv/serve.yaml"), Facts()) == [
        "config-file reject: --config /srv/serve.yaml brings flags from a file"
    ]


def test_no_file_is_nothing_to_refuse() -> None:
    assert said(check_config_file, deployed("--block-size 64"), Facts()) == []


@pytest.mark.parametrize("tokens", ["255", "0"])
def test_a_step_below_the_requests_is_refused(tokens: str) -> None:
    found = said(check_batch_size, deployed(f"--max-num-batched-tokens {tokens}", "--max-num-seqs 256"), Facts())
    assert found == [f"batch-size reject: max_num_batched_tokens {tokens} is below max_num_seqs 256"]


@pytest.mark.parametrize(
    "flags",
    [
        ("--max-num-batched-tokens 256", "--max-num-seqs 256"),
        ("--max-num-batched-tokens 8k", "--max-num-seqs 1024"),
        ("--max-num-batched-tokens 8",),
        ("--max-num-seqs 256",),
        ("--max-num-batched-tokens many", "--max-num-seqs 256"),
    ],
)
def test_a_step_that_holds_the_requests_is_taken(flags: tuple[str, ...]) -> None:
    assert said(check_batch_size, deployed(*flags), Facts()) == []


@pytest.mark.parametrize(
    ("flags", "length"),
    [
        (("--max-num-batched-tokens 4096", "--no-enable-chunked-prefill", "--max-model-len 4096"), None),
        (("--max-num-batched-tokens 4096", "--no-enable-chunked-prefill", "--max-model-len 4097"), 4097),
        (("--max-num-batched-tokens 4096", "--no-enable-chunked-prefill"), 8192),
        (("--max-num-batched-tokens 4096", "--enable-chunked-prefill"), None),
        (("--max-num-batched-tokens 4096",), None),
        # Without it the engine makes the step as large as the longest prompt.
        (("--no-enable-chunked-prefill",), None),
    ],
)
def test_a_prompt_that_is_not_cut_fits_one_step(flags: tuple[str, ...], length: int | None) -> None:
    facts = Facts(shape=ModelShape("c", positions=Positions(8192, "max_position_embeddings")))
    found = said(check_batch_size, deployed(*flags), facts)
    text = f"max_num_batched_tokens 4096 is below max_model_len {length}, and prompts are not cut into chunks"
    assert found == ([f"batch-size reject: {text}"] if length else [])
