"""The catalogue of faults: what each does, where it was seen in public, and which probe must say so, and how."""

from __future__ import annotations

from dataclasses import replace

from shardwright.probes.faulty import misbehave as m
from shardwright.probes.faulty.behaviour import HEALTHY, Behaviour
from shardwright.probes.faulty.expected import EXPECTED
from shardwright.probes.faulty.fault import Fault
from shardwright.probes.faulty.wire_faults import WIRE_FAULTS

_MODEL_FAULTS = (
    Fault(
        "pp-long-needle",
        "a pipeline of two finds nothing in long prompts",
        "vllm-project/vllm#18267",
        Behaviour(script=m.when(m.past_deep, m.no_code)),
    ),
    Fault(
        "index-crash",
        "a stage that starts on a shared layer fails on prompts past index_topk",
        "sgl-project/sglang#28537",
        Behaviour(refuses=m.refuse(500, "'NoneType' object is not subscriptable", m.past_index)),
    ),
    Fault(
        "stale-index",
        "the same boundary read from a stale buffer: loops, and another answer each time past index_topk",
        "baidu/vLLM-Kunlun#480",
        Behaviour(
            script=lambda script, s: m.sometimes(0.21, m.loop)(m.when(m.past_index, m.other_way)(script, s), s),
            scores=m.unstable_past_index,
        ),
    ),
    Fault(
        "doubled-words",
        "columns cut off at a pipeline boundary with drafts: words come twice",
        "vllm-project/vllm#49355",
        Behaviour(script=m.doubled_words),
    ),
    Fault(
        "draft-embedding",
        "the draft head's embedding is not initialised: no draft is accepted, the text is right",
        "vllm-project/vllm#46994",
        Behaviour(acceptance=(0.0, 0.0, 0.0)),
    ),
    Fault(
        "acceptance-drop",
        "acceptance falls from 45 % to 8 %",
        "syv-ai/qwen38-27b-rtx3090#160",
        Behaviour(acceptance=(0.08, 0.05, 0.02)),
    ),
    Fault(
        "first-draft-dead",
        "the first draft place is right in 1 to 2 % even where text is copied",
        "vllm-project/vllm#55605",
        Behaviour(acceptance=(0.015, 0.5, 0.4)),
    ),
    Fault(
        "random-prompts",
        "acceptance is low on random prompts only: none of the server's faults",
        "vllm-project/vllm#33497",
        HEALTHY,
    ),
    Fault(
        "multi-turn-garbage",
        "one turn is fine, later turns are one character",
        "vllm-project/vllm#38652",
        Behaviour(script=m.when(lambda s: s.asked.turns > 1 or len(s.asked.messages) > 2, m.marks)),
    ),
    Fault(
        "fp8-cache-drift",
        "answers grow tenfold and cannot be read",
        "vllm-project/vllm#13133",
        Behaviour(script=m.sometimes(0.4, m.endless_salad)),
    ),
    Fault(
        "topology-salad",
        "a topology whose shards do not fit: words in no order",
        "vllm-project/vllm#47528",
        Behaviour(script=m.word_salad, scores=m.another_model),
    ),
    Fault(
        "padded-experts",
        "experts cut by the wrong unit: numbers are wrong, other answers do not end",
        "vllm-project/vllm#55649",
        Behaviour(script=m.wrong_numbers, scores=m.another_model),
    ),
    Fault(
        "nan-logits",
        "a broken all-reduce: one character, no draft accepted",
        "noonghunna/club-3090#922",
        Behaviour(script=m.one_character, acceptance=(0.0, 0.0, 0.0)),
    ),
    Fault(
        "topk-cliff",
        "sparse attention is right up to index_topk tokens and wrong beyond",
        "ml-explore/mlx-lm#1443",
        Behaviour(script=m.when(m.past_index, m.other_code)),
    ),
    Fault(
        "blind-indexer",
        "the indexer's scores are all zero in deep prompts",
        "ml-explore/mlx-lm#1454",
        Behaviour(script=m.when(m.past_deep, m.invented_code)),
    ),
    Fault(
        "residue-digit",
        "the last digit is wrong where the prompt length is 3 modulo 4 and thinking is off",
        "vllm-project/vllm#55927",
        Behaviour(script=m.when(lambda s: s.prompt_tokens % 4 == 3 and not s.asked.thinking, m.last_digit)),
    ),
    Fault(
        "lost-needles",
        "every fifth long prompt gets a coherent wrong answer",
        "local-inference-lab/vllm#182",
        Behaviour(script=m.when(lambda s: s.prompt_tokens > 200 and s.prompt_tokens % 5 < 2, m.invented_code)),
    ),
    Fault(
        "topk-race",
        "ties in the index are broken by chance: the same long request gives two answers",
        "vllm-project/vllm#50576",
        Behaviour(
            script=m.when(m.past_index, m.sometimes(0.7, lambda t, s: m.other_way(m.invented_code(t, s), s))),
            scores=m.unstable_past_index,
        ),
    ),
    Fault(
        "lost-characters",
        "copied ids lose a character, more often under load",
        "vllm-project/vllm#53257",
        Behaviour(script=m.drop_characters, least_s=0.02),
    ),
    Fault(
        "long-loops",
        "only answers of many hundred tokens loop",
        "sgl-project/sglang#33397",
        Behaviour(script=m.loop_when_long),
    ),
    Fault(
        "load-garbage",
        "more than two requests at a time give one word over and over",
        "vllm-project/vllm#28830",
        Behaviour(script=m.when(lambda s: s.running > 2, m.same_word), least_s=0.02),
    ),
    Fault(
        "cache-hit-salad",
        "a prefix that the cache holds gives words in no order",
        "vllm-project/vllm#53912",
        Behaviour(script=m.when(lambda s: s.cached_tokens > 64, m.word_salad)),
    ),
    Fault(
        "lost-brace",
        "streamed tool arguments lose their last character",
        "vllm-project/vllm#10781",
        Behaviour(events=m.lose_last_brace),
    ),
    Fault(
        "hidden-length",
        "a tool call cut off at max_tokens is reported as complete",
        "vllm-project/vllm#53269",
        Behaviour(generated=m.hide_length),
    ),
    Fault(
        "null-finish",
        "the finish reason never comes",
        "vllm-project/vllm#27572",
        Behaviour(generated=m.no_finish),
    ),
    Fault(
        "only-reasoning",
        "the whole answer is in the reasoning, the content is empty",
        "vllm-project/vllm#39103",
        Behaviour(script=m.all_reasoning),
    ),
    Fault(
        "think-in-text",
        "the reasoning stands in the content with its marks",
        "vllm-project/vllm#34625",
        Behaviour(script=m.thoughts_in_text),
    ),
    Fault(
        "responses-turn-2",
        "the second turn of a Responses round trip is refused",
        "vllm-project/vllm#45273",
        Behaviour(refuses=m.refuse(400, "validation errors for ResponseInputItem", m.brings_tool_result)),
    ),
    Fault(
        "garbled",
        "broken bytes from the first answer on",
        "vllm-project/vllm#49886",
        Behaviour(script=m.broken_bytes),
    ),
    Fault(
        "checkpoint-loops",
        "the checkpoint itself loops, on every engine",
        "vllm-project/vllm#31856",
        Behaviour(script=m.sometimes(0.3, m.loop)),
    ),
    Fault(
        "near-loops",
        "the same sentences over and over with small changes",
        "vllm-project/vllm#40080",
        Behaviour(script=m.sometimes(0.3, m.near_loop)),
    ),
    Fault(
        "call-markup",
        "the tool call stands as text in the content",
        "vllm-project/vllm#32152",
        Behaviour(script=m.markup_in_text),
    ),
    Fault(
        "no-arguments",
        "the tool call is lost",
        "vllm-project/vllm#31501",
        Behaviour(script=m.no_calls),
    ),
    Fault(
        "nan-logprobs",
        "log-probabilities are not numbers, the request fails",
        "vllm-project/vllm#13035",
        Behaviour(
            refuses=m.refuse(
                500,
                "Out of range float values are not JSON compliant: nan",
                lambda s: bool(s.asked.body.get("logprobs") or s.asked.body.get("prompt_logprobs") is not None),
            )
        ),
    ),
    Fault(
        "split-characters",
        "streamed characters of several bytes arrive broken",
        "vllm-project/vllm#48702",
        Behaviour(events=m.split_characters),
    ),
)

FAULTS: tuple[Fault, ...] = tuple(
    replace(fault, expected=EXPECTED[fault.id]) for fault in (*_MODEL_FAULTS, *WIRE_FAULTS)
)
"""Every fault with its expected outcomes."""


def behaviour_of(mode: str) -> Behaviour:
    """The behaviour of "healthy" or of a fault's id. Raises KeyError for another name."""
    return HEALTHY if mode == "healthy" else _BY_ID[mode].behaviour


_BY_ID = {fault.id: fault for fault in FAULTS}
