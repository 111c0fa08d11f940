"""Words of a launch as they may be shown to whoever looks over a shoulder."""

from __future__ import annotations

from shardwright.gates.secret_texts import looks_secret, names_secret


def shown(text: str) -> str:
    """The text itself, or its name alone where it holds a secret."""
    name, equals, value = text.partition("=")
    if not looks_secret(text) and not (equals and names_secret(name, value)):
        return text
    return f"{name}=…" if equals and not looks_secret(name) else "…"
