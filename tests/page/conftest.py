"""The page in a browser for each of its tests, which fails on errors and on requests."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.documents import page_json
from lightning_perf.page.html import Kind, render_html
from lightning_perf.report.document import PerfReport
from tests.page.server import Server

WINDOW = {"width": 1280, "height": 720}
LOCAL = ("file:", "data:", "blob:", "about:")


@dataclass
class Opened:
    """A page in the browser and what went wrong in it."""

    page: Any
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listeners = {
            "pageerror": lambda error: self.faults.append(f"error: {error}"),
            "console": lambda line: self.faults.append(f"console: {line.text}"),
            "dialog": lambda dialog: (self.faults.append("a dialog"), dialog.dismiss()),
            "request": lambda it: it.url.startswith(LOCAL) or self.faults.append(f"request: {it.url}"),
        }

    def listen(self, begin: bool = True) -> None:
        """Begin or end to take down what goes wrong."""
        for event, listener in self._listeners.items():
            (self.page.on if begin else self.page.remove_listener)(event, listener)

    def show(self, view: str, **state: str) -> None:
        """Go to a view by the address, as a link would, and wait until it is there."""
        query = "&".join(f"{key}={value}" for key, value in {"view": view, **state}.items())
        self.page.goto(f"{self.page.url.split('#')[0]}#{query}")
        self.page.wait_for_selector(f'nav a[href*="view={view}"][aria-current]')

    def draw_charts(self) -> None:
        """Bring every chart into sight and wait until it is drawn."""
        for chart in self.page.locator(".chart").all():
            chart.scroll_into_view_if_needed()
            chart.locator("svg.main-svg").first.wait_for()

    def texts(self, selector: str) -> list[str]:
        return [text.strip() for text in self.page.locator(selector).all_inner_texts()]


@pytest.fixture(scope="session")
def tab(browser: Any) -> Iterator[Any]:
    """A page that documents are opened in one after the other: only its first one has to compile Plotly."""
    page = browser.new_page()
    yield page
    page.close()


@pytest.fixture
def open_page(browser: Any, tab: Any, tmp_path: Path) -> Iterator[Any]:
    """A function that opens a document from disk: a report, or JSON of a kind; errors and requests fail the test.

    A document takes the place of the one opened before. Only settings of a touch screen need a page of its own.
    """
    opened: list[Opened] = []

    def open_(
        document: PerfReport | bytes,
        title: str = "a run",
        kind: Kind = "run",
        view: str | None = None,
        viewport: dict[str, int] | None = None,
        color_scheme: str = "light",
        **settings: Any,
    ) -> Opened:
        file = tmp_path / f"page {len(opened)} #.html"
        data = document if isinstance(document, bytes) else page_json(document)
        file.write_bytes(render_html(data, kind, title))
        result = Opened(browser.new_page(**settings) if settings else tab)
        result.page.set_viewport_size(viewport or WINDOW)
        result.page.emulate_media(media="null", color_scheme=color_scheme)
        result.listen()
        opened.append(result)
        result.page.set_default_timeout(20_000)
        result.page.goto(f"{file.as_uri()}#view={view}" if view else file.as_uri())
        result.page.wait_for_selector("main h1")
        result.page.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
        return result

    yield open_
    for result in opened:
        if result.page is tab:
            tab.goto("about:blank")
            result.listen(False)
        else:
            result.page.close()
    assert [fault for result in opened for fault in result.faults] == []


@pytest.fixture
def server(browser: Any) -> Iterator[Server]:
    made = Server(browser)
    yield made
    made.page.close()
    assert made.faults == []
