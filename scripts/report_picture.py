"""Make docs/report.webp again: a report without its tables, as a browser shows it.

    python scripts/report_picture.py

Needs chromium. The run is that of the report's tests: the plan of a shipped layout, and made-up answers of a server.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "report.webp"
_WIDTH = 980
_LEFT_OUT = "nav, #memory .wide, #memory h3:has(+ .wide), #needles, #degeneration, #latency .wide, #latency > h3"


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from shardwright.campaign.report.page import html_page
    from shardwright.campaign.report.stored import load_run
    from tests.browser.devtools import Browser
    from tests.report_sample import write_run

    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch) / "run.html"
        page.write_text(html_page(load_run(write_run(Path(scratch) / "run", "45,33", "up", failures=11))))
        browser = Browser(Path(scratch) / "profile")
        try:
            browser.show(page, _WIDTH)
            browser.ask(f"document.querySelectorAll('{_LEFT_OUT}').forEach(one => one.remove())")
            end = browser.ask("document.querySelector('#latency').getBoundingClientRect().bottom")
            browser.picture(PICTURE, (0, 0, _WIDTH, int(end) + 8))
        finally:
            browser.close()
    print(f"{PICTURE}: {PICTURE.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
