"""Shell text as commands and words; nothing of it is run."""

from __future__ import annotations

import shlex
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.campaign.importing.shell import UnclosedError, read_script


def words(text: str) -> list[list[str]]:
    return [[word.text for word in command.words] for command in read_script(text).commands]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("run a b", [["run", "a", "b"]]),
        ("run 'a b' \"c d\" e\\ f", [["run", "a b", "c d", "e f"]]),
        ("run '' \"\"", [["run", "", ""]]),
        ("run a \\\n  b\nnext", [["run", "a", "b"], ["next"]]),
        ("run a\\\nb", [["run", "ab"]]),
        ("run a # not b\n# nor this\nrun#1", [["run", "a"], ["run#1"]]),
        ("a; b && c | d &", [["a"], ["b"], ["c"], ["d"]]),
        ("X=1 run $X", [["run", "${X}"]]),
        ("X=1\nrun $X ${X} ${X:-2} ${Y:-3} ${Y:-${X}4} ${X:+on}", [["run", "1", "1", "1", "3", "14", "on"]]),
        ('X=\nrun ${X:-a} ${X-b}c "$X"', [["run", "a", "c", ""]]),
        ("X=1\nX+=2\nrun $X", [["run", "12"]]),
        ("X='--a b  --c'\nrun $X.", [["run", "--a", "b", "--c."]]),
        ("X='--a b'\nrun \"$X\"", [["run", "--a b"]]),
        (
            "A=(--a 1\n # why\n --b 'c d')\nA+=(e)\nrun \"${A[@]}\" ${A[*]}",
            [["run", "--a", "1", "--b", "c d", "e", "--a", "1", "--b", "c", "d", "e"]],
        ),
        ("if true; then\n  X=2\nfi\nrun $X", [["true"], ["run", "2"]]),
        ('run \'{"a": "\\n"}\'', [["run", '{"a": "\\n"}']]),
        ('run "{\\"a\\": 1}"', [["run", '{"a": 1}']]),
        ("run a\r\nrun b\r\n", [["run", "a"], ["run", "b"]]),
        ("run a > log.txt 2>&1 b", [["run", "a", "b"]]),
        ("run --x 2>err.log &>all <in >>more\nnext", [["run", "--x"], ["next"]]),
        ("run a>b", [["run", "a"]]),
        ("run '<a>' \"2>1\"", [["run", "<a>", "2>1"]]),
        ("cat <<EOF > f\nvllm serve m\nEOF\nrun", [["cat"], ["run"]]),
        ("cat <<-'X'\n\trun\n\tX\nrun b", [["cat"], ["run", "b"]]),
        ("", []),
    ],
)
def test_words_are_those_of_the_shell(text: str, found: list[list[str]]) -> None:
    assert words(text) == found


@pytest.mark.parametrize(
    ("text", "word", "unknown"),
    [
        ("run $HOME/x", "${HOME}/x", ("HOME",)),
        ('run "$(pwd)/x"', "$(pwd)/x", ("$(pwd)",)),
        ("run `id -u`", "`id -u`", ("`id -u`",)),
        ("run $((1 + 2))", "$((1 + 2))", ("$((1 + 2))",)),
        ('run "$@"', "$@", ("$@",)),
        ("run ${X%%.*}", "${X%%.*}", ("X",)),
        ("X=$Y\nrun $X", "${Y}", ("Y",)),
        ("run ${X:-$Y}", "$Y", ("Y",)),
    ],
)
def test_what_only_a_running_shell_knows_stays_as_it_is_written(text: str, word: str, unknown: tuple[str, ...]) -> None:
    found = read_script(text).commands[-1].words[-1]
    assert (found.text, found.unknown) == (word, unknown)


def test_what_is_exported_and_what_one_command_gets_is_kept() -> None:
    script = read_script("export A=1 B\nC=2\nexport C\nD=3 run\ndeclare -x E=4\n")
    assert {name: word.text for name, word in script.exported.items()} == {"A": "1", "C": "2"}
    assert [(name, word.text) for name, word in script.commands[0].variables] == [("D", "3")]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("run --a 1\n  --b 2", 2, "the command ends before --b (missing backslash)"),
        ("run --a '{\"x\": 1}'\n\n # why\n  --b=2 \\\n --c", 4, "the command ends before --b (missing backslash)"),
        ("run --a \\\n # --b \\\n --c", 3, "the command ends before --c (missing backslash)"),
        ("vllm serve m\n  --b", 2, "the command ends before --b (missing backslash)"),
        ("vllm serve m \\\n # note \\\n --c", 3, "the command ends before --c (missing backslash)"),
        ("run --a \\ \n  --b", 1, "a backslash is followed by blanks"),
    ],
)
def test_a_lost_continuation_is_told_and_what_was_meant_is_read(text: str, line: int, message: str) -> None:
    script = read_script(text)
    assert [(remark.line, remark.message) for remark in script.remarks] == [(line, message)]
    assert len(script.commands) == 1
    assert [word.text for word in script.commands[0].words][-1] in ("2", "--b", "--c")


def test_a_command_without_flags_ends_where_it_ends() -> None:
    script = read_script("cd x\n--odd\nrun --a \\\n  --b\nls")
    assert (script.remarks, len(script.commands)) == ((), 4)


@pytest.mark.parametrize("text", ["run 'a", 'run "a', "run $(a", "run `a", "run ${a", "A=(a"])
def test_what_is_never_closed_is_said_with_its_line(text: str) -> None:
    with pytest.raises(UnclosedError, match="on line 2 is never closed"):
        read_script(f"first\n{text}")


@given(st.lists(st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\r\x00"), min_size=1)))
def test_quoted_words_survive(given_words: list[str]) -> None:
    text = shlex.join(["run", *given_words])
    assert words(text) == [["run", *given_words]]


@given(st.text(max_size=200))
def test_no_text_is_a_surprise(text: str) -> None:
    with suppress(UnclosedError):
        read_script(text)
