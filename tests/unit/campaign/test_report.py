"""The report says what the bundle says: no number of its own, no text that becomes markup, no piece passed over."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from shardwright.campaign.evidence import file_hashes
from shardwright.campaign.report.markdown import markdown, plain
from shardwright.campaign.report.page import html_page
from shardwright.campaign.report.stored import load_run
from tests.report_sample import STORED, write_comparison, write_run
from tests.unit.helpers import Result

Cli = Callable[..., Result]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "run", "45,33", "up", failures=11)


@pytest.fixture(scope="module")
def ab_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_comparison(tmp_path_factory.mktemp("runs") / "ab")


def page_of(folder: Path) -> str:
    return html_page(load_run(folder))


def section_of(page: str, title: str) -> str:
    found = re.search(rf"<section id=\"[a-z-]+\"><h2>{title}</h2>(.*?)</section>", page, re.DOTALL)
    assert found, f"no section {title}"
    return found[1]


def words(markup: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", markup)).split())


def damaged(folder: Path, target: Path, name: str, content: Any) -> Path:
    """A copy of a bundle in which one file says something else; None removes it."""
    import shutil

    shutil.copytree(folder, target)
    if content is None:
        (target / name).unlink()
    else:
        (target / name).write_text(json.dumps(content))
    return target


def test_the_verdict_and_its_reasons_stand_before_everything_else(run_folder: Path):
    page = page_of(run_folder)
    head = page[page.index("<header") : page.index("</header>")]
    assert page.index("</header>") < page.index("<section ")
    assert "✗ FAIL" in words(head)
    for reason in json.loads((run_folder / "verdict.json").read_text())["reasons"]:
        assert reason in words(head)


def test_every_number_of_the_reports_is_that_of_the_bundle(run_folder: Path):
    text = words(section_of(page_of(run_folder), "Probes"))
    for report in json.loads((run_folder / "reports.json").read_text()):
        if report["verdict"] != "SKIP":
            sign = "✓" if report["verdict"] == "PASS" else "✗"
            counts = f"{report['failures']} of {report['trials']} failed"
            assert f"{report['probe']} {sign} {report['verdict']} {counts}" in text


def test_requests_without_an_answer_are_counted_apart_from_failures(tmp_path: Path, run_folder: Path):
    reports = json.loads((run_folder / "reports.json").read_text())
    smoke = {**reports[0], "trials": 7, "errors": 2}
    text = words(section_of(page_of(damaged(run_folder, tmp_path / "x", "reports.json", [smoke])), "Probes"))
    assert "smoke ✓ PASS 0 of 7 failed, 2 errors " in text


def test_a_probe_that_was_not_asked_is_told_apart_from_a_pass_and_from_one_declared_meaningless(run_folder: Path):
    text = words(section_of(page_of(run_folder), "Probes"))
    assert "parity – not asked" in text
    assert "repeat – not asked" in text
    stored = words(section_of(page_of(STORED / "run-up"), "Probes"))
    assert "quality – not applicable" in stored
    assert "speed – not asked" in stored


def test_memory_and_bottleneck_are_those_of_the_plan(run_folder: Path):
    pool = json.loads((run_folder / "plan.json").read_text())["predicted"]["pool"]
    text = words(section_of(page_of(run_folder), "Memory"))
    assert f"Predicted pool: {pool['pool_tokens']:,} tokens" in text
    assert f"bottleneck: stage {pool['bottleneck_stage']}" in text
    for stage in pool["stages"]:
        assert f"stage {stage['stage']}, predicted {stage['available_gib']:,.2f} GiB" in text
    # 11.75 GiB hold fewer tokens than 9.75, for a token takes more bytes there.
    assert "stage 0, observed 11.75 GiB – bottleneck" in text
    assert "stage 1, observed 9.75 GiB" in text
    assert f"pool tokens {pool['pool_tokens']:,} 403,840 finding" in text


def test_orphans_are_marked_by_letter_and_pattern_and_only_where_there_are_some(run_folder: Path, ab_folder: Path):
    page = page_of(run_folder)
    strip = section_of(page, "Partition")
    assert re.findall(r'title="layer (\d+), orphan"', strip) == ["45"]
    assert "boundary: layer 44 | 45" in words(strip)
    assert "repeating-linear-gradient(45deg" in page
    control, candidate = section_of(page_of(ab_folder), "Partition").split("<h3>candidate</h3>")
    assert (control.count(", orphan"), candidate.count(", orphan")) == (0, 1)


def test_every_layer_is_on_the_strip_once(run_folder: Path):
    strip = section_of(page_of(run_folder), "Partition")
    assert [int(layer) for layer in re.findall(r'title="layer (\d+)', strip)] == list(range(78))


def test_degeneration_shows_rate_bound_and_fisher(run_folder: Path):
    text = words(section_of(page_of(run_folder), "Degeneration"))
    assert "degen 11/200, at most 8.94 %" in text
    assert "task long 11/100, at most" in text
    assert "degen, control 0/200, at most 1.49 %" in text
    assert "Fisher one-sided p = 0.000392" in text


def test_the_needle_map_is_drawn_from_the_trials(run_folder: Path):
    drawn = section_of(page_of(run_folder), "Needles")
    assert drawn.count(': EXACT">E</td>') == 25
    assert drawn.count(': WRONG">W</td>') == 1
    assert re.findall(r"<caption>(\w+), by depth", drawn) == ["cold", "warm", "concurrent"]
    assert "1 of 26 lost, at most" in words(drawn)


def test_the_proof_ladder_names_each_rung_and_what_is_open(run_folder: Path):
    proof = json.loads((run_folder / "proof.json").read_text())
    text = words(section_of(page_of(run_folder), "Patch proof"))
    assert text.startswith("Proven.")
    for rung in proof["rungs"]:
        assert rung in text
    assert "no model code; its hit line decides" in text


def test_gates_findings_and_waivers_are_shown(tmp_path: Path, run_folder: Path):
    finding = {"gate": "pp-dsa", "verdict": "warn", "message": "layer 45", "why": "w", "fix": "f", "evidence": ""}
    gates = {"verdict": "warn", "findings": [finding], "waivers": ["pp-dsa"]}
    text = words(section_of(page_of(damaged(run_folder, tmp_path / "x", "gates.json", gates)), "Gates"))
    assert "? warn pp-dsa layer 45 why: w fix: f" in text
    assert "Waived by name pp-dsa" in text
    assert "Nothing is waived." in words(section_of(page_of(run_folder), "Gates"))


def test_the_command_stands_with_the_origin_of_every_part(run_folder: Path):
    command = json.loads((run_folder / "command.json").read_text())
    folded = section_of(page_of(run_folder), "Command")
    assert folded.startswith("<details><summary>")
    text = words(folded)
    assert " ".join(command["shell"].split()) in text
    assert all(part["origin"] in text for part in command["parts"])


def test_text_of_the_bundle_never_becomes_markup(tmp_path: Path, run_folder: Path):
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>\" ' & | `x` @all"
    verdict = {"verdict": evil, "reasons": [evil], "probes": {}, "mode": evil}
    page = page_of(damaged(run_folder, tmp_path / "v", "verdict.json", verdict))
    manifest = json.loads((run_folder / "manifest.json").read_text()) | {"layout": evil, "arm": evil}
    page += page_of(damaged(run_folder, tmp_path / "m", "manifest.json", manifest))
    reports = json.loads((run_folder / "reports.json").read_text())
    for report in reports:
        report["probe"], report["reasons"] = report["probe"], [evil]
    page += page_of(damaged(run_folder, tmp_path / "r", "reports.json", reports))
    gates = {"verdict": evil, "findings": [], "waivers": [evil]}
    page += page_of(damaged(run_folder, tmp_path / "g", "gates.json", gates))
    assert "<script" not in page
    assert "<img" not in page
    assert page.count("&lt;script&gt;") >= 6
    table = markdown(load_run(tmp_path / "v"))
    assert "\\<script\\>" in table and "\\|" in table and "\\`x\\`" in table


@pytest.mark.parametrize(
    ("name", "title", "told"),
    [
        ("gates.json", "Gates", "the gates did not run"),
        ("plan.json", "Memory", "no prediction: the run wrote no plan"),
        ("plan.json", "Partition", "the split is not known"),
        ("proof.json", "Patch proof", "the patches were not proven"),
        ("command.json", "Command", "the run wrote no command"),
        ("reports.json", "Degeneration", "not asked"),
        ("reports.json", "Latency", "not asked"),
        ("trials/needle.jsonl", "Needles", "PASS"),
    ],
)
def test_a_piece_that_the_run_never_wrote_is_said_to_be_missing(
    tmp_path: Path, ab_folder: Path, name: str, title: str, told: str
):
    page = page_of(damaged(ab_folder / "control", tmp_path / "x", name, None))
    assert told in words(section_of(page, title))


def test_a_bundle_that_was_changed_or_never_sealed_says_so_on_top(tmp_path: Path, run_folder: Path):
    assert 'class="warning"' not in page_of(run_folder)
    altered = page_of(damaged(run_folder, tmp_path / "a", "gates.json", {"verdict": "accept", "findings": []}))
    assert "not those that were sealed" in words(altered[: altered.index("</header>")])
    unsealed = damaged(run_folder, tmp_path / "b", "seal.json", None)
    (unsealed / "verdict.json").unlink()
    page = page_of(unsealed)
    assert "no verdict" in words(page[: page.index("</header>")])
    assert "This run did not end" in words(page[: page.index("</header>")])


def test_a_comparison_shows_its_rows_and_both_arms(ab_folder: Path):
    page = page_of(ab_folder)
    text = words(section_of(page, "Control and candidate"))
    for row in json.loads((ab_folder / "ab.json").read_text())["rows"]:
        assert " ".join([row["group"], row["metric"], *row["cells"]]) in text
        assert row["reason"] in text
    for title in ("Memory", "Degeneration", "Needles"):
        section = section_of(page, title)
        assert section.index("<h3>control</h3>") < section.index("<h3>candidate</h3>")
    assert "layers 42,36" in page and "layers 45,33" in page
    asked = words(section_of(page, "Probes"))
    assert "degen ✓ PASS 0 of 200 failed ✗ FAIL 11 of 200 failed candidate: 11 of 200 trials" in asked
    assert "repeat – not asked – not asked an earlier probe fails speed" in asked


def test_what_is_the_same_in_both_arms_stands_once_and_says_so(ab_folder: Path):
    page = page_of(ab_folder)
    for title, same in (("Patch proof", True), ("Gates", True), ("Partition", False), ("Needles", False)):
        drawn = section_of(page, title)
        assert (drawn.count("The same in both arms."), drawn.count("<h3>candidate</h3>")) == (same, not same)


def test_the_page_needs_nothing_from_elsewhere_and_forbids_it(run_folder: Path):
    page = page_of(run_folder)
    assert "default-src &#x27;none&#x27;" in page or "default-src 'none'" in page
    links = set(re.findall(r'(?:src|href)="([^"]*)"', page))
    assert links - {"data:,"} == {f"#{name}" for name in re.findall(r'<section id="([^"]*)"', page)}
    assert "url(" not in page and "@import" not in page


@pytest.mark.parametrize("name", ["run-up", "run-ab"])
def test_the_command_writes_beside_the_bundle_and_leaves_it_as_it_is(cli: Cli, tmp_path: Path, name: str):
    import shutil

    folder = tmp_path / "runs" / name
    shutil.copytree(STORED / name, folder)
    before = file_hashes(folder)
    result = cli("report", name, DEPLOY_PROJECT=str(tmp_path))
    assert (result.code, result.out) == (0, f"{folder}.html\n")
    assert folder.with_suffix(".html").read_text() == page_of(folder)
    assert file_hashes(folder) == before
    refused = cli("report", str(folder), "--output", str(folder / "report.html"))
    assert refused.code == 64 and "inside the bundle" in refused.err


def test_markdown_of_a_run_says_what_failed_on_what_and_where_the_evidence_lies(cli: Cli, run_folder: Path):
    told = cli("report", str(run_folder), "--markdown").out
    assert told.startswith("### ✗ FAIL: glm53-tp4pp2, up\n\n- degen: 11 of 200")
    assert "|---|---|---:|---:|\n" in told
    assert "| degen | ✗ FAIL | 11/200 | 8.94 % |" in told
    assert "\nNot asked: repeat, parity, degen-long.\n" in told and "| parity" not in told
    assert "bottleneck stage 0" in told
    assert "split TP 4, PP 2, layers 45,33; engine 0.30.0 engine:1; patches pp-index-transport\n" in told
    seal = json.loads((run_folder / "seal.json").read_text())["digest"]
    assert told.endswith(f"- evidence: run, sealed {seal[:16]}\n")


def test_markdown_of_a_comparison_folds_what_decides_nothing(cli: Cli, tmp_path: Path, ab_folder: Path):
    told = cli("report", str(ab_folder), "--markdown").out
    assert "| step\\_ms prose greedy c1 | 41.20 | 40.90 | ✓ PASS | within 3 % |" in told
    decided, reported = told.split("<details><summary>only reported: 1</summary>\n\n|")
    assert "pool predicted" not in decided and "| pool predicted, tokens | 1,000 | 900 |   |" in reported
    assert "\n\n</details>\n" in reported
    assert "- control: " in told and "layers 42,36" in told and "layers 45,33" in told
    altered = damaged(ab_folder, tmp_path / "x", "manifest.json", json.loads((ab_folder / "manifest.json").read_text()))
    (altered / "ab.json").write_text((altered / "ab.json").read_text().replace("within 3 %", "within 4 %"))
    assert "**The files are not those that were sealed" in markdown(load_run(altered))


def test_markdown_calls_nobody_and_links_no_issue():
    assert plain("@all see #12, a_b * ~~x~~ $y$ # 3 a@ b") == (
        "@<!-- -->all see #<!-- -->12, a\\_b \\* \\~\\~x\\~\\~ \\$y\\$ # 3 a@ b"
    )


def test_what_is_no_run_is_refused_with_the_next_step(cli: Cli, tmp_path: Path):
    for words_ in (
        ("report", "nothing"),
        ("report", str(tmp_path)),
        ("report", str(STORED / "run-up"), "--markdown", "--open"),
    ):
        result = cli(*words_)
        assert result.code == 64
        assert "fix:" in result.err


def test_a_run_that_was_refused_says_so_and_why(tmp_path: Path, run_folder: Path):
    refused = damaged(run_folder, tmp_path / "x", "reports.json", [])
    (refused / "verdict.json").unlink()
    (refused / "refused.json").write_text(json.dumps({"what": "no card", "why": "w", "fix": "add one", "exit": 1}))
    page = page_of(refused)
    head = words(page[page.index("<header") : page.index("</header>")])
    assert "✗ REFUSED" in head
    assert "no card why: w fix: add one" in head
    assert "- fix: add one" in markdown(load_run(refused))


def test_a_damaged_bundle_is_refused_in_words(cli: Cli, tmp_path: Path, run_folder: Path):
    for number, (name, content) in enumerate((("plan.json", [1]), ("reports.json", [{}]), ("gates.json", {"x": 1}))):
        folder = damaged(run_folder, tmp_path / str(number), name, content)
        result = cli("report", str(folder))
        assert (result.code, "deploy evidence verify" in result.err) == (1, True)
        assert not folder.with_name(f"{number}.html").exists()


def test_bars_of_both_arms_have_one_scale(ab_folder: Path):
    control, candidate = section_of(page_of(ab_folder), "Degeneration").split("<h3>candidate</h3>")
    widest = re.findall(r"Full width: ([^<]*)\.<", control + candidate)
    assert len(widest) == 2 and len(set(widest)) == 1


@pytest.mark.parametrize("opens", [True, False])
def test_open_hands_the_file_to_the_browser(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opens: bool, run_folder: Path
):
    asked: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: asked.append(address) or opens)
    result = cli("report", str(run_folder), "--open", "--output", str(tmp_path / "a page.html"))
    assert (result.code, asked) == (0, [f"file://{tmp_path}/a%20page.html"])
    assert ("no browser opens it" in result.err) is not opens
