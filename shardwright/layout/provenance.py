"""Where a value came from: every setting of a deployment can be traced to the line or rule that set it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

OriginKind = Literal["layout", "env", "set", "rule", "patch"]


class Origin(Struct, frozen=True):
    """The source of one value.

    `where` is `file:line` for a layout, the variable for an environment override, the `--set` text, the name
    of the default rule, or the id of the patch.
    """

    kind: OriginKind
    where: str

    def __str__(self) -> str:
        prefix = {"layout": "", "env": "env ", "set": "--set ", "rule": "rule ", "patch": "patch "}[self.kind]
        return prefix + self.where
