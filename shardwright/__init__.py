"""Shardwright: proven vLLM deployments on topologies that stock vLLM does not serve correctly."""

__version__ = "0.1.0"
