"""Run one engine on the prompts and write what it answered; a script, so that each engine has its own process.

    python generate.py MODEL OUT.json [--split 4,8] [--track-weights]

`single`: the prompts one by one; `batch`: together; `again`: one by one once more, with all that traffic behind them.
Each answer has tokens, their logprobs, and the logprobs of the prompt.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from pathlib import Path
from typing import Any

PROMPT_LENGTHS = (12, 40, 100)
ANSWER_TOKENS = 8
SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


def prompts() -> list[list[int]]:
    draw = random.Random(1)
    return [[draw.randrange(2, 512) for _token in range(length)] for length in PROMPT_LENGTHS]


def answer(prompt: list[int], output: Any) -> dict[str, Any]:
    completion = output.outputs[0]
    tokens = list(completion.token_ids)
    return {
        "tokens": tokens,
        "logprobs": [by_token[token].logprob for by_token, token in zip(completion.logprobs, tokens, strict=True)],
        "prompt_logprobs": [
            by_token[token].logprob for by_token, token in zip(output.prompt_logprobs[1:], prompt[1:], strict=True)
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--split", default="")
    parser.add_argument("--track-weights", action="store_true")
    options = parser.parse_args()
    os.environ.update(SETTINGS)
    if options.split:
        os.environ["VLLM_PP_LAYER_PARTITION"] = options.split

    from vllm import LLM, SamplingParams

    engine = LLM(
        model=options.model,
        pipeline_parallel_size=options.split.count(",") + 1,
        dtype="float32",
        max_model_len=256,
        max_num_seqs=4,
        max_num_batched_tokens=256,
        enforce_eager=True,
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        model_loader_extra_config={"enable_weights_track": True} if options.track_weights else {},
    )
    sampling = SamplingParams(
        temperature=0, max_tokens=ANSWER_TOKENS, ignore_eos=True, logprobs=1, prompt_logprobs=0, detokenize=False
    )

    def ask(asked: list[list[int]]) -> list[dict[str, Any]]:
        requests = [{"prompt_token_ids": prompt} for prompt in asked]
        outputs = engine.generate(requests, sampling, use_tqdm=False)
        return [answer(prompt, output) for prompt, output in zip(asked, outputs, strict=True)]

    def one_by_one() -> list[dict[str, Any]]:
        return [ask([prompt])[0] for prompt in prompts()]

    rounds = {"single": one_by_one(), "batch": ask(prompts()), "again": one_by_one()}
    options.out.write_text(json.dumps(rounds))


if __name__ == "__main__":
    main()
