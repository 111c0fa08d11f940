"""The report in a real browser: on a phone, a tablet and a screen, light, dark and on paper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shardwright.campaign.report.page import html_page
from shardwright.campaign.report.stored import load_run
from tests.browser.devtools import Browser
from tests.report_sample import STORED, write_comparison, write_run

pytestmark = pytest.mark.browser

WIDTHS = (320, 768, 1280)
PAGES = ("run", "ab", "stored-run", "stored-ab")

# WCAG 2.1 contrast of text, or of what is drawn, against its own ground: the least over all elements.
_CONTRAST = """
((chosen, drawn) => {
  const paint = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgb = text => { paint.fillStyle = text; paint.fillRect(0, 0, 1, 1);
    return [...paint.getImageData(0, 0, 1, 1).data]; };
  const light = text => rgb(text).slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (c !== 'rgba(0, 0, 0, 0)') return c; } return 'white'; };
  const ratios = [...document.querySelectorAll(chosen)].map(e => {
    const [a, b] = [light(getComputedStyle(e)[drawn]), light(ground(e))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05); });
  return Math.min(99, ...ratios);
})(%r, %r)
"""
CONTRAST = _CONTRAST % (".badge, .soft, .absent, a, td, th, .layer.full, .layer.shared, dt", "color")
BARS = _CONTRAST % (".spread .control, .spread .candidate", "fill")
# How far a figure's scale lies beside the pictures that it belongs to.
SCALES = """
Math.max(0, ...[...document.querySelectorAll('.latency')].flatMap(figure => {
  const scale = figure.querySelector('.scale').getBoundingClientRect();
  return [...figure.querySelectorAll('.spread')].map(e => e.getBoundingClientRect())
    .map(one => Math.abs(one.left - scale.left) + Math.abs(one.right - scale.right)); }))
"""
# Elements that reach beyond the window without a box of their own that scrolls.
OUTSIDE = """
[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth + 0.5
  && !e.closest('.wide, .maps')).map(e => e.outerHTML.slice(0, 120))
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    runs = {
        "run": write_run(folder / "run", "45,33", "up", failures=11),
        "ab": write_comparison(folder / "ab"),
        "stored-run": STORED / "run-up",
        "stored-ab": STORED / "run-ab",
    }
    found = {name: folder / f"{name}.html" for name in runs}
    for name, run in runs.items():
        found[name].write_text(html_page(load_run(run)), encoding="utf-8")
    return found


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_the_page_fits_the_window_is_legible_and_asks_for_nothing(
    browser: Browser, pages: dict[str, Path], tmp_path: Path, name: str, width: int, scheme: str
):
    seen = browser.show(pages[name], width, scheme)
    browser.ask("document.querySelectorAll('details').forEach(e => e.open = true)")
    assert browser.ask("innerWidth") == width
    assert browser.ask("document.documentElement.scrollWidth") <= width
    assert browser.ask(OUTSIDE) == []
    assert browser.ask(CONTRAST) >= 4.5
    assert browser.ask(BARS) >= 3
    assert browser.ask(SCALES) < 1
    assert seen.complaints == []
    assert {url for url in seen.requests if not url.startswith("data:")} == {pages[name].as_uri()}
    picture = tmp_path / f"{name}-{width}-{scheme}.png"
    browser.picture(picture)
    assert picture.stat().st_size > 10_000


@pytest.mark.parametrize("width", WIDTHS)
def test_every_latency_picture_has_room_and_a_name(browser: Browser, pages: dict[str, Path], width: int):
    browser.show(pages["ab"], width)
    drawn = browser.ask(
        "[...document.querySelectorAll('svg')].map(e => [e.clientWidth, e.clientHeight, e.getAttribute('aria-label')])"
    )
    assert len(drawn) == 5
    assert all(wide > 250 and high > 60 and "; candidate p50 " in name for wide, high, name in drawn)


def test_dark_and_light_differ(browser: Browser, pages: dict[str, Path]):
    grounds = []
    for scheme in ("light", "dark"):
        browser.show(pages["run"], 1280, scheme)
        grounds.append(browser.ask("getComputedStyle(document.body).backgroundColor"))
    assert grounds == ["rgb(255, 255, 255)", "rgb(18, 22, 27)"]


@pytest.mark.parametrize("name", PAGES)
def test_on_paper_all_of_it_is_there_on_white(browser: Browser, pages: dict[str, Path], name: str):
    browser.show(pages[name], 794, "dark", medium="print")
    assert browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.ask(CONTRAST) >= 4.5
    assert browser.ask(BARS) >= 3
    assert browser.ask("document.documentElement.scrollWidth") <= 794
    boxes = "[...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
    assert browser.ask(boxes) == 0, "a table is cut off on paper"
    assert browser.ask("document.querySelector('details pre').checkVisibility({contentVisibilityAuto: true})")
    assert browser.paper().startswith(b"%PDF")


def test_the_checks_can_say_no(browser: Browser, tmp_path: Path):
    wide = tmp_path / "wide.html"
    wide.write_text(
        '<main><p style="width:2000px">x</p><p class="soft" style="color:#999">x</p><figure class="latency">'
        '<svg class="spread"><path class="control" fill="#e69f00"/></svg><div class="scale">1</div></figure></main>'
        '<img src="http://127.0.0.1:9/x.png"><script>console.error("x")</script>'
    )
    seen = browser.show(wide, 320)
    assert browser.ask("document.documentElement.scrollWidth") > 320
    assert browser.ask(OUTSIDE)
    assert browser.ask(CONTRAST) < 4.5
    assert browser.ask(BARS) < 3
    assert browser.ask(SCALES) > 1
    assert seen.complaints
    assert "http://127.0.0.1:9/x.png" in seen.requests
