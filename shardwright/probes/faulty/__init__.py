"""A bundled OpenAI-compatible server that is healthy or has exactly one known fault, so that probes can be tested."""
