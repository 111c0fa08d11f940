"""The text of a layout from its keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from shardwright.campaign.importing.engine_flags import Written
from shardwright.connect.strict_yaml import load_yaml
from shardwright.layout.schema import decode_layout


class _Dumper(yaml.SafeDumper):
    pass


def _number(dumper: yaml.SafeDumper, value: Written) -> yaml.Node:
    kind = "float" if "." in value else "int"
    return dumper.represent_scalar(f"tag:yaml.org,2002:{kind}", str(value))


_Dumper.add_representer(Written, _number)


def layout_text(layout: Mapping[str, Any], source: str) -> str:
    """YAML in the order of the keys; numbers stand as they were written."""
    body = yaml.dump(dict(layout), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
    return f"# Read from {source}.\n{body}"


def check_layout(text: str) -> None:
    """Read a layout back. Raises UsageError where a value of the launch is none that a layout can have."""
    decode_layout(load_yaml(text, "the layout of this launch"), "the layout of this launch")
