"""The mutation test can say no and yes: a weak test lets mutants live, a strong one kills every one of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.catalogue import Module, modules
from tests.mutation.equivalents import read_equivalents

RULE = '''
LIMIT = 3

def refuses(count: int, kind: str = "card") -> bool:
    """Whether that many are too many."""
    return count > LIMIT and kind == "card"

def half(count):
    found = 0
    while count > 1:
        count -= 2
        found += 1
    return found
'''
WEAK = """
from sample.rules.gate import half, refuses

def test_a_weak_look():
    assert refuses(9) and half(4)
"""
STRONG = """
from sample.rules.gate import half, refuses

def test_the_border():
    assert refuses(4) and not refuses(3) and not refuses(4, "host")

def test_all_halves():
    assert [half(count) for count in range(6)] == [0, 0, 1, 1, 2, 2]
"""


def run(root: Path, project: Path, *words: str) -> tuple[int, list[str]]:
    """The command on a project with one module of rules and one of tests: status, and what it printed."""
    equivalent = root / "equivalent.txt"
    equivalent.touch()
    argv = [sys.executable, str(project / "tests/mutation/run.py"), "--root", str(root), "--package", "sample"]
    argv += ["--folder", "rules", "--tests", "checks", "--jobs", "2", "--equivalent", str(equivalent), *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout.splitlines()


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    (tmp_path / "checks").mkdir()
    (tmp_path / "sample/rules").mkdir(parents=True)
    (tmp_path / "sample/rules/gate.py").write_text(RULE)
    return tmp_path


def test_a_weak_test_lets_mutants_survive(sample: Path, project_root: Path) -> None:
    (sample / "checks/test_weak.py").write_text(WEAK)
    status, told = run(sample, project_root)
    assert status == 1
    assert "rules/gate.py:6: count > LIMIT -> count >= LIMIT" in told
    assert "rules/gate.py:2: LIMIT = 3 -> LIMIT = 4" in told
    assert "rules/gate.py:6: count > LIMIT and kind == 'card' -> count > LIMIT or kind == 'card'" in told
    assert "rules/gate.py:6: kind == 'card' -> kind != 'card'" not in told


def test_a_strong_test_kills_all_also_those_that_never_end(sample: Path, project_root: Path) -> None:
    (sample / "checks/test_strong.py").write_text(STRONG)
    status, (told,) = run(sample, project_root)
    assert (status, told.partition(";")[0]) == (0, "18 mutants, 18 killed, 0 equivalent, 0 survived")


def test_an_equivalent_mutant_is_excused_by_its_entry_and_an_entry_only_by_its_mutant(
    sample: Path, project_root: Path
) -> None:
    (sample / "sample/rules/gate.py").write_text("def least(count):\n    return 1 if count <= 1 else count\n")
    (sample / "checks/test_least.py").write_text(
        "from sample.rules.gate import least\n\n"
        "def test_least():\n    assert [least(n) for n in (0, 1, 2)] == [1, 1, 2]\n"
    )
    status, told = run(sample, project_root, "--keys")
    border = "rules/gate.py least: count <= 1 -> count < 1"
    assert (status, told[:-1]) == (1, [border, "rules/gate.py least: count <= 1 -> count <= 0"])
    (sample / "equivalent.txt").write_text(
        f"{border}\n    At 1 both branches give 1.\n{told[1]}\n    At 1 both branches give 1.\n"
    )
    assert run(sample, project_root)[0] == 0
    (sample / "equivalent.txt").write_text(
        f"{border}\n    At 1 both branches give 1.\n{told[1]}\n    The same.\n"
        "rules/gate.py most: gone\n    It is gone.\n"
    )
    status, told = run(sample, project_root)
    assert (status, told[0]) == (1, "equivalent.txt: no such mutant survives any more: rules/gate.py most: gone")


@pytest.mark.parametrize("text", ["key\n", "key\n    why\nkey\n    why\n", "    why\n", "first\nsecond\n    why\n"])
def test_an_entry_needs_its_own_reason(tmp_path: Path, text: str) -> None:
    (tmp_path / "list.txt").write_text(text)
    with pytest.raises(ValueError, match=r"list\.txt"):
        read_equivalents(tmp_path / "list.txt")


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("a < b", ["a < b -> a <= b", "a < b -> a >= b"]),
        ("a >= b", ["a >= b -> a > b", "a >= b -> a < b"]),
        ("a == b", ["a == b -> a != b"]),
        ("a is not b", ["a is not b -> a is b"]),
        ("a in b", ["a in b -> a not in b"]),
        ("a and b", ["a and b -> a or b"]),
        ("not a", ["not a -> a"]),
        ("f(True)", ["f(True) -> f(False)"]),
        ("f(2)", ["f(2) -> f(3)", "f(2) -> f(1)"]),
        ("f('word')", ["f('word') -> f('mutant')"]),
        ("f('two words')", []),
        ("f('two words' == a)", ["'two words' == a -> 'two words' != a", "'two words' == a -> 'mutant' == a"]),
        ("a.get('two words')", ["a.get('two words') -> a.get('mutant')"]),
        ("v('>=0.30')", ["v('>=0.30') -> v('>=0.31')", "v('>=0.30') -> v('>=0.29')"]),
        ("f(f'{a}word')", []),
        (
            "Finding(g, 'warn', 'm', fix='f')",
            ["Finding(g, 'warn', 'm', fix='f') -> Finding(g, 'mutant', 'm', fix='f')"],
        ),
        ("UsageError('what', fix='f')", []),
        ("zip(a, b, strict=True)", []),
    ],
)
def test_what_decides_is_mutated_and_what_only_speaks_is_not(tmp_path: Path, code: str, changes: list[str]) -> None:
    file = tmp_path / "gate.py"
    file.write_text(f'def rule(a: "x" = None) -> "y":\n    """Doc."""\n    g({code})\n')
    found = [mutant.change for mutant in Module(file, "gate.py", ()).mutants]
    assert found == changes


def test_every_mutant_has_a_name_of_its_own(project_root: Path) -> None:
    keys = [mutant.key for module in modules(project_root / "shardwright", ("plan",), ()) for mutant in module.mutants]
    assert len(keys) == len(set(keys)) > 500
