"""Another implementation's opinion of an answer: the model library's own GLM, with FP8 keys put into its indexer.

    python oracle.py MODEL ANSWERS.json PROMPTS    prints for each of the first PROMPTS the largest logprob difference

Two engines that share a fault agree with each other; this one shares no attention code with them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers.models.glm_moe_dsa.modeling_glm_moe_dsa as glm
from generate import prompts
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "plugins"))
from dsa_reference.indexer import quantise


def rounded(values: torch.Tensor) -> torch.Tensor:
    quantised, scales = quantise(values, 128)
    return quantised.float() * scales


def index(
    self: Any,
    hidden_states: torch.Tensor,
    q_resid: torch.Tensor,
    position_embeddings: tuple[torch.Tensor, torch.Tensor],
    attention_mask: torch.Tensor,
    *_unused: Any,
    **_ignored: Any,
) -> torch.Tensor:
    batch, length, _width = hidden_states.shape
    cos, sin = position_embeddings
    rope = self.qk_rope_head_dim
    query = self.wq_b(q_resid).view(batch, length, self.n_heads, self.head_dim)
    key = self.k_norm(self.wk(hidden_states)).unsqueeze(2)
    turned_query, turned_key = glm.apply_rotary_pos_emb_interleave(
        query[..., :rope], key[..., :rope], cos, sin, unsqueeze_dim=2
    )
    query = rounded(torch.cat([turned_query, query[..., rope:]], -1))
    key = rounded(torch.cat([turned_key, key[..., rope:]], -1).squeeze(2))
    scores = torch.relu(torch.matmul(query, key.transpose(-1, -2).unsqueeze(1)))
    weights = self.weights_proj(hidden_states) * self.softmax_scale * self.n_heads**-0.5
    scores = torch.matmul(weights.unsqueeze(-2), scores).squeeze(-2)
    if attention_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attention_mask, float("-inf"))
    else:
        scores = scores + attention_mask
    return scores.topk(min(self.index_topk, scores.shape[-1]), dim=-1).indices.to(torch.int32)


def main() -> None:
    model_path, answers, count = sys.argv[1], json.loads(Path(sys.argv[2]).read_text()), int(sys.argv[3])
    glm.GlmMoeDsaIndexer.forward = index
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32, attn_implementation="eager").eval()
    for prompt, answer in list(zip(prompts(), answers["single"], strict=True))[:count]:
        sequence = torch.tensor([prompt + answer["tokens"]])
        with torch.no_grad():
            logprobs = torch.log_softmax(model(sequence, use_cache=False).logits.float(), -1)[0]
        expected = logprobs[:-1].gather(1, sequence[0, 1:, None])[:, 0].tolist()
        found = answer["prompt_logprobs"] + answer["logprobs"]
        print(max(abs(one - other) for one, other in zip(expected, found, strict=True)))


if __name__ == "__main__":
    main()
