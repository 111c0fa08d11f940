"""Rule `overlay-compile-cache`: an engine with patches that shape its graph has compile caches of its own.

The engine's cache keys hold its version, its configuration and the text of traced files. A patch that decides which
layers exist, or what a stage receives, is in none of them, so an artefact of the unpatched engine would be taken for
the patched one's. `additional_config` is part of every key, and the cache's root is set apart as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.layout.provenance import Origin
from shardwright.layout.schema import Layout
from shardwright.overlay.patch import Patch
from shardwright.resolve.deployment import Argument, EnvPair
from shardwright.resolve.json_flags import with_entry

RULE = "overlay-compile-cache"
CACHE_ENV = "VLLM_CACHE_ROOT"
CONFIG_KEY = "shardwright_overlay"

_FLAG = "--additional-config"
_DEFAULT_ROOT = "~/.cache/vllm"


def needs_own_cache(patches: Sequence[Patch]) -> bool:
    """Whether one of them shapes the graph."""
    return any(patch.shapes_graph for patch in patches)


def cache_env(layout: Layout, patches: Sequence[Patch], overlay_key: str) -> tuple[EnvPair, ...]:
    """A cache folder named by engine and overlay; a root that the layout itself sets is left as it is."""
    if CACHE_ENV in layout.env or not needs_own_cache(patches):
        return ()
    return (EnvPair(CACHE_ENV, f"{_DEFAULT_ROOT}/{overlay_key}", Origin("rule", RULE)),)


def with_cache_key(arguments: Sequence[Argument], overlay_key: str) -> tuple[Argument, ...]:
    """The arguments with the overlay's key in `--additional-config`, beside what the layout says there."""
    return with_entry(arguments, _FLAG, CONFIG_KEY, overlay_key, RULE)
