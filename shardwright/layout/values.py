"""Readers of single layout values that have a form of their own: names, addresses, paths, versions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from shardwright.connect.decode import Section

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_SECRET = re.compile(r"[A-Z_][A-Z0-9_]*", re.ASCII)
_VERSION = re.compile(r"[0-9]{1,6}\.[0-9]{1,6}(\.[0-9]{1,6})?(([.+-]|a|b|rc|dev).*)?", re.ASCII)
_CAPABILITY = re.compile(r"[0-9]{1,2}(\.[0-9]{1,2})?", re.ASCII)
_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)
_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{64})", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+\]", re.ASCII)


def layout_name(top: Section) -> str:
    """`name`: it also names containers and files."""
    name = top.text("name")
    if not _NAME.fullmatch(name):
        raise top.error(
            "name", f"{name[:120]!r} cannot name a container", fix="use up to 100 letters, digits, '-', '_' and '.'"
        )
    return name


def engine_version(section: Section) -> str:
    """`vllm`: a release such as 0.30.0, also 0.30 or 0.30.0+cpu."""
    version = section.text("vllm")
    if not _VERSION.fullmatch(version):
        raise section.error("vllm", f"{version!r} is not an engine version", fix='write vllm: "0.30.0"')
    return version


def image_name(section: Section, *, needed: bool) -> str | None:
    """`image`; with `needed` it may not be absent."""
    image = section.optional_text("image")
    if image is None and needed:
        raise section.error(
            "image", "the key is missing, and the docker runtime needs it", fix="set engine.image, or IMAGE"
        )
    if image is not None and (not image or image.startswith("-") or any(c.isspace() for c in image)):
        raise section.error("image", f"{image!r} cannot name an image", fix="write image: NAME:TAG")
    return image


def filled_text(section: Section, key: str) -> str:
    """A text that may not be empty."""
    text = section.text(key)
    if not text.strip():
        raise section.error(key, "the value is empty")
    return text


def compute_capability(section: Section) -> str:
    """`compute_capability` of the cards, such as 8.0."""
    capability = section.text("compute_capability")
    if not _CAPABILITY.fullmatch(capability):
        raise section.error(
            "compute_capability", f"{capability!r} is not a compute capability", fix='write compute_capability: "8.0"'
        )
    return capability


def absolute_path(section: Section, key: str) -> str | None:
    value = section.optional_text(key)
    if value is not None and not value.startswith("/"):
        raise section.error(key, f"{value!r} is not an absolute path")
    return value


def file_digest(section: Section, key: str) -> str | None:
    """A sha256 in hex, with or without `sha256:` before it."""
    value = section.optional_text(key)
    if value is None:
        return None
    found = _DIGEST.fullmatch(value)
    if found is None:
        raise section.error(key, f"{value[:80]!r} is not a sha256 digest", fix="write the 64 digits of sha256sum FILE")
    return found[1]


def published_address(section: Section) -> tuple[str, int, int]:
    """`publish` as host, host port and container port; the host defaults to the loopback address."""
    text = section.text("publish", "127.0.0.1:8000:8000")
    parts = text.rsplit(":", 2)
    ports = parts[-2:] if len(parts) > 1 else [parts[0], parts[0]]
    host = parts[0] if len(parts) == 3 else "127.0.0.1"
    fits = all(_PORT.fullmatch(port) and 0 < int(port) < 65536 for port in ports)
    if not fits or not _HOST.fullmatch(host):
        raise section.error("publish", f"{text!r} is not HOST:PORT:PORT", fix='write publish: "127.0.0.1:8000:8000"')
    return host, int(ports[0]), int(ports[1])


def layer_partition(section: Section) -> str | None:
    """`layer_partition`, a list or a text; kept as written, since judging it is a gate's work."""
    key = "layer_partition"
    value = section.any(key)
    if value is None or value == "":
        return None
    if isinstance(value, list):
        return ",".join(section.texts(key))
    if isinstance(value, Mapping):
        raise section.error(key, "expected a list, found a map", fix="write layer_partition: [41, 37]")
    return section.text(key)


def variables(top: Section) -> Mapping[str, Any]:
    """`env`: names of variables, and values that are no maps or lists."""
    values = top.free_map("env")
    for name, value in values.items():
        if not _VARIABLE.fullmatch(name):
            raise Section(top.document, ("env",), values).error(name, "not the name of a variable")
        if isinstance(value, Mapping | list):
            raise Section(top.document, ("env",), values).error(name, "expected text; quote JSON values")
    return values


def secret_names(top: Section, env: Mapping[str, Any]) -> tuple[str, ...]:
    """`secrets`: names of variables in capitals, so that a token in their place is refused, and never shown."""
    names = top.texts("secrets")
    for name in names:
        if not _SECRET.fullmatch(name):
            raise top.error(
                "secrets",
                "an entry is not a variable name in capital letters",
                why="secrets are given by name only and are read from the environment at start",
                fix="write secrets: [HF_TOKEN]",
            )
        if env.get(name) is not None:
            raise top.error(
                "secrets",
                f"{name} has a value in env too",
                why="what stands in env is shown in the command line and in golden files",
                fix=f"remove {name} from env",
            )
    return names


def patch_names(top: Section) -> tuple[str, ...]:
    names = top.texts("patches")
    for name in names:
        if not _NAME.fullmatch(name):
            raise top.error("patches", f"{name[:120]!r} is not the name of a patch", fix="deploy patch list")
    return names


def forced_runner(top: Section) -> str | None:
    """`v2_runner`: 1 or 0; None and the empty text leave the choice to the rule."""
    value = top.optional_text("v2_runner")
    if value in (None, ""):
        return None
    if value not in ("0", "1"):
        raise top.error("v2_runner", f"{value!r} is neither 1 nor 0")
    return value
