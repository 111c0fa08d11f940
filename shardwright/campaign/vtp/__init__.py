"""Odd tensor parallelism: plan it, write the sidecar, climb the ladder of proof."""
