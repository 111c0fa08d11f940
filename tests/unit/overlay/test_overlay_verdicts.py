"""Every verdict of the engine: once where it must be given, once where it must not."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import pytest
from overlay_samples import WORKER, MemoryTree, edit, new_module

from shardwright.overlay.compose import compose
from shardwright.overlay.patch import Patch
from shardwright.overlay.report import as_expected, check_patch
from shardwright.overlay.verdicts import EditVerdict, Verdict

MakePatch = Callable[..., Patch]


def only(patch: Patch, tree: MemoryTree) -> EditVerdict:
    (found,) = check_patch(patch, tree)
    return found


def patched(tree: MemoryTree, *patches: Patch, relative: str = "worker.py") -> str:
    composition = compose(patches, tree)
    assert [str(problem) for problem in composition.problems] == []
    return composition.contents()[relative].decode()


def test_an_anchor_in_its_symbol_is_placed_and_nothing_else_changes(tree: MemoryTree, make_patch: MakePatch) -> None:
    lines = patched(tree, make_patch()).split("\n")
    before = WORKER.decode().split("\n")
    assert lines[8] == "        self.extra = 1"
    assert lines[:8] + lines[9:-2] == before[:-1]
    assert lines[-2].startswith("__overlay__ = {")


def test_a_line_that_is_gone_is_refused_with_the_nearest_line(tree: MemoryTree, make_patch: MakePatch) -> None:
    found = only(make_patch(edit(find="if self.readiness:")), tree)
    assert found.verdict is Verdict.ANCHOR_GONE
    assert "line 9: if self.ready:" in found.message and "%" in found.message
    assert found.symbol == "vllm.worker:Worker.load"


def test_a_line_of_another_function_is_never_taken(tree: MemoryTree, make_patch: MakePatch) -> None:
    found = only(make_patch(edit(symbol="Worker.start", find="self.ready = False")), tree)
    assert found.verdict is Verdict.ANCHOR_GONE


def test_a_line_that_moved_into_an_inner_function_is_not_taken(tree: MemoryTree, make_patch: MakePatch) -> None:
    where = {"symbol": "outer", "find": "x = 1"}
    tree.files = {"worker.py": b"def outer():\n    x = 1\n    return x\n"}
    assert only(make_patch(edit(**where), body="y = 2\n"), tree).verdict is Verdict.OK
    tree.files = {"worker.py": b"def outer():\n    def inner():\n        x = 1\n        return x\n    return inner()\n"}
    assert only(make_patch(edit(**where), body="y = 2\n", patch_id="moved"), tree).verdict is Verdict.ANCHOR_GONE


def test_part_of_a_line_is_not_an_anchor(tree: MemoryTree, make_patch: MakePatch) -> None:
    assert only(make_patch(edit(find="self.ready")), tree).verdict is Verdict.ANCHOR_GONE


@pytest.mark.parametrize(
    ("count", "verdict"), [(1, Verdict.ANCHOR_AMBIGUOUS), (3, Verdict.OK), (4, Verdict.ANCHOR_AMBIGUOUS)]
)
def test_an_anchor_must_be_there_exactly_as_often_as_declared(
    tree: MemoryTree, make_patch: MakePatch, count: int, verdict: Verdict
) -> None:
    found = only(make_patch(edit(symbol="", find="return self.ready", count=count)), tree)
    assert found.verdict is verdict
    if verdict is not Verdict.OK:
        assert "3 times, at lines 11, 18, 23" in found.message


def test_matches_of_one_anchor_do_not_share_lines(tree: MemoryTree, make_patch: MakePatch) -> None:
    tree.files = {"worker.py": b"x = 1\n" * 3}
    patch = make_patch(edit(op="replace", symbol=None, find="x = 1\nx = 1\n"), body="x = 2\n")
    assert patched(tree, patch).startswith("x = 2\nx = 1\n__overlay__")


def test_a_method_added_to_replaced_lines_is_a_conflict(tree: MemoryTree, make_patch: MakePatch) -> None:
    first = make_patch(edit(op="replace", symbol="Worker.start", find="return self.ready"), patch_id="first")
    append = make_patch(edit(op="append_symbol", symbol="Worker.start", find=None), patch_id="append")
    across = make_patch(
        edit(op="replace", symbol="", find="        return self.ready\n\n\nclass Other:"), patch_id="across"
    )
    assert compose([first, append], tree).problems == ()
    assert [problem.verdict for problem in compose([across, append], tree).problems] == [Verdict.CONFLICT] * 2


def test_a_renamed_symbol_is_refused_with_the_closest_names(tree: MemoryTree, make_patch: MakePatch) -> None:
    found = only(make_patch(edit(symbol="Worker.loads")), tree)
    assert found.verdict is Verdict.SYMBOL_GONE
    assert "Worker.load" in found.message


def test_a_method_that_moved_to_another_class_is_named(tree: MemoryTree, make_patch: MakePatch) -> None:
    assert "Worker.start" in only(make_patch(edit(symbol="Engine.start")), tree).message


def test_a_missing_file_is_refused(tree: MemoryTree, make_patch: MakePatch) -> None:
    assert only(make_patch(edit(module="vllm.gone")), tree).verdict is Verdict.FILE_GONE


def test_a_module_that_became_a_package_says_how_to_name_it(tree: MemoryTree, make_patch: MakePatch) -> None:
    tree.files = {"worker/__init__.py": WORKER}
    found = only(make_patch(), tree)
    assert (found.verdict, found.fix) == (Verdict.FILE_GONE, "end the module's name with .__init__")
    assert only(make_patch(edit(module="vllm.worker.__init__"), patch_id="other"), tree).verdict is Verdict.OK


def test_two_patches_that_want_one_line_are_both_named(tree: MemoryTree, make_patch: MakePatch) -> None:
    first = make_patch(edit(op="replace"), patch_id="first", body="if not self.ready:\n")
    second = make_patch(edit(), patch_id="second")
    problems = compose([first, second], tree).problems
    assert {problem.verdict for problem in problems} == {Verdict.CONFLICT}
    assert "second/one" in problems[0].message and "first/one" in problems[1].message


def test_an_insertion_inside_replaced_lines_is_a_conflict(tree: MemoryTree, make_patch: MakePatch) -> None:
    whole = "if self.ready:\n    self.start()\n"
    first = make_patch(edit(op="replace", find=whole), patch_id="first", body="self.start()\n")
    second = make_patch(edit(find="self.start()"), patch_id="second")
    assert [problem.verdict for problem in compose([first, second], tree).problems] == [Verdict.CONFLICT] * 2


def test_two_insertions_at_one_line_follow_the_series(tree: MemoryTree, make_patch: MakePatch) -> None:
    first, second = make_patch(patch_id="first", body="a = 1\n"), make_patch(patch_id="second", body="b = 2\n")
    assert "        a = 1\n        b = 2\n        if" in patched(tree, first, second)
    assert "        b = 2\n        a = 1\n        if" in patched(tree, second, first)


def test_edits_of_two_patches_to_one_file_do_not_depend_on_their_order(tree: MemoryTree, make_patch: MakePatch) -> None:
    first = make_patch(patch_id="first")
    second = make_patch(edit(symbol="Other.load", find="return self.ready"), patch_id="second")

    def without_footer(*patches: Patch) -> str:
        return patched(tree, *patches).rpartition("__overlay__")[0]

    assert without_footer(first, second) == without_footer(second, first)
    assert without_footer(first, second).count("self.extra = 1") == 2


@pytest.mark.parametrize("residue", ["worker.py", "_overlay/__init__.py"])
def test_a_base_that_was_built_before_is_refused(tree: MemoryTree, make_patch: MakePatch, residue: str) -> None:
    patch = make_patch(edit(), new_module(body="module.pyfrag"), bodies={"module.pyfrag": "EXTRA = 1\n"})
    assert compose([patch], tree).problems == ()
    tree.files |= {residue: compose([patch], tree).contents()[residue]}
    (problem,) = compose([patch], tree).problems
    assert (problem.verdict, problem.edit) == (Verdict.RESIDUE, "one" if residue == "worker.py" else "new")


@pytest.mark.parametrize("body", ["if True\n", "return = 1\n", "break\n", "nonlocal unknown\n"])
def test_a_body_that_does_not_compile_is_refused(tree: MemoryTree, make_patch: MakePatch, body: str) -> None:
    assert only(make_patch(body=body), tree).verdict is Verdict.BREAKS_SYNTAX


def test_only_the_edit_that_breaks_the_file_is_blamed(tree: MemoryTree, make_patch: MakePatch) -> None:
    good, bad = make_patch(patch_id="good"), make_patch(edit(find="self.ready = False"), patch_id="bad", body="else:\n")
    assert [(verdict.patch, verdict.verdict) for verdict in compose([good, bad], tree).problems] == [
        ("bad", Verdict.BREAKS_SYNTAX)
    ]


def test_a_broken_added_module_is_refused(tree: MemoryTree, make_patch: MakePatch) -> None:
    assert only(make_patch(new_module(), body="def (\n"), tree).verdict is Verdict.BREAKS_SYNTAX
    assert only(make_patch(new_module(), body="x = 1\n", patch_id="good"), tree).verdict is Verdict.OK


def test_two_patches_that_add_one_module_conflict(tree: MemoryTree, make_patch: MakePatch) -> None:
    patches = [make_patch(new_module(), patch_id=name, body="x = 1\n") for name in ("first", "second")]
    assert [problem.verdict for problem in compose(patches, tree).problems] == [Verdict.CONFLICT] * 2


def test_a_body_inside_an_open_statement_is_refused_even_where_it_would_compile(
    tree: MemoryTree, make_patch: MakePatch
) -> None:
    patch = make_patch(edit(symbol="Worker.start", op="after", find="1,"), body="self.extra,\n")
    found = only(patch, tree)
    assert found.verdict is Verdict.BREAKS_SYNTAX and "lines 14 to 17" in found.message


def test_an_edit_that_changes_nothing_is_refused(tree: MemoryTree, make_patch: MakePatch) -> None:
    same = make_patch(edit(op="replace"), patch_id="same", body="# as before\nif self.ready:\n")
    comment = make_patch(patch_id="comment", body="# nothing runs here\n")
    assert [only(patch, tree).verdict for patch in (same, comment)] == [Verdict.NO_OP] * 2


def test_text_of_a_docstring_is_not_taken_for_code(tree: MemoryTree, make_patch: MakePatch) -> None:
    tree.files = {"worker.py": b'"""A worker.\n\nself.ready = False\n"""\n'}
    replace = make_patch(edit(op="replace", symbol="", find="self.ready = False"), patch_id="replace")
    insert = make_patch(edit(symbol="", find="self.ready = False"), patch_id="insert")
    assert only(replace, tree).verdict is Verdict.NO_OP
    assert only(insert, tree).verdict is Verdict.BREAKS_SYNTAX


def test_a_change_that_upstream_has_is_obsolete(tree: MemoryTree, make_patch: MakePatch) -> None:
    upstream: dict[str, Any] = {"status": "pending", "refs": ["a/b#1"], "drop_when": "it is merged"}
    merged = make_patch(patch_id="merged", upstream={**upstream, "obsolete_if": ["self.ready = False"]})
    pending = make_patch(patch_id="pending", upstream={**upstream, "obsolete_if": ["self.extra"]})
    found = only(merged, tree)
    assert found.verdict is Verdict.OBSOLETE and "it is merged (a/b#1)" in found.message
    assert only(pending, tree).verdict is Verdict.OK


def test_a_version_without_a_place_is_told_apart_from_a_failure(tree: MemoryTree, make_patch: MakePatch) -> None:
    tree.vllm_version = "0.31.0"
    found = only(make_patch(), tree)
    assert (found.verdict, found.edit) == (Verdict.NOT_FOR_VERSION, "") and ">=0.30,<0.31" in found.message


def test_a_base_that_is_not_python_is_refused(tree: MemoryTree, make_patch: MakePatch) -> None:
    tree.files = {"worker.py": b"def (\n"}
    assert only(make_patch(), tree).verdict is Verdict.BREAKS_SYNTAX
    tree.files = {"worker.py": b"\xff\xfe\n"}
    assert only(make_patch(patch_id="other"), tree).verdict is Verdict.BREAKS_SYNTAX


def test_all_problems_of_all_patches_are_reported_at_once(tree: MemoryTree, make_patch: MakePatch) -> None:
    first = make_patch(edit(find="gone"), edit(id="two", symbol="Gone"), patch_id="first")
    second = make_patch(edit(module="vllm.gone"), patch_id="second")
    assert [problem.verdict for problem in compose([first, second], tree).problems] == [
        Verdict.ANCHOR_GONE,
        Verdict.SYMBOL_GONE,
        Verdict.FILE_GONE,
    ]


def test_append_adds_a_method_to_a_class_and_a_function_to_a_module(tree: MemoryTree, make_patch: MakePatch) -> None:
    method = edit(op="append_symbol", symbol="Worker", find=None)
    function = edit(id="two", op="append_symbol", symbol=None, find=None)
    module = ast.parse(patched(tree, make_patch(method, function, body="def extra(self):\n    return 1\n")))
    worker = module.body[2]
    assert isinstance(worker, ast.ClassDef)
    assert [node.name for node in worker.body if isinstance(node, ast.FunctionDef)] == ["load", "start", "extra"]
    assert [node.name for node in module.body if isinstance(node, ast.FunctionDef)] == ["extra"]


def test_append_refuses_a_symbol_that_is_defined_twice_or_on_one_line(tree: MemoryTree, make_patch: MakePatch) -> None:
    append = make_patch(edit(op="append_symbol", symbol="f", find=None), body="x = 1\n")
    tree.files = {"worker.py": b"def f(): pass\n"}
    assert only(append, tree).verdict is Verdict.BREAKS_SYNTAX
    tree.files = {"worker.py": b"if 1:\n    def f():\n        pass\nelse:\n    def f():\n        pass\n"}
    assert only(append, tree).verdict is Verdict.ANCHOR_AMBIGUOUS
    tree.files = {"worker.py": b"def f():\n    pass\n"}
    assert only(append, tree).verdict is Verdict.OK


def test_windows_line_ends_of_the_base_are_kept(tree: MemoryTree, make_patch: MakePatch) -> None:
    tree.files = {"worker.py": WORKER.replace(b"\n", b"\r\n")}
    content = patched(tree, make_patch())
    assert content.count("\n") == content.count("\r\n") == WORKER.count(b"\n") + 2


def test_a_string_in_a_body_keeps_its_value(tree: MemoryTree, make_patch: MakePatch) -> None:
    content = patched(tree, make_patch(body='self.text = """one\ntwo"""\nself.extra = 1\n'))
    values = [node.value for node in ast.walk(ast.parse(content)) if isinstance(node, ast.Constant)]
    assert "one\ntwo" in values and "\n        self.extra = 1\n" in content


@pytest.mark.parametrize(
    ("expect", "expected"),
    [
        ({}, False),
        ({">=0.30": "ANCHOR_GONE"}, True),
        ({"<0.30": "ANCHOR_GONE"}, False),
        ({">=0.30": "OBSOLETE"}, False),
    ],
)
def test_a_declared_verdict_is_the_only_good_one(
    tree: MemoryTree, make_patch: MakePatch, expect: dict[str, str], expected: bool
) -> None:
    patch = make_patch(edit(find="gone"), expect=expect)
    assert as_expected(patch, "0.30.0", check_patch(patch, tree)) is expected
