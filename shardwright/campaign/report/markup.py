"""The few forms of HTML that a report is made of. Text is escaped here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from shardwright.campaign.overall import DECLARED_OUT, NOT_ASKED

UNKNOWN = "unknown"

_MARKS = {"pass": "✓", "fail": "✗", "open": "?", "none": "–"}
_TONES = {
    **dict.fromkeys(("PASS", "OK", "accept"), "pass"),
    **dict.fromkeys(("FAIL", "reject", "FAULT", "CONTROL_UNHEALTHY"), "fail"),
    **dict.fromkeys(("INCONCLUSIVE", "warn", "unknown", "UNKNOWN"), "open"),
    **dict.fromkeys(("SKIP", NOT_ASKED, DECLARED_OUT, "info", "reported"), "none"),
}


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def html(value: object) -> Markup:
    """Any value as HTML: markup as it is, everything else escaped."""
    return value if isinstance(value, Markup) else Markup(escape(str(value)))


def join(parts: Iterable[object], between: str = "") -> Markup:
    return Markup(between.join(html(part) for part in parts))


def tag(name: str, *content: object, **attributes: str) -> Markup:
    """One element; `class_` stands for class."""
    told = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{told}>{join(content)}</{name}>")


def tone(verdict: str) -> str:
    """How a verdict looks: pass, fail, open or none. A verdict of the proof that is not known here is a failure."""
    return _TONES.get(verdict, "fail")


def sign(verdict: str) -> str:
    """One character that says the tone without colour."""
    return _MARKS[tone(verdict)]


def badge(verdict: str) -> Markup:
    """A verdict in colour, with its word and a sign."""
    shown = tag("span", sign(verdict), aria_hidden="true")
    return tag("span", shown, " ", verdict.replace("_", " "), class_=f"badge {tone(verdict)}")


def section(title: str, *content: object) -> Markup:
    return tag("section", tag("h2", title), *content, id=_anchor(title))


def contents(titles: Iterable[str]) -> Markup:
    """Links to the sections of these titles."""
    return tag("nav", *(tag("a", title, href=f"#{_anchor(title)}") for title in titles), aria_label="Contents")


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def absent(what: str, why: object = "") -> Markup:
    """A piece that the bundle does not hold, said as such."""
    return tag("p", what, *((": ", why) if why else ()), class_="absent")


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], numeric: Sequence[int] = ()) -> Markup:
    """A table in a box of its own, so that a wide one scrolls and the page does not. `numeric`: columns set right.

    Each cell carries its heading, for a narrow box, where a row becomes a list.
    """
    looks = ["n" if place in numeric else "t" for place in range(len(heads))]
    head = tag("tr", *(tag("th", name, scope="col", class_=look) for name, look in zip(heads, looks, strict=True)))
    body = [
        tag(
            "tr",
            *(
                tag("td", cell, class_=look, data_label=name)
                for name, cell, look in zip(heads, row, looks, strict=True)
            ),
        )
        for row in rows
    ]
    return tag(
        "div",
        tag("table", tag("thead", head), tag("tbody", *body)),
        class_="wide",
        tabindex="0",
        role="region",
        aria_label=", ".join(heads),
    )


def bullets(lines: Iterable[object]) -> Markup:
    found = [tag("li", line) for line in lines]
    return tag("ul", *found) if found else Markup("")


def folded(title: str, *content: object) -> Markup:
    return tag("details", tag("summary", title), *content)


def bar(label: object, share: float, value: object, look: str = "predicted") -> Markup:
    """One bar; `share` of the full width, 0 to 1. The number stands beside it."""
    width = f"width:{100 * min(max(share, 0.0), 1.0):.2f}%"
    return tag(
        "div",
        tag("span", label, class_="what"),
        tag("span", tag("span", class_=f"fill {look}", style=width), class_="track"),
        tag("span", value, class_="value"),
        class_="bar",
    )


def number(value: float | int | None, digits: int = 0) -> str:
    return UNKNOWN if value is None else f"{value:,.{digits}f}"


def percent(rate: float | None) -> str:
    return UNKNOWN if rate is None else f"{100 * rate:.3g} %"
