"""A reference for sparse attention with shared indexers on the CPU engine, in plain torch and without a patched file.

The CPU engine has no backend for these models, so what happens to their index rows at a pipeline boundary could not be
tested without a GPU. Put this folder's parent on PYTHONPATH: the engine finds the plugin through the distribution
beside it, in every worker process.
"""

from __future__ import annotations


def platform() -> str:
    """The platform plugin: the CPU platform with a sparse backend."""
    return "dsa_reference.platform.ReferencePlatform"


def install() -> None:
    """The general plugin: the indexer."""
    from dsa_reference import indexer

    indexer.install()
