"""YAML as it is read here: few conversions, no second chances."""

from __future__ import annotations

import pytest

from shardwright.connect.strict_yaml import load_yaml
from shardwright.errors import UsageError


def data(text: str) -> object:
    return load_yaml(text, "f.yaml").data


def refusal(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        load_yaml(text, "f.yaml")
    return caught.value.what


@pytest.mark.parametrize(
    "text",
    ["no", "yes", "on", "Off", "y", "12:30:45", "1_000", "0x1F", "0o17", "010", "1e5", ".5", "2026-01-01", "True"],
)
def test_text_that_yaml_1_1_would_turn_into_something_else_stays_text(text: str):
    assert data(f"a: {text}") == {"a": text}


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("false", False), ("null", None), ("~", None), ("", None), ("7", 7), ("-7", -7), ("0.50", 0.5)],
)
def test_the_few_plain_constants_are_converted(text: str, value: object):
    assert data(f"a: {text}") == {"a": value}


@pytest.mark.parametrize("text", ["'7'", '"7"', "'true'", '"null"', "|-\n  7", ">-\n  7"])
def test_a_quoted_number_does_not_become_a_number(text: str):
    value = data(f"a: {text}")
    assert isinstance(value, dict)
    assert isinstance(value["a"], str)


def test_the_source_text_of_a_number_is_kept():
    document = load_yaml("a: 0.10\nb: [1.50, +3]", "f.yaml")
    assert document.raw[("a",)] == "0.10"
    assert document.raw[("b", "0")] == "1.50"
    assert document.raw[("b", "1")] == "+3"


def test_every_value_knows_its_line():
    document = load_yaml("a:\n  b:\n    - x\n    - y\n", "f.yaml")
    assert document.where(("a", "b", "1")) == "f.yaml:4"
    assert document.where(("a", "b", "9")) == "f.yaml:2", "the nearest ancestor stands in"


def test_a_key_given_twice_does_not_silently_win():
    assert "f.yaml:3: a.b is given twice (first on line 2)" in refusal("a:\n  b: 1\n  b: 2\n")


def test_the_same_key_in_two_maps_is_no_duplicate():
    assert data("a: {x: 1}\nb: {x: 2}") == {"a": {"x": 1}, "b": {"x": 2}}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: [1", "f.yaml:2: not valid YAML"),
        ("a: 1\n b: 2", "f.yaml:2: not valid YAML"),
        ("a: 1\n---\nb: 2", "f.yaml:2: not valid YAML"),
        ("? [x]\n: 1", "f.yaml:1: a key must be plain text"),
        ("a: &x {b: 1}\nc:\n  <<: *x", "f.yaml:3: merge keys"),
        ("a: *missing", "f.yaml:1: not valid YAML"),
        ("a: !!python/object:os.system [x]", "f.yaml:1: a: the tag"),
        ("a: !secret x", "f.yaml:1: a: the tag !secret"),
        ('a: "x\\0y"', "f.yaml:1: a: a NUL character"),
        ('"a\\0": 1', "f.yaml:1: 'a\\x00': a NUL character"),
        ("a: \x00", "f.yaml: not valid YAML"),
        ("a: \ud800", "f.yaml: not valid YAML"),
        ("a: &x [*x]", "f.yaml:1: nested more than 64 levels deep"),
        ("a: " + "[" * 200 + "]" * 200, "f.yaml:1: nested more than 64 levels deep"),
        ("a: " + "[" * 100_000, "f.yaml:1: not valid YAML"),
    ],
)
def test_what_is_not_plain_data_is_refused_with_its_line(text: str, reason: str):
    assert refusal(text).startswith(reason)


def test_a_few_lines_of_aliases_do_not_eat_the_memory():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 9)]
    assert "more than 20000 values" in refusal("\n".join(lines))


def test_an_ordinary_alias_is_just_its_value():
    assert data("a: &x [1]\nb: *x") == {"a": [1], "b": [1]}


def test_an_integer_of_any_length_does_no_harm():
    assert data(f"a: {'9' * 4000}") == {"a": int("9" * 4000)}
    assert data(f"a: {'9' * 5000}") == {"a": "9" * 5000}


def test_an_empty_file_reads_as_an_empty_map():
    assert data("") == {}
    assert data("# only a comment\n") == {}
