"""Rule `recompute-weight-tracking`: a patch that adds indexers is run with the engine's tracking of loaded weights.

Without it the loader of a quantised checkpoint does not look for parameters that were never filled, and an indexer that
the checkpoint lacks runs on whatever memory held, with no error.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.overlay.patch import Patch
from shardwright.resolve.deployment import Argument
from shardwright.resolve.json_flags import with_entry

RULE = "recompute-weight-tracking"

_FLAG = "--model-loader-extra-config"
_KEY = "enable_weights_track"


def with_weight_tracking(arguments: Sequence[Argument], patches: Sequence[Patch]) -> tuple[Argument, ...]:
    """The arguments with weight tracking on, where a patch makes layers compute that had no indexer."""
    if not any(patch.plan_effects.indexers_on_orphans for patch in patches):
        return tuple(arguments)
    return with_entry(arguments, _FLAG, _KEY, True, RULE)
