"""The four rungs of the proof, each once where it holds and once for every way in which it may not."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from overlay_samples import MemoryTree, edit, new_module

from shardwright.overlay import inspector
from shardwright.overlay.build import build_overlay
from shardwright.overlay.lock import Lock
from shardwright.overlay.patch import Patch
from shardwright.overlay.prove import (
    Proof,
    ProofRow,
    bytes_rung,
    expected_hits,
    hits_rung,
    import_rung,
    reach_rung,
)

MakePatch = Callable[..., Patch]
LINE = "[overlay] demo hit"


@pytest.fixture
def lock(tree: MemoryTree, make_patch: MakePatch, tmp_path: Path) -> Lock:
    patch = make_patch(edit(), new_module(body="module.pyfrag"), bodies={"module.pyfrag": "EXTRA = 1\n"})
    return build_overlay([patch], "0.30.0", tree, tmp_path / "overlay")


def verdict_of(lock: Lock, inside: Mapping[str, str | None], host: Mapping[str, str | None], *mounted: str) -> str:
    rows = {row.subject: row for row in bytes_rung(lock, inside, host, mounted, "demo")}
    assert all(row.fix or row.verdict == "OK" for row in rows.values())
    return rows["worker.py"].verdict


def test_bytes_hold_only_where_mounted_built_and_unchanged(lock: Lock) -> None:
    good = lock.results()
    other, base = {**good, "worker.py": "f" * 64}, {**good, "worker.py": lock.files[0].base_sha256}
    mounts = ("worker.py", "_overlay")
    assert verdict_of(lock, good, good, *mounts) == "OK"
    assert verdict_of(lock, base, good, "_overlay") == "UNMOUNTED"
    assert verdict_of(lock, other, good, *mounts) == "STALE_MOUNT"
    assert verdict_of(lock, good, other, *mounts) == "TAMPERED"
    assert verdict_of(lock, other, other, *mounts) == "TAMPERED"
    assert verdict_of(lock, good, {}, *mounts) == "TAMPERED"
    rows = list(bytes_rung(lock, good, good, mounts, "demo"))
    assert [row.verdict for row in rows] == ["OK"] * 3, "the additive folder is mounted as one"


def imports(lock: Lock, **seen: Any) -> str:
    found = {"file": "/site/vllm/worker.py", "series": lock.series, "error": "", **seen}
    (row,) = import_rung(lock, "/site/vllm", {"vllm.worker": found}, "demo")
    return row.verdict


def test_imports_hold_only_for_the_mounted_file_and_its_own_code(lock: Lock) -> None:
    assert imports(lock) == "OK"
    assert imports(lock, file="/other/vllm/worker.py") == "NOT_LIVE"
    assert imports(lock, series="0123456789ab") == "NOT_LIVE", "old bytecode names another series"
    assert imports(lock, series=None) == "NOT_LIVE"
    assert imports(lock, error="ImportError: x") == "BREAKS_IMPORT"


def test_a_package_is_imported_from_its_init_file(make_patch: MakePatch, tmp_path: Path) -> None:
    tree = MemoryTree({"tools/__init__.py": b"READY = True\n"})
    patch = make_patch(edit(module="vllm.tools.__init__", symbol=None, find="READY = True"), body="EXTRA = 1\n")
    lock = build_overlay([patch], "0.30.0", tree, tmp_path / "overlay")
    verdicts = {}
    for file in ("/site/vllm/tools/__init__.py", "/site/vllm/tools.py"):
        found = {"file": file, "series": lock.series, "error": ""}
        (row,) = import_rung(lock, "/site/vllm", {"vllm.tools": found}, "demo")
        verdicts[file] = (row.verdict, row.patch)
    assert list(verdicts.values()) == [("OK", "demo"), ("NOT_LIVE", "demo")]


def test_what_only_a_draft_runs_is_not_asked_for_where_none_is_served(make_patch: MakePatch) -> None:
    patch = make_patch(edit())
    edits = patch.edits_for("0.30.0")
    served = list(reach_rung(patch, edits, {"one": False}, "vllm.a:A", "cuda", "demo"))
    alone = list(reach_rung(patch, edits, {"one": False}, "vllm.a:A", "cuda", "demo", ["one"]))
    assert [row.verdict for row in (*served, *alone)] == ["UNREACHED", "OK"]
    assert "only a draft" in alone[0].message


@pytest.mark.parametrize(
    ("required_on", "runs", "verdict"),
    [
        (None, True, "OK"),
        (None, False, "UNREACHED"),
        (["cpu"], False, "OK"),
        (["cuda"], False, "UNREACHED"),
        (None, None, "UNKNOWN"),
    ],
)
def test_reach_is_asked_of_each_symbol_that_the_platform_requires(
    make_patch: MakePatch, required_on: list[str] | None, runs: bool | None, verdict: str
) -> None:
    patch = make_patch(edit(required_on=required_on))
    (row,) = reach_rung(patch, patch.edits_for("0.30.0"), {"one": runs}, "vllm.a:A", "cuda", "demo")
    assert row.verdict == verdict


def hits(patch: Patch, orphans: list[list[int]], log: list[str], tensor: int = 1) -> dict[str, str]:
    rows = list(hits_rung(patch, expected_hits(patch, orphans, tensor), log, "demo"))
    return {row.subject: row.verdict for row in rows}


def proving(make_patch: MakePatch, stages: str) -> Patch:
    return make_patch(prove={"hit": {"line": LINE, "stages": stages}})


def test_every_rank_that_must_hit_is_asked_for_and_no_other_may(make_patch: MakePatch) -> None:
    patch, two = proving(make_patch, "later"), [[], []]
    one, zero = f"INFO {LINE} pp_rank=1", f"INFO {LINE} pp_rank=0"
    assert hits(patch, two, [one]) == {"stage 1": "OK"}
    assert hits(patch, two, []) == {"stage 1": "NOT_LIVE"}
    assert hits(patch, two, [one], tensor=2) == {"stage 1": "NOT_LIVE"}
    assert hits(patch, two, [one, one], tensor=2) == {"stage 1": "OK"}
    assert hits(patch, two, [zero, one]) == {"stage 1": "OK", "stage 0": "NOT_LIVE"}
    assert hits(patch, [[]], []) == {"": "OK"}, "one stage needs nothing"


def test_a_boundary_needs_both_its_sides(make_patch: MakePatch) -> None:
    patch, stages = proving(make_patch, "boundaries"), [[], [7, 8], [9]]
    sends = f"{LINE} pp_rank=0 recv=False send=True"
    passes = f"{LINE} pp_rank=1 recv=True send=True"
    receives = f"{LINE} pp_rank=2 recv=True send=False"
    all_ok = {"stage 0": "OK", "stage 1": "OK", "stage 2": "OK"}
    assert hits(patch, stages, [sends, passes, receives]) == all_ok
    half = hits(patch, stages, [sends, f"{LINE} pp_rank=1 recv=True send=False", receives])
    assert half == {**all_ok, "stage 1": "NOT_LIVE"}


def test_a_patch_without_a_readable_hit_line_is_unknown(make_patch: MakePatch) -> None:
    assert expected_hits(make_patch(), [[]], 1) == ()
    assert hits(make_patch(patch_id="other"), [[]], []) == {"": "UNKNOWN"}
    assert expected_hits(proving(make_patch, "somewhere"), [[]], 1) == ()
    for words in ({"when": ["raining"]}, {"ranks": "some"}):
        assert expected_hits(make_patch(prove={"hit": {"line": LINE, "stages": "all", **words}}), [[]], 1) == ()


def row(rung: str, verdict: str, patch: str = "demo") -> ProofRow:
    return ProofRow(rung, verdict, patch, "x", "", "")


def test_an_unknown_reach_is_settled_by_a_hit_and_by_nothing_else() -> None:
    hit = Proof("x", (row("reach", "UNKNOWN"), row("hits", "OK")))
    other = Proof("x", (row("reach", "UNKNOWN"), row("hits", "OK", "another")))
    failed = Proof("x", (row("bytes", "TAMPERED"), row("hits", "OK")))
    assert (hit.proven, other.proven, failed.proven) == (True, False, False)
    assert other.only_unknown and not failed.only_unknown
    assert failed.as_data()["rungs"] == {"bytes": "TAMPERED", "import": "UNKNOWN", "reach": "UNKNOWN", "hits": "OK"}


def inspected(site: Path, *modules: str) -> dict[str, Any]:
    request = json.dumps({"files": ["worker.py", "gone.py"], "modules": list(modules), "models": ["Served"]})
    script = Path(inspector.__file__).read_text()
    answer = subprocess.run(
        [sys.executable, "-P", "-c", script, request], env={"PYTHONPATH": str(site)}, capture_output=True, text=True
    ).stdout
    found: dict[str, Any] = json.loads(answer.splitlines()[-1].removeprefix(inspector.MARK))
    return found


def test_the_inspector_reports_what_an_interpreter_really_imports(tmp_path: Path) -> None:
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "worker.py").write_text('__overlay__ = {"series": "new"}\n')
    found = inspected(tmp_path, "vllm.worker", "vllm.gone")
    digest = hashlib.sha256((package / "worker.py").read_bytes()).hexdigest()
    assert found["root"] == str(package) and found["files"] == {"worker.py": digest, "gone.py": None}
    assert found["imports"]["vllm.worker"] == {"file": f"{package}/worker.py", "series": "new", "error": ""}
    assert "ModuleNotFoundError" in found["imports"]["vllm.gone"]["error"]
    assert found["models"]["Served"]["classes"] == []


def test_bytecode_of_an_earlier_file_shows_although_the_bytes_are_new(tmp_path: Path) -> None:
    import py_compile

    package = tmp_path / "vllm"
    package.mkdir()
    (package / "__init__.py").write_text("")
    worker = package / "worker.py"
    worker.write_text('__overlay__ = {"series": "old"}\n')
    py_compile.compile(str(worker), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    worker.write_text('__overlay__ = {"series": "new"}\n')
    assert inspected(tmp_path, "vllm.worker")["imports"]["vllm.worker"]["series"] == "old"
    py_compile.compile(str(worker))
    worker.write_text('__overlay__ = {"series": "newer"}\n')
    assert inspected(tmp_path, "vllm.worker")["imports"]["vllm.worker"]["series"] == "newer"
