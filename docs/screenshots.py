"""Take screenshots of every view of the page: ``python docs/screenshots.py FOLDER PATH [PATH…]``.

Each PATH is a trace, a run's folder, or a document as JSON: a report, two runs compared (``diff --json``), a study's
comparison (``compare --json``) or a trade-off (``infer --json``). The views are saved for the widths of a desktop and a
phone, in light and dark, as ``FOLDER/NAME-VIEW-WIDTH-THEME.png``. With ``--timing`` the script prints how soon a page
shows its figures. With ``--readme FILE`` it takes the README's picture of the first PATH.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_perf.compare.verdicts.comparison import Comparison
from lightning_perf.documents import PageDocument
from lightning_perf.inference.results.tradeoff import Tradeoff
from lightning_perf.report.build import analyze
from lightning_perf.report.compared import Compared
from lightning_perf.report.document import PerfReport

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SIZES = {1280: 900, 390: 844}
THEMES = ("light", "dark")
TIMED_LOADS = 5

README_SIZE = (1280, 1010)

MARKS: dict[str, type[Any]] = {"ranks": PerfReport, "diff": Compared, "arms": Comparison, "cells": Tradeoff}
"""A member that only documents of this kind have."""

# Charts are drawn when they become visible, so the window is tall enough for all of them.
TALL = 12_000


def main() -> None:
    """Take the screenshots."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("paths", type=Path, nargs="+", metavar="PATH")
    parser.add_argument("--views", help="only these, separated by commas")
    parser.add_argument("--readme", type=Path, metavar="FILE", help="take only the README's picture, of the first PATH")
    parser.add_argument("--timing", action="store_true", help="only print how soon the page shows its figures")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with chromium() as browser, tempfile.TemporaryDirectory() as temporary:
        for path in options.paths:
            page = Path(temporary) / "page.html"
            document(path).write_html(page, title=path.stem)
            name = path.name.split(".")[0]
            if options.readme:
                take_one(browser, page, options.readme)
                break
            if options.timing:
                time_loads(browser, page, name)
            else:
                take(browser, page, options.folder, name, options.views.split(",") if options.views else None)


def document(path: Path) -> PageDocument:
    """Return the document of a path."""
    if path.suffix == ".json" and not path.name.endswith(".pt.trace.json"):
        members = json.loads(path.read_bytes())
        for member, kind in MARKS.items():
            if member in members:
                loaded: PageDocument = kind.load(path)
                return loaded
    return analyze(path)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the system's Chromium without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()


def take(browser: Browser, file: Path, folder: Path, name: str, only: list[str] | None) -> None:
    """Take every view at every size and in every theme."""
    for width, height in SIZES.items():
        for theme in THEMES:
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)  # type: ignore[arg-type]
            page.goto(file.as_uri())
            page.wait_for_selector("nav a")
            for view in only or views(page):
                page.set_viewport_size({"width": width, "height": TALL})
                page.goto(f"{file.as_uri()}#view={view}")
                page.wait_for_selector(f'nav a[href*="view={view}"][aria-current]')
                for chart in page.locator(".chart").all():
                    chart.locator(".main-svg").first.wait_for()
                page.set_viewport_size({"width": width, "height": height})
                target = folder / f"{name}-{view}-{width}-{theme}.png"
                page.screenshot(path=target, full_page=True)
                print(target)
            page.close()


def take_one(browser: Browser, file: Path, target: Path) -> None:
    """Take the top of the first view. Few colours keep the file small, and a dense picture keeps the text sharp."""
    from PIL import Image

    width, height = README_SIZE
    page = browser.new_page(viewport={"width": width, "height": height}, device_scale_factor=1.25)
    page.goto(file.as_uri())
    page.wait_for_selector(".chart .main-svg")
    target.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=target)
    page.close()
    Image.open(target).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(target, optimize=True)
    print(target, target.stat().st_size)


def views(page: Page) -> list[str]:
    """Return the views that are not empty."""
    links = page.locator("nav a:not(.empty)").evaluate_all("links => links.map((link) => link.hash)")
    return [link.split("view=")[1].split("&")[0] for link in links]


def time_loads(browser: Browser, file: Path, name: str) -> None:
    """Print the times of the first paint, the verdict and the first chart, in milliseconds."""
    rows: list[dict[str, Any]] = []
    for _ in range(TIMED_LOADS):
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(file.as_uri())
        page.wait_for_selector(".chart .main-svg")
        rows.append(
            page.evaluate(
                """({
                    first_contentful_paint_ms: performance.getEntriesByName("first-contentful-paint")[0].startTime,
                    figures_ms: performance.getEntriesByName("figures")[0].startTime,
                    chart_ms: performance.now(),
                })"""
            )
        )
        page.close()
    print(json.dumps({"page": name, **{key: sorted(round(row[key]) for row in rows) for key in rows[0]}}))


if __name__ == "__main__":
    main()
