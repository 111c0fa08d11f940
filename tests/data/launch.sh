#!/usr/bin/env bash
# A launch as it is found in a README: variables, a list of flags, and one backslash too few.
set -euo pipefail

MODEL=${MODEL:-/models/GLM-5.3-W4A16}
FLAGS=(
  --served-model-name glm-5.3
  --max-model-len "${MAX_MODEL_LEN:-524288}"   # tokens
)

docker run -d --name glm53 --gpus all --ipc=host -p 8000:8000 \
  -v /models:/models:ro \
  -e VLLM_PP_LAYER_PARTITION=41,37 \
  -e HF_TOKEN \
  vllm-sm80-sparse-mla:0.30.0 \
  vllm serve "$MODEL" -tp 4 -pp 2 "${FLAGS[@]}" \
  --speculative-config '{"method":"mtp","num_speculative_tokens":3}'
  --enable-auto-tool-choice --tool-call-parser glm47
