"""Greedy answers to two fixed prompts with logprobs of answer and prompt: `generate.py MODEL TP OUT.json [METHOD]`.

With a speculative METHOD two tokens are drafted, prompts have no logprobs, and OUT.drafts.json counts the drafts.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path


def main() -> None:
    from vllm import LLM, SamplingParams

    model, tp, out = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    drafts = {"method": sys.argv[4], "num_speculative_tokens": 2} if len(sys.argv) > 4 else None
    engine = LLM(
        model=model,
        tensor_parallel_size=tp,
        dtype="bfloat16",
        max_model_len=1024,
        max_num_seqs=4,
        max_num_batched_tokens=1024,
        enforce_eager=True,
        skip_tokenizer_init=True,
        kv_cache_dtype="fp8",
        enable_prefix_caching=False,
        distributed_executor_backend="mp" if tp > 1 else None,
        speculative_config=drafts,
        disable_log_stats=not drafts,
    )
    random.seed(1)
    prompts = [{"prompt_token_ids": [random.randrange(2, 512) for _ in range(length)]} for length in (37, 300)]
    sampling = SamplingParams(
        temperature=0,
        max_tokens=16,
        ignore_eos=True,
        logprobs=1,
        prompt_logprobs=None if drafts else 0,
        detokenize=False,
    )
    answers = []
    for result in engine.generate(prompts, sampling):
        answer = result.outputs[0]
        chosen = [step[token].logprob for step, token in zip(answer.logprobs, answer.token_ids, strict=True)]
        prompt = [
            step[token].logprob
            for step, token in zip((result.prompt_logprobs or [])[1:], result.prompt_token_ids[1:], strict=not drafts)
        ]
        answers.append({"tokens": list(answer.token_ids), "logprobs": chosen, "prompt_logprobs": prompt})
    out.write_text(json.dumps(answers))
    if drafts:
        counted = {metric.name: getattr(metric, "value", None) for metric in engine.get_metrics()}
        counts = {name: value for name, value in counted.items() if name.startswith("vllm:spec_decode_num")}
        out.with_suffix(".drafts.json").write_text(json.dumps(counts))


if __name__ == "__main__":
    main()
