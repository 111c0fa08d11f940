"""Borders of flags: names near and far, versions, repetitions, and every kind of value at its bounds."""

from __future__ import annotations

from typing import Any

import pytest
from deployed import deployed, fixes, said
from msgspec.structs import replace

from shardwright.facts.engine import EngineFacts
from shardwright.facts.engine_tables import EngineTable, Flag, Retired
from shardwright.facts.facts import Facts
from shardwright.gates.flag_values import bounds_text, dotted_problem, value_problem
from shardwright.gates.flags import check_flags, with_full_names

FLAGS = (
    Flag("--max-model-len", aliases=("--mml",), kind="int", low=1),
    Flag("--max-num-seqs", kind="int"),
    Flag("--eager", aliases=("-e",), kind="bool"),
    Flag("--bare", kind="switch"),
    Flag("--share", kind="float", above=0, high=1),
    Flag("--names", kind="list"),
    Flag("--again", kind="append"),
    Flag("--maps", kind="config", keys=("inner", "outer")),
    Flag("--old", deprecated=True),
    Flag("--port", kind="int"),
    Flag("--abcdefghijklmnop", aliases=("-wt",)),
    Flag("--on--off", kind="bool"),
)


def table(version: str, *flags: Flag) -> EngineTable:
    return EngineTable(version, "t", flags or FLAGS, (), ())


def known(*others: EngineTable, retired: dict[str, str] | None = None) -> Facts:
    return Facts(engine=EngineFacts(table("0.30.0"), others, Retired(retired or {}, {})))


def judged(*flags: str, facts: Facts | None = None) -> list[str]:
    return [text.removeprefix("engine-flags ") for text in said(check_flags, deployed(*flags), facts or known())]


def ways(*flags: str, facts: Facts | None = None) -> list[str]:
    return fixes(check_flags, deployed(*flags), facts or known())


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--max-model-len 5",),
        ("--max-model-len=5",),
        ("--mml 5",),
        ("--eager",),
        ("--no-eager",),
        ("-e",),
        ("--bare",),
        ("--no-on--off",),
        ("--names a b", "--share 0.5"),
        ("--again a", "--again b"),
        ("--maps.inner 1", "--maps.outer 2"),
        ("--maps.inner+ 1", "--maps.inner+ 2"),
        ("--port 1", "--port 2"),
    ],
)
def test_flags_in_full_once_and_with_a_value_are_taken(flags: tuple[str, ...]) -> None:
    assert judged(*flags) == []


@pytest.mark.parametrize(
    ("flags", "found", "fix"),
    [
        (("--max-model 5",), "warn: --max-model is short for --max-model-len", "write serve.max_model_len"),
        (("--por 5",), "reject: --por is short for --port", "remove it and set container.publish"),
        (
            ("--max 5",),
            "reject: --max is short for several flags: --max-model-len, --max-num-seqs",
            "write one in full",
        ),
        (("--no-bare",), "reject: --bare has no negative form in vLLM 0.30.0", "remove serve.bare: false"),
        (
            ("--max-model-lem 5",),
            "reject: vLLM 0.30.0 has no flag --max-model-lem",
            "did you mean serve.max_model_len?",
        ),
        # Of 16 letters four are others: 0.75 is near. With five it is 0.69.
        (
            ("--abcdefghijklzzzz",),
            "reject: vLLM 0.30.0 has no flag --abcdefghijklzzzz",
            "did you mean serve.abcdefghijklmnop?",
        ),
        (("--abcdefghijzzzzzz",), "reject: vLLM 0.30.0 has no flag --abcdefghijzzzzzz", "remove it from serve:"),
        (("--zzz 5",), "reject: vLLM 0.30.0 has no flag --zzz", "remove it from serve:"),
        (("-w 5",), "reject: vLLM 0.30.0 has no flag -w", "remove it from serve:"),
        (("-z 5",), "reject: vLLM 0.30.0 has no flag -z", "remove it from serve:"),
        (("--zzz.x 5",), "reject: vLLM 0.30.0 has no flag --zzz", "remove it from serve:"),
        (
            ("--share 0.5", "--share 0.6"),
            "reject: --share is given twice (case.yaml:1 and case.yaml:1)",
            "remove one of the two",
        ),
        (
            ("--max-model-len 5", "--mml 6"),
            "reject: --max-model-len is given twice (case.yaml:1 and case.yaml:1)",
            "remove one of the two",
        ),
        (
            ("--maps {}", "--maps.inner 1"),
            "reject: --maps is given whole and by parts (case.yaml:1 and case.yaml:1)",
            "write all of it as the map serve.maps",
        ),
        (
            ("--maps.inner 1", "--maps={}"),
            None,
            "write all of it as the map serve.maps",
        ),
        (
            ('--maps={"inner":1.5}', "--maps.inner 1"),
            "reject: --maps is given whole and by parts (case.yaml:1 and case.yaml:1)",
            "write all of it as the map serve.maps",
        ),
        (("--old 5",), "info: --old is deprecated in vLLM 0.30.0", ""),
        (
            ("--max-model-len 0",),
            "reject: --max-model-len 0 must be at least 1",
            "write serve.max_model_len at least 1",
        ),
        (("--share 2",), "reject: --share 2 must be above 0 and at most 1", "write serve.share above 0 and at most 1"),
        (
            ("--max-num-seqs x",),
            "reject: --max-num-seqs 'x' is not a whole number",
            "correct serve.max_num_seqs in serve:",
        ),
        (("--eager yes",), "reject: --eager takes no value, but 'yes' is given", "write serve.eager: true"),
        (("--bare yes",), "reject: --bare takes no value, but 'yes' is given", "write serve.bare: true"),
        (
            ("--share.x 1",),
            "reject: --share is not a JSON flag, so it has no parts",
            "write serve.share above 0 and at most 1",
        ),
    ],
)
def test_what_the_engine_would_stop_on_is_refused_with_the_way_out(
    flags: tuple[str, ...], found: str | None, fix: str
) -> None:
    texts, fixed = judged(*flags), ways(*flags)
    if found is None:
        assert fix in fixed
        return
    (text,) = texts
    assert (text.startswith(found) and text.endswith("(case.yaml:1)")) or text == found
    assert fixed == [fix]


def test_a_flag_of_another_version_names_the_version() -> None:
    gone, came = table("0.28.0", Flag("--zzz")), table("0.32.0", Flag("--yyy", aliases=("--zzz",)))
    earlier = table("0.29.0", Flag("--zzz"))
    prefix = "reject: vLLM 0.30.0 has no flag --zzz"
    assert judged("--zzz 1", facts=known(gone, earlier, came)) == [
        f"{prefix}: it was removed or renamed after 0.29.0 (case.yaml:1)"
    ]
    assert judged("--zzz 1", facts=known(came, table("0.33.0", Flag("--zzz")))) == [
        f"{prefix}: it came with 0.32.0 (case.yaml:1)"
    ]
    assert judged("--zzz 1", facts=known(table("0.30.0", Flag("--zzz")))) == [
        f"{prefix}: it came with 0.30.0 (case.yaml:1)"
    ]
    assert judged("--zzz 1", facts=known(table("0.9.0", Flag("--zzz")))) == [
        f"{prefix}: it was removed or renamed after 0.9.0 (case.yaml:1)"
    ]
    assert judged("--zzz 1", facts=known(table("0.28.0"))) == [f"{prefix} (case.yaml:1)"]


def test_a_retired_flag_names_its_successor() -> None:
    facts = known(retired={"--zzz": "write the other"})
    assert judged("--zzz 1", facts=facts) == ["reject: vLLM 0.30.0 has no --zzz any more (case.yaml:1)"]
    assert ways("--zzz 1", facts=facts) == ["write the other"]


def test_flags_of_a_version_without_a_table_are_unknown() -> None:
    asked = deployed("--max-model-len 5")
    for facts in (Facts(), Facts(engine=EngineFacts(None))):
        assert said(check_flags, asked, facts) == [
            "engine-flags unknown: the flags of vLLM 0.30.0 are not known here, so none of them was checked"
        ]
        derived = replace(asked, engine_args=tuple(replace(item, passthrough=False) for item in asked.engine_args))
        assert said(check_flags, derived, facts) == []
        assert said(check_flags, deployed("/models/m"), facts) == []


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ({}, ""),
        ({"low": 1}, "at least 1"),
        ({"above": 0, "high": 1}, "above 0 and at most 1"),
        ({"low": 0.5, "below": 2}, "at least 0.5 and below 2"),
    ],
)
def test_bounds_in_words(bounds: dict[str, float], text: str) -> None:
    assert bounds_text(Flag("--f", **bounds)) == text


NUMBER, SIZE, SHARE = "is not a whole number", "is not a number such as 8192 or 8k", "is not a number"


@pytest.mark.parametrize(
    ("flag", "values", "problem"),
    [
        (Flag("--f", kind="switch"), (), ""),
        (Flag("--f", kind="switch"), ("a", "b"), "--f takes no value, but 'a b' is given"),
        (Flag("--f", kind="bool"), ("a",), "--f takes no value, but 'a' is given"),
        (Flag("--f"), (), "--f needs a value"),
        (Flag("--f", kind="optional"), (), ""),
        (Flag("--f", kind="optional"), ("a",), ""),
        (Flag("--f"), ("a", "b"), "--f takes one value, but 2 are given"),
        (Flag("--f", kind="list"), ("a", "b"), ""),
        (Flag("--f", kind="list", item="int"), ("1", "b", "c"), f"--f 'b' {NUMBER}"),
        (Flag("--f", optional=True, kind="int"), ("None",), ""),
        (Flag("--f", optional=True, kind="int"), ("",), ""),
        (Flag("--f", kind="int"), ("None",), f"--f 'None' {NUMBER}"),
        (Flag("--f", choices=("a_b", "c")), ("c",), ""),
        (Flag("--f", choices=("a_b", "c")), ("A-B",), "--f 'A-B' is not one of a_b, c"),
        (Flag("--f", choices=("a_b", "c"), folds=True), ("A-B",), ""),
        (Flag("--f", choices=("a", "c"), kind="list"), ("a,c",), ""),
        (Flag("--f", choices=("a", "c")), ("a,c",), "--f 'a,c' is not one of a, c"),
        (Flag("--f", choices=("a", "c"), kind="list"), ("a,x,y",), "--f 'x' is not one of a, c"),
        *((Flag("--f", kind="int"), (text,), "") for text in ("0", "-5", "+5", " 5 ", "9" * 15)),
        *(
            (Flag("--f", kind="int"), (text,), f"--f {text!r} {NUMBER}")
            for text in ("5.0", "", "x", "9" * 16, "٣", "5k")
        ),
        *((Flag("--f", kind="size"), (text,), "") for text in ("8k", " 8192 ", "2M")),
        *((Flag("--f", kind="size"), (text,), f"--f {text!r} {SIZE}") for text in ("8q", "auto", "x")),
        (Flag("--f", kind="size_or_auto"), (" Auto ",), ""),
        (Flag("--f", kind="size_or_auto"), ("8k",), ""),
        (Flag("--f", kind="size_or_auto"), ("8q",), f"--f '8q' {SIZE}"),
        (Flag("--f", kind="size", low=10), ("9",), "--f 9 must be at least 10"),
        (Flag("--f", kind="float"), ("0.5",), ""),
        (Flag("--f", kind="float"), ("x",), f"--f 'x' {SHARE}"),
        *((Flag("--f", kind="int", low=2, high=4), (text,), "") for text in ("2", "4")),
        *(
            (Flag("--f", kind="int", low=2, high=4), (text,), f"--f {text} must be at least 2 and at most 4")
            for text in ("1", "5")
        ),
        (Flag("--f", kind="int", above=2, below=4), ("3",), ""),
        *(
            (Flag("--f", kind="int", above=2, below=4), (text,), f"--f {text} must be above 2 and below 4")
            for text in ("2", "4")
        ),
        (Flag("--f", kind="json"), ("[1]",), ""),
        (Flag("--f", kind="json"), ("{",), "--f '{' is not valid JSON"),
        (Flag("--f", kind="config"), ("[1]",), "--f '[1]' is not a JSON object"),
        (Flag("--f", kind="config"), ('{"a": 1}',), ""),
        (Flag("--f", kind="json_or_text"), ("{",), ""),
        (Flag("--f", kind="config", keys=("inner", "outer")), ('{"inner": 1, "outer": 2}',), ""),
        (
            Flag("--f", kind="config", keys=("inner", "inset")),
            ('{"inner": 1, "innner": 2, "x": 3}',),
            "--f has no key 'innner', did you mean 'inner'?",
        ),
        (Flag("--f", kind="json", keys=("inner",)), ('{"zzz": 1}',), "--f has no key 'zzz'"),
    ],
)
def test_every_kind_of_value_at_its_border(flag: Flag, values: tuple[str, ...], problem: str) -> None:
    assert value_problem("--f", values, flag) == problem


@pytest.mark.parametrize(
    ("flag", "name", "problem"),
    [
        (Flag("--f"), "--f.a", "--f is not a JSON flag, so it has no parts"),
        *((Flag("--f", kind=kind), "--f.a", "") for kind in ("json", "config", "json_or_text")),
        (Flag("--f", kind="json", keys=("a",)), "--f.a.b", ""),
        (Flag("--f", kind="json", keys=("a",)), "--f.a+", ""),
        (Flag("--f", kind="json", keys=("a",)), "--f.b.a", "--f has no key 'b'"),
    ],
)
def test_parts_are_keys_of_a_map(flag: Flag, name: str, problem: str) -> None:
    assert dotted_problem(name, flag) == problem


def test_every_value_is_looked_at_where_a_flag_is_repeated_by_another_name() -> None:
    facts: Any = known()
    found = judged("--mml 0", "--max-model-len 5", facts=facts)
    assert [text.split(" (")[0] for text in found] == [
        "reject: --mml 0 must be at least 1",
        "reject: --max-model-len is given twice",
    ]


@pytest.mark.parametrize(
    ("written", "full"),
    [
        ("--max-model 5", "--max-model-len 5"),
        ("--max-model=5", "--max-model-len=5"),
        ("--no-eag", "--no-eager"),
        ("--map.inner 5", "--maps.inner 5"),
        # Known in full, an alias, of several flags, of none, and a short one.
        ("--eager", "--eager"),
        ("--mml 5", "--mml 5"),
        ("--max 5", "--max 5"),
        ("--unknown 5", "--unknown 5"),
        ("-w 5", "-w 5"),
    ],
)
def test_a_short_spelling_hides_no_flag_from_the_other_gates(written: str, full: str) -> None:
    asked = deployed("--names a b", written)
    changed = with_full_names(asked, known())
    assert [argument.tokens for argument in changed.engine_args] == [("--names", "a", "b"), tuple(full.split())]
    for facts in (Facts(), Facts(engine=EngineFacts(None))):
        assert with_full_names(asked, facts) is asked
    script = replace(asked, engine=replace(asked.engine, command=("x",)))
    assert with_full_names(script, known()) is script


def test_a_command_line_of_full_names_stays_as_it_is() -> None:
    asked = deployed("--max-model-len=5", "--names a")
    assert with_full_names(asked, known()) is asked
