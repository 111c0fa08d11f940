"""A stand-in for the vllm package: as much as the local runtime looks at."""
