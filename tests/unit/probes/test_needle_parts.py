"""The parts of the needle probe that need no server: texts, sizes, plans, judging, the map."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.campaign.request import prepare
from shardwright.errors import DeployError, ExitCode
from shardwright.layout.schema import NEEDLE_WORDINGS
from shardwright.probes.edges import Edges, both_sides, topk_warning
from shardwright.probes.needle.judge import NeedleClass, edit_distance, judge_answer, judge_trial
from shardwright.probes.needle.map import MARKS, grids, html_map, svg_map, text_map
from shardwright.probes.needle.plan import FULL_DEPTHS, Cell, NeedlePlan, Trial, full_plan, own_plan, quick_plan
from shardwright.probes.needle.report import compare_needles, report_from
from shardwright.probes.needle.size import MAX_CALLS, fit_prompt
from shardwright.probes.needle.text import WORDINGS, answer_to, draw_needle, pad_words, place_facts, sentences

GLM = Edges(block=64, index_topk=2048, chunk=8192, max_len=65_536)


# Texts


@pytest.mark.parametrize("name", WORDINGS)
def test_every_text_holds_its_needle_once_and_all_decoys(name: Any) -> None:
    wording = WORDINGS[name]
    needle = draw_needle(wording, "7", 4)
    for depth in FULL_DEPTHS:
        text = "".join(place_facts(list(islice(sentences(wording, "7"), 50)), wording, needle, depth, "7"))
        assert text.count(needle.code) == 1
        assert all(text.count(code) == 1 for _, code in needle.decoys)
        question = wording.question.format(key=needle.key)
        assert answer_to(f"{text}{wording.separator}{question}") == needle.code


def test_depth_is_the_place_of_the_needle() -> None:
    wording = WORDINGS["access-code"]
    needle = draw_needle(wording, "1", 0)
    haystack = list(islice(sentences(wording, "1"), 100))
    places = [
        place_facts(haystack, wording, needle, depth, "1").index(f" The access code for {needle.key} is {needle.code}.")
        for depth in (0, 25, 50, 100)
    ]
    assert places == [0, 25, 50, 100]


def test_a_prompt_that_is_no_needle_has_no_answer() -> None:
    assert answer_to("What is the capital of France?") is None
    assert answer_to("What is the access code for red-dog? Reply with the number only.") is None


def test_codes_lie_far_apart_so_that_a_near_miss_has_one_origin() -> None:
    for seed in range(200):
        needle = draw_needle(WORDINGS["magic-number"], str(seed), 4)
        codes = [needle.code, *(code for _, code in needle.decoys)]
        pairs = [(a, b) for i, a in enumerate(codes) for b in codes[:i]]
        assert all(sum(x != y for x, y in zip(a, b, strict=True)) >= 4 for a, b in pairs)


def test_a_haystack_does_not_repeat_itself() -> None:
    found = list(islice(sentences(WORDINGS["access-code"], "1"), 20_000))
    assert len(set(found)) > 0.999 * len(found)


def test_a_layout_can_name_every_wording() -> None:
    assert tuple(WORDINGS) == NEEDLE_WORDINGS
    assert prepare("tiny-cpu", {}).deployment.probes.needle_wording == "magic-number"


# Sizes


def count_words(text: str) -> int:
    return len(re.findall(r"\s?\w{1,6}|\s?[^\w\s]|\s", text))


def build(sentence_count: int, pads: int) -> str:
    wording = WORDINGS["access-code"]
    needle = draw_needle(wording, "3", 1)
    body = pad_words("3", pads) + "".join(
        place_facts(list(islice(sentences(wording, "3"), sentence_count)), wording, needle, 50, "3")
    )
    return f"{body}\n\n{wording.question.format(key=needle.key)}"


@given(target=st.integers(150, 60_000))
@settings(max_examples=25, deadline=None)
def test_sizes_are_exact_in_few_calls(target: int) -> None:
    prompt, calls = fit_prompt(build, count_words, target)
    assert count_words(prompt) == target
    assert calls <= MAX_CALLS


def test_the_same_cell_is_the_same_text_on_every_server() -> None:
    assert fit_prompt(build, count_words, 3001) == fit_prompt(build, count_words, 3001)


def test_a_length_that_cannot_be_met_is_a_fault_of_the_harness_and_ends() -> None:
    with pytest.raises(DeployError) as caught:
        fit_prompt(build, lambda text: 2 * count_words(text), 1001)
    assert caught.value.code == ExitCode.HARNESS
    with pytest.raises(DeployError, match="exactly 10 tokens"):
        fit_prompt(build, count_words, 10)


# Plans


def test_full_asks_on_both_sides_of_every_edge_and_four_residues() -> None:
    lengths = {cell.length for cell in full_plan(GLM).cells}
    top = 65_536 - 64
    for edge in (192, 2048, 8192, top):
        assert {edge - 1, edge, edge + 1} <= lengths, edge
    assert {length % 4 for length in lengths if 8000 < length <= 8192} == {0, 1, 2, 3}
    assert max(lengths) == top + 1


def test_full_asks_at_all_depths_and_with_thinking_where_there_is_room() -> None:
    plan = full_plan(GLM)
    assert {cell.depth for cell in plan.cells} == set(FULL_DEPTHS)
    assert plan.thinking_cells
    assert all(cell.length + 512 <= 65_536 for cell in plan.thinking_cells)
    assert full_plan(GLM, api="completions").thinking_cells == ()


def test_no_answer_is_promised_more_room_than_the_server_has() -> None:
    plan = full_plan(GLM)
    assert all(trial.cell.length + plan.max_tokens(trial) <= 65_536 for trial in plan.trials())
    longest = max(plan.trials(), key=lambda trial: trial.cell.length)
    assert plan.max_tokens(longest) == 63


def test_quick_is_eighteen_questions_around_index_topk_and_eight_at_a_time() -> None:
    plan = quick_plan(GLM)
    assert {cell.length for cell in plan.cells} == {2047, 2049, 8192}
    assert [trial.how for trial in plan.trials()] == ["cold", "warm"] * 9
    assert len(plan.concurrent_trials()) == 8
    assert plan.warning() is None


@pytest.mark.parametrize("edges", [Edges(), Edges(max_len=300), Edges(block=16, max_len=2048), Edges(index_topk=9999)])
def test_every_deployment_has_a_plan(edges: Edges) -> None:
    for plan in (quick_plan(edges), full_plan(edges)):
        assert plan.cells
        assert all(cell.length <= (edges.max_len or 40_000) for cell in plan.cells)
        assert "requests" in plan.budget()


def test_short_prompts_are_said_to_be_blind_to_a_sparse_indexer() -> None:
    edges = Edges(index_topk=2048, max_len=65_536)
    assert own_plan(edges, [1024], [50]).warning() == (
        "needle prompt 1024 <= index_topk 2048: sparse selection keeps every token, this probe cannot detect indexer "
        "faults; ask for a length of at least 2049"
    )
    assert own_plan(edges, [1024, 2049], [50]).warning() is None
    assert topk_warning("needle", [1024], None) is None


def test_sides_that_no_prompt_can_have_are_left_out() -> None:
    assert both_sides((100, 200), 100, 200) == (100, 101, 199, 200)


def test_plans_of_another_boot_or_deployment_are_other_plans() -> None:
    from shardwright.probes.server import Server
    from shardwright.probes.wire import Endpoint

    plan = quick_plan(GLM)
    server = Server(Endpoint("http://a:1"), "m", "0.30.0", "1")
    ids = {
        plan.id(server),
        plan.id(Server(Endpoint("http://a:1"), "m", "0.30.0", "2")),
        quick_plan(GLM, deployment="x").id(server),
        quick_plan(GLM, seed=2).id(server),
    }
    assert len(ids) == 4


# Judging


DECOYS = ["7654321", "1112223"]


@pytest.mark.parametrize(
    "text, finish, expected",
    [
        ("8412345", "stop", "EXACT"),
        ("The access code is 8,412,345.", "stop", "EXACT"),
        ("8412345 and again 8412345", "length", "EXACT"),
        ("8412346", "stop", "NEAR"),
        ("8412399", "stop", "NEAR"),
        ("8412999", "stop", "WRONG"),
        ("841234", "stop", "NEAR"),
        ("84123450", "stop", "NEAR"),
        ("7654321", "stop", "DISTRACTOR"),
        ("8412345 or 7654321", "stop", "DISTRACTOR"),
        ("5550000", "stop", "WRONG"),
        ("8412345 or 5550000", "stop", "WRONG"),
        ("I do not know.", "stop", "ABSTAIN"),
        ("in 3 of 12 cases", "stop", "ABSTAIN"),
        ("", "stop", "ABSTAIN"),
        ("", "length", "EMPTY_BUDGET"),
        ("<think>it is 8412345, I still", "length", "EMPTY_BUDGET"),
        ("<think>it is 8412345</think>5550000", "stop", "WRONG"),
        ("<think>hm</think>8412345", "stop", "EXACT"),
        ("８４１２３４５", "stop", "ABSTAIN"),
        ("8412345", None, "ERROR"),
        ("9" * 500, "length", "WRONG"),
    ],
)
def test_one_answer(text: str, finish: str | None, expected: str) -> None:
    assert judge_answer(text, finish, "8412345", DECOYS).outcome == expected


def test_a_needle_in_reasoning_alone_is_neither_found_nor_lost() -> None:
    record = {"content": None, "reasoning": "it is 8412345", "finish_reason": "length", "expected": "8412345"}
    outcome = judge_trial(record).outcome
    assert outcome is NeedleClass.EMPTY_BUDGET
    assert not outcome.lost


def test_a_prompt_of_another_size_is_no_trial_of_the_model() -> None:
    record = {"text": "8412345", "finish_reason": "stop", "expected": "8412345", "target_tokens": 512}
    assert judge_trial(record | {"prompt_tokens": 512}).outcome is NeedleClass.EXACT
    assert judge_trial(record | {"prompt_tokens": 511}).outcome is NeedleClass.ERROR
    assert judge_trial(record | {"prompt_tokens": None}).outcome is NeedleClass.ERROR


def test_a_stall_is_told_from_a_lost_connection() -> None:
    assert judge_trial({"error": {"detail": "nothing for 3 s", "stall": True}}).outcome is NeedleClass.STALL
    assert judge_trial({"error": {"detail": "connection lost"}}).outcome is NeedleClass.ERROR


@given(a=st.text("123", max_size=5), b=st.text("123", max_size=5))
def test_edit_distance_is_that_of_levenshtein(a: str, b: str) -> None:
    def plain(a: str, b: str) -> int:
        if not a or not b:
            return len(a) + len(b)
        return min(plain(a[1:], b) + 1, plain(a, b[1:]) + 1, plain(a[1:], b[1:]) + (a[0] != b[0]))

    if abs(len(a) - len(b)) <= 2:
        assert edit_distance(a, b) == plain(a, b)
    else:
        assert edit_distance(a, b) > 2


# Reports from records


def record(cell: Cell, how: Any, text: str = "8412345", **more: Any) -> dict[str, Any]:
    trial = Trial(cell, how)
    made = {
        "kind": "trial",
        "probe": "needle",
        "plan": "p",
        "trial": trial.key,
        "target_tokens": cell.length,
        "prompt_tokens": cell.length,
        "depth_percent": cell.depth,
        "pass": how,
        "expected": "8412345",
        "decoys": DECOYS,
        "text": text,
        "finish_reason": "stop",
        "salted": True,
        "cache_hits": 0 if how == "cold" else 96,
        "ttft_s": 0.5,
        "prompt_sha256": trial.key,
    }
    made |= more
    outcome = judge_trial(made)
    return made | {"class": outcome.outcome.value, "detail": outcome.detail}


def reported(records: list[dict[str, Any]], planned: list[str] | None = None, topk: int | None = None) -> Any:
    keys = planned or [r["trial"] for r in records]
    header = {"kind": "plan", "probe": "needle", "plan": "p", "planned": keys, "index_topk": topk}
    return report_from(iter([header, *records]), "p", "file")


CELLS = [Cell(length, depth, 1) for length in (513, 1025, 2048, 2051) for depth in (0, 50, 100)]
LOST_AGAIN = {"again": [{"text": "5550000", "finish_reason": "stop", "expected": "8412345"}]}
FOUND_AGAIN = {"again": [{"text": "8412345", "finish_reason": "stop", "expected": "8412345"}] * 2}


def healthy() -> list[dict[str, Any]]:
    return [record(cell, how) for cell in CELLS for how in ("cold", "warm")]


def test_all_found_is_a_pass_with_its_bound() -> None:
    report = reported(healthy())
    assert (report.verdict, report.failures, report.classes) == ("PASS", 0, {"EXACT": 24})
    assert report.numbers["upper_bound"] == pytest.approx(0.2209, abs=1e-4), "12 distinct prompts, not 24"
    assert report.reasons == ()


def test_a_loss_that_comes_again_fails_and_one_that_does_not_is_not_enough() -> None:
    good = healthy()
    again = reported([*good[1:], record(CELLS[0], "cold", "5550000", **LOST_AGAIN)])
    assert (again.verdict, again.exit_code) == ("FAIL", ExitCode.DRIFT)
    once = reported([*good[1:], record(CELLS[0], "cold", "5550000", **FOUND_AGAIN)])
    assert (once.verdict, once.more_trials) == ("INCONCLUSIVE", once.trials)
    assert "asked again: EXACT, EXACT" in once.reasons[0]
    twice = [record(cell, "cold", "5550000", **FOUND_AGAIN) for cell in CELLS[:2]]
    assert reported([*good[4:], *twice]).verdict == "FAIL"


def test_a_loss_among_concurrent_requests_fails_at_once() -> None:
    report = reported([*healthy(), record(Cell(513, 14, 1), "concurrent", "5550000", **FOUND_AGAIN)])
    assert report.verdict == "FAIL"
    assert "only concurrent prompts are lost: requests disturb each other" in report.reasons


def test_what_the_losses_share_is_said() -> None:
    warm = [record(cell, "warm", "5550000", **LOST_AGAIN) for cell in CELLS]
    cold = [record(cell, "cold") for cell in CELLS]
    assert any("prefix cache" in reason for reason in reported([*cold, *warm]).reasons)
    past = [record(c, "cold", "5550000" if c.length > 1025 else "8412345", **LOST_AGAIN) for c in CELLS]
    assert "found in every text up to 1025 tokens, first lost at 2048" in reported(past).reasons
    lengths = [Cell(length, 50, 1) for length in range(2048, 2057)]
    residue = [record(c, "cold", "5550000" if c.length % 4 == 3 else "8412345", **LOST_AGAIN) for c in lengths]
    assert "every loss is at a length of 3 mod 4" in reported(residue).reasons


def test_a_wrong_size_is_a_fault_not_a_failure() -> None:
    report = reported([*healthy()[1:], record(CELLS[0], "cold", prompt_tokens=512)])
    assert (report.verdict, report.exit_code, report.failures) == ("FAULT", ExitCode.HARNESS, 0)


def test_budget_cache_and_transport_make_it_inconclusive() -> None:
    good = healthy()
    empty = record(CELLS[0], "cold", "", finish_reason="length")
    assert (reported([*good[1:], empty]).verdict, reported([*good[1:], empty]).more_trials) == ("INCONCLUSIVE", 1)
    hit = record(CELLS[0], "cold", cache_hits=512)
    assert "served from the cache" in reported([*good[1:], hit]).reasons[0]
    lost = record(CELLS[0], "cold", error={"kind": "broken", "detail": "gone"})
    assert (reported([*good[1:], lost]).verdict, reported([*good[1:], lost]).errors) == ("INCONCLUSIVE", 1)
    assert reported([lost]).verdict == "FAULT"
    short = reported(good[1:], planned=[r["trial"] for r in good])
    assert (short.verdict, short.more_trials) == ("INCONCLUSIVE", 1)


def test_what_a_pass_does_not_cover_is_said() -> None:
    no_hits = [record(cell, how, cache_hits=0) for cell in CELLS for how in ("cold", "warm")]
    assert any("proves nothing about cache hits" in reason for reason in reported(no_hits).reasons)
    short = [record(Cell(1024, 50, 1), "cold")]
    assert any("cannot detect indexer faults" in reason for reason in reported(short, topk=2048).reasons)
    unsalted = [record(cell, "cold", salted=False) for cell in CELLS]
    assert any("no cache_salt" in reason for reason in reported(unsalted).reasons)


def test_a_trial_on_file_twice_counts_once_and_other_plans_do_not() -> None:
    good = healthy()
    other = good[0] | {"plan": "q", "text": "5550000"}
    assert reported([*good, *good, other], planned=[r["trial"] for r in good]).trials == 24


def test_two_runs_are_compared_cell_by_cell() -> None:
    a = healthy()
    b = [
        record(cell, how, "5550000" if cell.length > 2000 else "8412345") for cell in CELLS for how in ("cold", "warm")
    ]
    found = compare_needles(a, b)
    assert (found.pairs, len(found.only_a), len(found.only_b)) == (24, 0, 12)
    assert found.p_value < 0.001
    assert compare_needles(a, [r | {"prompt_sha256": "another"} for r in b]).pairs == 0


# The map


def mixed() -> list[dict[str, Any]]:
    texts = ["8412345", "8412346", "7654321", "5550000", "", "8412345"]
    return [record(cell, "cold", texts[place % 6]) for place, cell in enumerate(CELLS)]


def test_the_map_shows_every_place_by_letter() -> None:
    lines = text_map(mixed()).splitlines()
    assert lines[0].split() == ["cold", "0%", "50%", "100%"]
    assert lines[1].split() == ["513", "E", "N", "D"]
    assert lines[2].split() == ["1025", "W", "A", "E"]
    assert "N NEAR" in lines[-1]
    assert text_map([]) == ""


def test_the_worst_seed_of_a_place_is_shown_and_an_answer_replaces_an_error() -> None:
    two = [record(Cell(513, 0, 1), "cold"), record(Cell(513, 0, 2), "cold", "5550000")]
    assert grids(two)[0].cells[513, 0][0] is NeedleClass.WRONG
    gone = record(Cell(513, 0, 1), "cold", error={"detail": "gone"})
    assert grids([gone, two[0]])[0].cells[513, 0][0] is NeedleClass.EXACT


def test_the_picture_is_well_formed_and_does_not_rest_on_colour_alone() -> None:
    picture = ET.fromstring(svg_map(mixed(), 'a <b> & "c"'))
    space = "{http://www.w3.org/2000/svg}"
    letters = [node.text for node in picture.iter(f"{space}text")]
    assert {"E", "N", "D", "W", "A"} <= set(letters)
    assert len({mark.letter for mark in MARKS.values()}) == len(MARKS) == len(NeedleClass)
    assert len({mark.fill for mark in MARKS.values()}) == len(MARKS)
    titles = [node.text for node in picture.iter(f"{space}title")]
    assert "513@50#1/cold: NEAR" in titles


def test_the_page_shows_what_a_server_said_without_running_it() -> None:
    bad = record(CELLS[0], "cold", "<script>alert(5550000)</script>")
    page = html_map([bad])
    assert "&lt;script&gt;" in page
    assert "<script>" not in page
    assert "Every trial was exact" in html_map([record(CELLS[0], "cold")])


def test_an_empty_plan_is_no_default() -> None:
    assert NeedlePlan((), Edges()).trials() == ()
