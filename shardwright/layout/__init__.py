"""What was asked: the YAML schema, extends, overrides, provenance; knows no vLLM rules."""
