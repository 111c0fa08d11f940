"""Shell text as simple commands: words, quotes, continuations, and variables that the text itself sets.

Nothing is run. What only a running shell could know stays as it is written, and the word says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)", re.DOTALL)
_BRACED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:(:?)([-+])(.*))?", re.DOTALL)
_ARRAY = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\[[@*]\]")
_FLAG = re.compile(r"--?[A-Za-z]")
_LAUNCH = re.compile(r"(?:^|[ /])(?:vllm serve|(?:docker|podman)(?: container)? run|-m vllm\.)")
_REDIRECTION = re.compile(r"&>>?[ \t]*|[0-9]*(?:<<<|<&|<|>>|>\||>&|>)[ \t]*")
_HEREDOC = re.compile(r"[0-9]*<<(-?)[ \t]*(['\"]?)([A-Za-z_][A-Za-z0-9_]*)\2")
_CONTINUATION = re.compile(r"\\([ \t]*)(\n|\Z)")
_FLAG_AHEAD = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\n)*[ \t]*(--?[A-Za-z][^\s=]*)")
_LIST_BEGINS = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=\(")
_LIST_QUOTED = re.compile(r'"\$\{([A-Za-z_][A-Za-z0-9_]*)\[[@*]\]\}"')
_DECLARES = frozenset(("export", "declare", "local", "readonly", "typeset"))
_BRANCHES = frozenset(
    ("if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac", "{", "}")
)
_MAX_NESTED = 32


@dataclass(frozen=True)
class Word:
    """One word after expansion. `unknown`: what it holds of variables and substitutions that the text does not set."""

    text: str
    line: int
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Remark:
    """Something that the text does not do as it looks, at a line."""

    line: int
    message: str
    why: str
    fix: str


@dataclass(frozen=True)
class Command:
    """One simple command: the variables that it sets for itself, and its words."""

    words: tuple[Word, ...]
    variables: tuple[tuple[str, Word], ...] = ()

    @property
    def line(self) -> int:
        return self.words[0].line


@dataclass(frozen=True)
class Script:
    """The commands of a text in their order, and the variables as they are at its end."""

    commands: tuple[Command, ...]
    exported: Mapping[str, Word]
    remarks: tuple[Remark, ...]


class UnclosedError(ValueError):
    """A quote or a bracket that is never closed; the line where it begins."""

    def __init__(self, what: str, line: int) -> None:
        super().__init__(f"{what} on line {line} is never closed")


def read_script(text: str, values: Mapping[str, Word] | None = None) -> Script:
    """Read a shell text in which these variables are set already. Raises UnclosedError."""
    return _Reader(text.replace("\r\n", "\n"), values or {}).script()


@dataclass
class _Part:
    """A word that is being read: finished words of it, for expansions that hold blanks, and the open one."""

    text: str = ""
    quoted: bool = False
    unknown: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)


class _Reader:
    def __init__(self, text: str, values: Mapping[str, Word]) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self._values: dict[str, Word] = dict(values)
        self._arrays: dict[str, tuple[Word, ...]] = {}
        self._exported: dict[str, Word] = {}
        self._commands: list[Command] = []
        self._remarks: list[Remark] = []
        self._heredocs: list[tuple[str, bool]] = []

    def script(self) -> Script:
        words: list[Word] = []
        while self._at < len(self._text):
            character = self._text[self._at]
            if self._redirected():
                continue
            if character == "\n":
                self._advance()
                self._skip_heredocs()
                if words and not self._goes_on(words):
                    self._end(words)
                    words = []
            elif character in ";&|()":
                self._advance()
                self._end(words)
                words = []
            elif character in " \t":
                self._advance()
            elif character == "#":
                self._skip_line()
            elif not self._continued():
                words += self._word_or_array(bool(words))
        self._end(words)
        return Script(tuple(self._commands), dict(self._exported), tuple(self._remarks))

    def _advance(self, count: int = 1) -> str:
        taken = self._text[self._at : self._at + count]
        self._at += count
        self._line += taken.count("\n")
        return taken

    def _skip_line(self) -> None:
        while self._at < len(self._text) and self._text[self._at] != "\n":
            self._at += 1

    def _redirected(self) -> bool:
        """Pass over `> file`, `2>&1` and the like; what a `<<` takes is passed over at the end of its line."""
        here = _HEREDOC.match(self._text, self._at)
        if here is not None:
            self._heredocs.append((here[3], bool(here[1])))
            self._advance(len(here[0]))
            return True
        sign = _REDIRECTION.match(self._text, self._at)
        if sign is None:
            return False
        self._advance(len(sign[0]))
        if self._at < len(self._text) and self._text[self._at] not in "\n;&|()<>":
            self._word()
        return True

    def _skip_heredocs(self) -> None:
        for end, tabs in self._heredocs:
            while self._at < len(self._text):
                stop = self._text.find("\n", self._at)
                line = self._text[self._at : stop if stop >= 0 else len(self._text)]
                self._advance(len(line) + 1)
                if (line.lstrip("\t") if tabs else line) == end:
                    break
        self._heredocs = []

    def _continued(self) -> bool:
        """Pass over a backslash at the end of a line, and over one that only looks as if it stood there."""
        rest = _CONTINUATION.match(self._text, self._at)
        if rest is None:
            return False
        if rest[1]:
            why = "it joins the blank to the command, and the next line is a command of its own"
            self._remarks.append(Remark(self._line, "a backslash is followed by blanks", why, "remove the blanks"))
        self._advance(len(rest[0]))
        return True

    def _goes_on(self, words: Sequence[Word]) -> bool:
        """Whether the next line was meant to belong to this command: it begins with a flag."""
        ahead = _FLAG_AHEAD.match(self._text, self._at)
        launches = _LAUNCH.search(" ".join(word.text for word in words)) is not None
        if ahead is None or not (launches or any(_FLAG.match(word.text) for word in words)):
            return False
        self._advance(ahead.start(1) - self._at)
        why = "the shell runs the rest as a command of its own, so these flags never reach the engine"
        text = f"the command ends before {ahead[1]} (missing backslash)"
        self._remarks.append(Remark(self._line, text, why, "end the line before it with a backslash"))
        return True

    def _word_or_array(self, has_words: bool) -> list[Word]:
        array = _LIST_BEGINS.match(self._text, self._at)
        if array is None or has_words:
            return self._word()
        line = self._line
        self._advance(len(array[0]))
        items: list[Word] = []
        while True:
            if self._at >= len(self._text):
                raise UnclosedError(f"the list {array[1]}", line)
            character = self._text[self._at]
            if character == ")":
                self._advance()
                break
            if character in " \t\n;&|(<>":
                # The shell would refuse all but blanks here.
                self._advance()
            elif character == "#":
                self._skip_line()
            elif not self._continued():
                items += self._word()
        self._arrays[array[1]] = (*(self._arrays.get(array[1], ()) if array[2] else ()), *items)
        return []

    def _word(self) -> list[Word]:
        line, part = self._line, _Part()
        words: list[Word] = []
        while self._at < len(self._text) and self._text[self._at] not in " \t\n;&|()<>":
            character = self._text[self._at]
            if character == "\\":
                if self._text.startswith("\\\n", self._at):
                    self._advance(2)
                    continue
                self._advance()
                part.text += self._advance()
                part.quoted = True
            elif character == "'":
                part.text += self._single()
                part.quoted = True
            elif character == '"':
                listed = self._double(part)
                words += listed
                part.quoted = part.quoted or not listed
            elif character == "$":
                self._expand_bare(part)
            elif character == "`":
                part.text += self._substitution(part, "`", "`")
            else:
                part.text += self._advance()
        unknown = tuple(dict.fromkeys(part.unknown))
        words += [Word(text, line, ()) for text in part.before]
        if part.text or part.quoted:
            words.append(Word(part.text, line, unknown))
        return words

    def _single(self) -> str:
        line = self._line
        end = self._text.find("'", self._at + 1)
        if end < 0:
            raise UnclosedError("a single quote", line)
        return self._advance(end + 1 - self._at)[1:-1]

    def _double(self, part: _Part) -> list[Word]:
        """Read a double-quoted text into `part`; `"${LIST[@]}"` gives the list's own words instead."""
        line = self._line
        listed = _LIST_QUOTED.match(self._text, self._at)
        if listed is not None and listed[1] in self._arrays:
            self._advance(len(listed[0]))
            return list(self._arrays[listed[1]])
        self._advance()
        while True:
            if self._at >= len(self._text):
                raise UnclosedError("a double quote", line)
            character = self._advance()
            if character == '"':
                return []
            if character == "\\" and self._at < len(self._text):
                following = self._advance()
                part.text += "" if following == "\n" else following if following in '"\\$`' else f"\\{following}"
            elif character == "$":
                self._at -= 1
                part.text += self._expansion(part)
            elif character == "`":
                self._at -= 1
                part.text += self._substitution(part, "`", "`")
            else:
                part.text += character

    def _expand_bare(self, part: _Part) -> None:
        """An expansion outside of quotes is cut at its blanks."""
        text = self._expansion(part)
        pieces = text.split()
        if len(pieces) > 1 and not part.unknown:
            part.before += [part.text + pieces[0], *pieces[1:-1]]
            part.text = pieces[-1]
        else:
            part.text += text.strip() if pieces else ""

    def _expansion(self, part: _Part) -> str:
        """The value of `$NAME`, `${NAME}`, `${NAME:-default}` and so on, from the text; else as it is written."""
        start = self._at
        self._advance()
        if self._text.startswith("(", self._at):
            self._at = start
            return self._substitution(part, "$(", ")")
        if self._text.startswith("{", self._at):
            inner = self._braced(start)
            value = self._filled(inner, 0)
            written = self._text[start : self._at]
            return self._known(part, value, inner, written)
        name = _NAME.match(self._text, self._at)
        if name is None:
            special = (
                self._advance() if self._at < len(self._text) and self._text[self._at] in "@*#?$!0123456789" else ""
            )
            if not special:
                return "$"
            part.unknown.append(f"${special}")
            return f"${special}"
        self._advance(len(name[0]))
        return self._known(part, self._filled(name[0], 0), name[0], f"${{{name[0]}}}")

    def _known(self, part: _Part, value: Word | None, name: str, written: str) -> str:
        if value is None:
            plain = _NAME.match(name)
            part.unknown.append(plain[0] if plain else written)
            return written
        part.unknown += value.unknown
        return value.text

    def _braced(self, start: int) -> str:
        depth = 0
        line = self._line
        first = self._at + 1
        while self._at < len(self._text):
            character = self._advance()
            depth += {"{": 1, "}": -1}.get(character, 0)
            if depth == 0:
                return self._text[first : self._at - 1]
        raise UnclosedError(self._text[start : start + 12], line)

    def _filled(self, inner: str, depth: int) -> Word | None:
        """What `${inner}` is; None where the text does not say."""
        array = _ARRAY.fullmatch(inner)
        if array is not None and array[1] in self._arrays:
            return Word(" ".join(word.text for word in self._arrays[array[1]]), self._line)
        match = _BRACED.fullmatch(inner)
        if match is None or depth > _MAX_NESTED:
            return None
        name, colon, operator, other = match.groups()
        value = self._values.get(name)
        is_set = value is not None and (bool(value.text) or not colon)
        if operator == "-" and not is_set:
            return self._nested(other, depth)
        if operator == "+":
            return self._nested(other, depth) if is_set else Word("", self._line) if value is not None else None
        return value

    def _nested(self, text: str, depth: int) -> Word | None:
        """A default, whose own variables are filled in too."""
        unknown: list[str] = []

        def fill(match: re.Match[str]) -> str:
            found = self._filled(match[1] or match[2], depth + 1)
            if found is None:
                unknown.append(match[1] or match[2])
                return match[0]
            unknown.extend(found.unknown)
            return found.text

        before = None
        for _ in range(_MAX_NESTED):
            if before == text:
                break
            before = text
            text = re.sub(r"\$\{([^${}]*)\}|\$([A-Za-z_][A-Za-z0-9_]*)", fill, text)
            if unknown:
                break
        return Word(text.strip("\"'"), self._line, tuple(unknown))

    def _substitution(self, part: _Part, opening: str, closing: str) -> str:
        """`$(…)` and backticks stay as they are written."""
        start, line, depth = self._at, self._line, 0
        self._advance(len(opening))
        while self._at < len(self._text):
            character = self._advance()
            if character == "(" and opening != "`":
                depth += 1
            elif character == closing and depth == 0:
                written = self._text[start : self._at]
                part.unknown.append(written)
                return written
            elif character == closing:
                depth -= 1
        raise UnclosedError(opening, line)

    def _end(self, words: list[Word]) -> None:
        """Take what was read as one command: set variables, or keep it."""
        while words and words[0].text in _BRANCHES and not words[0].unknown:
            words = words[1:]
        variables: list[tuple[str, Word]] = []
        declares = bool(words) and words[0].text in _DECLARES
        export = bool(words) and words[0].text == "export"
        rest = [word for word in words[1:] if not word.text.startswith("-")] if declares else list(words)
        while rest:
            match = _ASSIGNMENT.fullmatch(rest[0].text)
            if match is None:
                if not declares:
                    break
                if export and rest[0].text in self._values:
                    self._exported[rest[0].text] = self._values[rest[0].text]
                rest = rest[1:]
                continue
            variables.append(self._assigned(match, rest[0]))
            rest = rest[1:]
        if declares or not rest:
            self._values |= dict(variables)
            names = dict(variables)
            self._exported |= {name: value for name, value in names.items() if export or name in self._exported}
        else:
            self._commands.append(Command(tuple(rest), tuple(variables)))

    def _assigned(self, match: re.Match[str], word: Word) -> tuple[str, Word]:
        name, more, value = match[1], match[2], match[3]
        old = self._values.get(name) if more else None
        text = (old.text if old else "") + value
        return name, Word(text, word.line, (*(old.unknown if old else ()), *word.unknown))
