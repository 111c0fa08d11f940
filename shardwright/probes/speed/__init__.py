"""How fast, step by step: TTFT, ITL, step time, acceptance and prefill."""
