"""A small engine tree in memory, and the data of small patches."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WORKER = b'''\
"""A worker."""

import os


class Worker:
    def load(self):
        self.ready = False
        if self.ready:
            self.start()
        return self.ready

    def start(self):
        self.size = max(
            1,
            2,
        )
        return self.ready


class Other:
    def load(self):
        return self.ready
'''


@dataclass
class MemoryTree:
    """A source tree whose files are a dict."""

    files: dict[str, bytes] = field(default_factory=lambda: {"worker.py": WORKER})
    vllm_version: str = "0.30.0"
    identity: str = "memory:1"
    root: str = "/site/vllm"

    def read(self, relative: str) -> bytes:
        try:
            return self.files[relative]
        except KeyError:
            raise FileNotFoundError(relative) from None

    def exists(self, relative: str) -> bool:
        return any(name == relative or name.startswith(f"{relative}/") for name in self.files)


def edit(body: str = "body.pyfrag", **keys: Any) -> dict[str, Any]:
    """An edit of `Worker.load` that inserts before its `if`; keys given as None are left out."""
    base = {
        "id": "one",
        "op": "before",
        "body": body,
        "vllm": ">=0.30,<0.31",
        "module": "vllm.worker",
        "symbol": "Worker.load",
        "find": "if self.ready:",
    }
    return {key: value for key, value in {**base, **keys}.items() if value is not None}


def patch_data(patch_id: str, edits: list[dict[str, Any]], /, **keys: Any) -> dict[str, Any]:
    return {
        "id": patch_id,
        "title": "A patch",
        "why": "to test",
        "upstream": {"status": "pending"},
        "inert_when": "never",
        "edits": edits,
        **keys,
    }


def new_module(name: str = "demo", **keys: Any) -> dict[str, Any]:
    """An edit that adds `vllm._overlay.<name>`."""
    return edit(id="new", op="new_module", module=f"vllm._overlay.{name}", symbol=None, find=None, **keys)


def write_patch(directory: Path, edits: list[dict[str, Any]], /, **keys: Any) -> Path:
    """Write a patch folder; JSON is YAML. `body` is the text of body.pyfrag, `bodies` that of other files."""
    bodies = {"body.pyfrag": keys.pop("body", "self.extra = 1\n"), **keys.pop("bodies", {})}
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in bodies.items():
        (directory / name).write_text(text)
    (directory / "patch.yaml").write_text(json.dumps(patch_data(directory.name, edits, **keys), indent=1))
    return directory
