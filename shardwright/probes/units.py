"""Cut streamed text into units for the loop detector, where a server does not give token ids."""

from __future__ import annotations

import re

_LONGEST_RUN = 16
_IDEOGRAPH = "\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_UNIT = re.compile(
    rf"[{_IDEOGRAPH}]"
    rf"|[^\W{_IDEOGRAPH}]{{1,{_LONGEST_RUN}}}"
    rf"|([^\w\s])\1{{0,{_LONGEST_RUN - 1}}}"
    r"|\n"
)
_COMPLETE = re.compile(rf"[{_IDEOGRAPH}\n]")


class UnitSplitter:
    """Words, single ideographs, runs of one mark, and line ends; blanks between them do not count.

    The cuts do not depend on how the text arrives: a unit that could still grow waits for the next piece. Long runs
    are cut at 16 characters, so that a loop without any blank shows too.
    """

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, text: str) -> list[str]:
        """The units that `text` completes."""
        text = self._rest + text
        self._rest = ""
        units = []
        for match in _UNIT.finditer(text):
            unit = match.group()
            if match.end() == len(text) and not _COMPLETE.fullmatch(unit):
                self._rest = unit
            else:
                units.append(unit)
        return units

    def finish(self) -> list[str]:
        """The unit that was waiting for more text."""
        rest, self._rest = self._rest, ""
        return [rest] if rest else []


def split_units(text: str) -> list[str]:
    """All units of a finished text."""
    splitter = UnitSplitter()
    return splitter.feed(text) + splitter.finish()
