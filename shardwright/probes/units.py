"""Cut streamed text into units for the loop detector, where a server does not give token ids."""

from __future__ import annotations

import re

_LONGEST_RUN = 16
_IDEOGRAPH = "\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_UNIT = re.compile(
    rf"[{_IDEOGRAPH}]"
    rf"|[^\W{_IDEOGRAPH}]{{1,{_LONGEST_RUN}}}"
    rf"|([^\w\s])\1{{0,{_LONGEST_RUN - 1}}}"
    rf"|[^\S\n]{{2,{_LONGEST_RUN}}}"
    r"|\n"
)
_COMPLETE = re.compile(rf"[{_IDEOGRAPH}\n]")


class UnitSplitter:
    """Words, single ideographs, runs of one mark, line ends, and runs of blanks; a single blank does not count.

    The cuts do not depend on how the text arrives: a unit that could still grow waits for the next piece. Long runs
    are cut at 16 characters, so that a loop without any blank shows too. Runs of blanks count since in drawings and
    tables the place of a mark is what differs.
    """

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, text: str) -> list[str]:
        """The units that `text` completes."""
        text = self._rest + text
        self._rest = ""
        units = []
        end = 0
        for match in _UNIT.finditer(text):
            unit, end = match.group(), match.end()
            if end == len(text) and not _COMPLETE.fullmatch(unit):
                self._rest = unit
            else:
                units.append(unit)
        self._rest = self._rest or text[end:]
        return units

    def finish(self) -> list[str]:
        """The unit that was waiting for more text."""
        rest, self._rest = self._rest, ""
        return [] if len(rest) < 2 and not rest.strip() else [rest]


def split_units(text: str) -> list[str]:
    """All units of a finished text."""
    splitter = UnitSplitter()
    return splitter.feed(text) + splitter.finish()
