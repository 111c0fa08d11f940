"""What the MTP draft's config becomes for a model folder: `draft_config.py MODEL TP [OVERRIDES]`, as JSON."""

from __future__ import annotations

import json
import sys


def main() -> None:
    from vllm.config import ModelConfig, ParallelConfig
    from vllm.config.speculative import SpeculativeConfig

    model, tp, overrides = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]) if len(sys.argv) > 3 else None
    target = ModelConfig(
        model=model, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=1024, hf_overrides=overrides or {}
    )
    parallel = ParallelConfig(tensor_parallel_size=tp, distributed_executor_backend="mp")
    target.verify_with_parallel_config(parallel)
    try:
        speculative = SpeculativeConfig(
            method="mtp", num_speculative_tokens=2, target_model_config=target, target_parallel_config=parallel
        )
    except ValueError as error:
        sys.stdout.write(json.dumps({"error": str(error)}) + "\n")
        return
    draft = speculative.draft_model_config.hf_config
    sys.stdout.write(
        json.dumps(
            {
                "architectures": draft.architectures,
                "heads": draft.num_attention_heads,
                "groups": draft.o_groups,
                "routed": draft.moe_intermediate_size,
                "plan": getattr(draft, "virtual_tp", None),
            }
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
