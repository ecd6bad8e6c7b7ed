"""Addresses inside TensorBoard, which shows the page in a frame and forgets the frame's address in a reload."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from lightning_perf.documents import page_json
from tests.page.samples import hand_made_report
from tests.page.server import ORIGIN, Server

HOME = "http://perf.test/"
FRAME = f'<body><tb-webapp></tb-webapp><iframe src="{ORIGIN}index.html" width="1200" height="800"></iframe></body>'


@pytest.fixture
def board(server: Server, tmp_path: Path) -> Any:
    """TensorBoard's page with the tab in it; a function that opens it and returns the tab's frame."""
    server.runs(("fit", 1.0))
    server.answers["data/report fit"] = [(200, json.loads(page_json(hand_made_report(tmp_path))))]
    server.page.route(HOME, lambda route: route.fulfill(body=FRAME, content_type="text/html"))

    def frame() -> Any:
        server.page.wait_for_selector("iframe")
        found = server.page.query_selector("iframe").content_frame()
        found.wait_for_selector("main h1")
        return found

    def open_(state: str = "#lightning_perf") -> Any:
        server.page.goto(f"{HOME}{state}")
        return frame()

    open_.again = frame  # type: ignore[attr-defined]
    return open_


def held(server: Server) -> dict[str, str]:
    """The state in TensorBoard's address."""
    parts = urlsplit(server.page.url).fragment.split("&")
    (part,) = [part for part in parts if part.startswith("p.lightning_perf.state=")]
    return {key: values[0] for key, values in parse_qs(unquote(part.partition("=")[2])).items()}


def test_a_reload_of_tensorboard_keeps_the_view_and_the_instant(server: Server, board: Any) -> None:
    tab = board()
    tab.click("nav a:text-is('Timeline')")
    tab.wait_for_selector(".tl-plot")
    tab.locator("canvas[data-row]").nth(2).click()
    shown = tab.inner_text(".tl-bin-head h3")
    assert server.page.url.startswith(f"{HOME}#lightning_perf&")
    assert held(server)["view"] == "timeline"
    server.page.reload()
    tab = board.again()
    tab.wait_for_selector(".tl-bin-head")
    assert tab.inner_text(".tl-bin-head h3") == shown


def test_a_sort_and_a_search_are_in_tensorboards_address(server: Server, board: Any) -> None:
    tab = board("#lightning_perf&p.lightning_perf.state=run%3Dfit%26view%3Doperators%26operators.search%3Dmm&other=1")
    tab.wait_for_selector("#table-operators tbody th")
    assert tab.locator("#table-operators tbody th").count() == 1
    tab.locator("#table-operators thead th", has_text="Calls").locator("button").first.click()
    assert held(server) == {
        "run": "fit",
        "view": "operators",
        "operators.search": "mm",
        "operators.sort": "calls",
        "operators.order": "down",
    }
    assert "&other=1" in server.page.url


def test_a_link_pasted_into_tensorboard_shows_its_view(server: Server, board: Any) -> None:
    tab = board()
    server.page.evaluate(
        "location.hash = '#lightning_perf&p.lightning_perf.state=' + encodeURIComponent('view=kernels')"
    )
    tab.wait_for_selector("#table-kernels tbody th")


@pytest.mark.parametrize(
    "state", ["#lightning_perf&p.lightning_perf.state=%E0%A4%A", "#lightning_perf&p.lightning_perf.state"]
)
def test_an_address_that_somebody_broke_opens_the_first_view(server: Server, board: Any, state: str) -> None:
    assert board(state).inner_text("main h1") == "Overview"


def test_the_address_of_another_tab_is_left_alone(server: Server, board: Any) -> None:
    board("#scalars")
    assert server.page.url == f"{HOME}#scalars"


def test_the_copied_link_is_that_of_tensorboard(server: Server, board: Any) -> None:
    tab = board()
    tab.click("nav a:text-is('Timeline')")
    tab.wait_for_selector(".tl-plot")
    tab.evaluate("document.execCommand = () => (globalThis.copied = String(getSelection()), true)")
    tab.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    tab.click("[aria-label='Copy a link to this view']")
    assert tab.evaluate("globalThis.copied") == server.page.url
