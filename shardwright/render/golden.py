"""The golden form of a deployment: argv in order and every env pair, free of where the project lies on this host."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from typing import Any

from shardwright.render.command import RenderedCommand
from shardwright.resolve.deployment import Deployment


def golden_text(deployment: Deployment, command: RenderedCommand, roots: Sequence[str]) -> str:
    """Stable JSON, one token per line. `roots` are the folders that paths are shown relative to."""
    # An installed package may lie below the project, so the deeper folder is taken off first.
    roots = sorted(roots, key=len, reverse=True)
    env = {pair.name: pair.value for pair in deployment.env}
    digest = deployment.digest
    data: dict[str, Any] = {
        "layout": deployment.name,
        "runtime": deployment.runtime,
        "argv": [_relative(token, roots) for part in command.parts if part.kind != "env" for token in part.tokens],
        "env": {name: _relative(env[name], roots) for name in sorted(env)},
        "secrets": list(deployment.secrets),
    }
    # The digest covers the same content, so it would only say twice that something changed.
    data["argv"] = [token.replace(digest, "<digest>").replace(digest[:8], "<digest8>") for token in data["argv"]]
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def golden_diff(golden: str, rendered: str, name: str) -> list[str]:
    """A unified diff by token, empty when there is no drift."""
    lines = difflib.unified_diff(
        golden.splitlines(), rendered.splitlines(), f"{name} (golden)", f"{name} (rendered)", lineterm="", n=1
    )
    return list(lines)


def _relative(token: str, roots: Sequence[str]) -> str:
    for root in roots:
        token = token.replace(root.rstrip("/") + "/", "")
        if token.endswith(f"={root.rstrip('/')}"):
            token = token[: -len(root.rstrip("/"))] + "."
    return token
