"""Patch fragments to whole overlay files, lock and verification; knows nothing of layouts."""
