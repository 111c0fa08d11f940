"""Run inside an engine's own interpreter: what lies there, what it imports, which class serves a model.

A script of its own, sent with `python3 -c`; it imports nothing of ours. Its argument is JSON, its last line of output
MARK and JSON. `lock` of a module is what the running code says of itself, so old bytecode of a new file shows.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import sys
from pathlib import Path

MARK = "shardwright-inspection "


def digest(path: str) -> str | None:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None


def imported(name: str) -> dict[str, object]:
    try:
        module = importlib.import_module(name)
    except Exception as error:
        return {"file": None, "series": None, "error": f"{type(error).__name__}: {error}"[:200]}
    footer = getattr(module, "__overlay__", None)
    series = footer.get("series") if isinstance(footer, dict) else None
    return {"file": getattr(module, "__file__", None), "series": series, "error": ""}


def served(architecture: str) -> dict[str, object]:
    try:
        from vllm.model_executor.models.registry import ModelRegistry

        found = ModelRegistry.models[architecture].load_model_cls()
    except Exception as error:
        return {"classes": [], "error": f"{type(error).__name__}: {error}"[:200]}
    return {"classes": [f"{base.__module__}:{base.__qualname__}" for base in found.__mro__], "error": ""}


def inspect(request: dict[str, list[str]]) -> dict[str, object]:
    spec = importlib.util.find_spec("vllm")
    root = spec.submodule_search_locations[0] if spec and spec.submodule_search_locations else ""
    answer: dict[str, object] = {
        "root": root,
        "files": {relative: digest(f"{root}/{relative}") for relative in request["files"]},
    }
    if request["modules"] or request["models"]:
        answer["imports"] = {name: imported(name) for name in request["modules"]}
        answer["models"] = {name: served(name) for name in request["models"]}
    return answer


if __name__ == "__main__":
    result = inspect(json.loads(sys.argv[1]))
    sys.stdout.write(f"\n{MARK}{json.dumps(result)}\n")
