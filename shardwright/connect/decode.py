"""Read plain data into typed values; every error names the file, the key, and what would have been right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.connect.strict_yaml import Document, Path
from shardwright.errors import UsageError

_MISSING: Any = object()
# No count or size of a layout comes near it, and all below it is exact as a float.
LARGEST = 10**15


class Section:
    """A map of a document. Each read marks its key as known; `finish` refuses the keys that nobody read.

    Readers take a default; without one the key is required. A key given as null counts as absent.
    """

    def __init__(self, document: Document, path: Path = (), data: Any = _MISSING) -> None:
        self.document = document
        self.path = path
        value = document.data if data is _MISSING else data
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self._error(path, f"expected a map, found {_kind(value)}")
        self.data: Mapping[str, Any] = value
        self._known: set[str] = set()

    def has(self, key: str) -> bool:
        """Whether the key is there with a value other than null; it counts as known from here on."""
        return self._peek(key) is not None

    def text(self, key: str, default: str = _MISSING) -> str:
        value = self._take(key, default)
        if isinstance(value, bool | int | float):
            return self.document.raw.get((*self.path, key), str(value))
        if not isinstance(value, str):
            raise self._error((*self.path, key), f"expected text, found {_kind(value)}")
        return value

    def optional_text(self, key: str) -> str | None:
        return self.text(key) if self._peek(key) is not None else None

    def integer(self, key: str, default: int = _MISSING, minimum: int | None = None, maximum: int | None = None) -> int:
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._error((*self.path, key), f"expected a whole number, found {_kind(value)} {value!r}")
        if abs(value) >= LARGEST:
            raise self._error((*self.path, key), f"a number of {len(str(value))} digits makes no sense")
        if minimum is not None and value < minimum:
            raise self._error((*self.path, key), f"{value} is below {minimum}, the least that makes sense")
        if maximum is not None and value > maximum:
            raise self._error((*self.path, key), f"{value} is above {maximum}, the most that makes sense")
        return value

    def number(self, key: str, default: float = _MISSING, above: float | None = None) -> float:
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < LARGEST:
            raise self._error((*self.path, key), f"expected a number, found {_kind(value)} {value!r}")
        if above is not None and value <= above:
            raise self._error((*self.path, key), f"{value!r} is not above {above}")
        return float(value)

    def boolean(self, key: str, default: bool = _MISSING) -> bool:
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise self._error((*self.path, key), f"expected true or false, found {_kind(value)}")
        return value

    def choice(self, key: str, choices: Sequence[str], default: str = _MISSING) -> Any:
        value = self.text(key, default)
        if value not in choices:
            raise self._error(
                (*self.path, key), f"{value!r} is not one of {', '.join(choices)}", fix=_nearest(value, choices)
            )
        return value

    def texts(self, key: str, default: Sequence[str] = ()) -> tuple[str, ...]:
        """A list of texts; numbers are taken as written."""
        value = self._take(key, list(default))
        if not isinstance(value, list):
            raise self._error((*self.path, key), f"expected a list, found {_kind(value)}")
        items = []
        for index, item in enumerate(value):
            path = (*self.path, key, str(index))
            if item is None or isinstance(item, Mapping | list):
                raise self._error(path, f"expected text, found {_kind(item)}")
            items.append(item if isinstance(item, str) else self.document.raw.get(path, str(item)))
        return tuple(items)

    def numbers(self, key: str, *, whole: bool = False) -> tuple[float, ...]:
        """A list of finite numbers above zero, with `whole` of whole ones; an absent one reads as empty."""
        value = self._take(key, [])
        if not isinstance(value, list):
            raise self._error((*self.path, key), f"expected a list, found {_kind(value)}")
        for index, item in enumerate(value):
            fits = isinstance(item, int) or (isinstance(item, float) and not whole)
            if isinstance(item, bool) or not fits or not 0 < item < LARGEST:
                expected = "a whole number" if whole else "a number"
                raise self._error((*self.path, key, str(index)), f"expected {expected} above 0, found {item!r}")
        return tuple(value)

    def free_map(self, key: str) -> Mapping[str, Any]:
        """A map whose keys are not ours to know; values as they are, nulls included."""
        value = self._take(key, {})
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self._error((*self.path, key), f"expected a map, found {_kind(value)}")
        return value

    def any(self, key: str, default: Any = None) -> Any:
        return self._take(key, default)

    def section(self, key: str) -> Section:
        """A nested map; an absent one reads as empty."""
        return Section(self.document, (*self.path, key), self._take(key, {}))

    def sections(self, key: str) -> tuple[Section, ...]:
        """A list of maps."""
        value = self._take(key, [])
        if not isinstance(value, list):
            raise self._error((*self.path, key), f"expected a list, found {_kind(value)}")
        return tuple(Section(self.document, (*self.path, key, str(i)), item) for i, item in enumerate(value))

    def finish(self, *, free_prefix: str = "x-") -> None:
        """Refuse unknown keys, each with the nearest known one; keys that begin with `x-` are free."""
        for key in self.data:
            if key not in self._known and not key.startswith(free_prefix):
                raise self._error((*self.path, key), "unknown key", fix=_nearest(key, sorted(self._known)))

    def error(self, key: str, message: str, *, why: str = "", fix: str = "") -> UsageError:
        """An error about one key of this section, ready to raise."""
        return self._error((*self.path, key), message, why=why, fix=fix)

    def _peek(self, key: str) -> Any:
        self._known.add(key)
        return self.data.get(key)

    def _take(self, key: str, default: Any) -> Any:
        value = self._peek(key)
        if value is not None:
            return value
        if default is _MISSING:
            raise self._error(self.path, f"the key {key!r} is missing")
        return default

    def _error(self, path: Path, message: str, *, why: str = "", fix: str = "") -> UsageError:
        where = self.document.where(path)
        dotted = ".".join(path)
        return UsageError(": ".join(part for part in (where, dotted, message) if part), why=why, fix=fix)


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true/false"
    if isinstance(value, Mapping):
        return "a map"
    return {"str": "text", "int": "a whole number", "float": "a number", "list": "a list"}.get(
        type(value).__name__, type(value).__name__
    )


def _nearest(word: str, candidates: Sequence[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word, candidates, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(candidates)}"
