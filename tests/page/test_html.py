"""The self-contained file: complete, closed to the network, and safe with any text in it."""

import base64
import gzip
import importlib.util
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.page import html
from lightning_perf.page.html import render_html
from tests.page.samples import HOSTILE, hand_made_report

ASSETS = Path(str(files("lightning_perf.page").joinpath("assets")))
DOCUMENT = json.dumps({"verdict": HOSTILE, "ranks": []}).encode()


class Scripts(HTMLParser):
    """The scripts of a page: attributes and text of each."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.found: list[tuple[dict[str, str | None], str]] = []
        self.inside = False
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = tag == "script"
        if self.inside:
            self.found.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            attributes, text = self.found[-1]
            self.found[-1] = attributes, text + data


@pytest.fixture
def without_plotly(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "plotly" else find(name, *rest)
    )
    html._plotly.cache_clear()
    yield
    html._plotly.cache_clear()


def test_the_document_is_in_it_as_it_was() -> None:
    scripts = Scripts(render_html(DOCUMENT, "run", HOSTILE)).found
    blocks = {attributes["id"]: (attributes, text) for attributes, text in scripts if attributes.get("id")}
    attributes, text = blocks["document"]
    assert json.loads(text) == json.loads(DOCUMENT)
    assert attributes["data-kind"] == "run"
    assert attributes["data-name"] == HOSTILE
    assert all("<" not in text for _, text in scripts)
    assert {attributes.get("type") for attributes, _ in scripts} == {
        "application/json",
        "text/plain",
        None,
    }
    assert {"modules", "document"} <= set(blocks)


def test_every_module_is_in_it_and_finds_what_it_imports() -> None:
    scripts = Scripts(render_html(DOCUMENT, "run", "x")).found
    packed = next(text for attributes, text in scripts if attributes.get("id") == "modules")
    imports = json.loads(gzip.decompress(base64.b64decode(packed)))
    assert set(imports) == {f"page/{path.relative_to(ASSETS).as_posix()}" for path in ASSETS.rglob("*.js")}
    for source in imports.values():
        named = re.findall(r'^(?:import|export) .*?from "([^"]+)";|^\} from "([^"]+)";|^import "([^"]+)"', source, re.M)
        assert {name for group in named for name in group if name} <= set(imports)


def test_nothing_in_it_points_elsewhere() -> None:
    page = render_html(DOCUMENT, "run", "x").decode()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src &#x27;none&#x27;; script-src &#x27;nonce-")
    assert "http:" not in policy[1]
    assert not re.search(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=(?!\"data:)", page)
    assert render_html(DOCUMENT, "run", "x") != render_html(DOCUMENT, "run", "x")  # a nonce is used once


def test_folders_depend_in_one_direction() -> None:
    level = {"core": 0, "text": 0, "components": 1, "timeline": 2, "report": 3, "app": 4}
    level |= dict.fromkeys(("snapshot", "study", "tradeoff"), 2)
    for module in ASSETS.rglob("*.js"):
        for path in re.findall(r'from "(\.{1,2}/[^"]+)";', module.read_text()):
            source, target = (p.relative_to(ASSETS).parts[0] for p in (module, (module.parent / path).resolve()))
            assert source == target or level[source] > level[target], f"{module.name} imports {path}"


def test_modules_build_no_markup_from_text() -> None:
    for module in ASSETS.rglob("*.js"):
        source = module.read_text()
        for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert forbidden not in source, f"{module.name}: {forbidden}"
        assert "http://" not in source.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in source


def test_without_plotly_the_tables_are_there(tmp_path: Path, open_page: Any, without_plotly: None) -> None:
    opened = open_page(hand_made_report(tmp_path))
    assert opened.page.locator("#plotly").count() == 0
    opened.page.wait_for_selector(".chart .missing")
    assert "extra “view”" in opened.page.inner_text(".chart >> nth=0")
    assert opened.page.locator("#table-breakdown tbody tr").count() > 3


def test_charts_wait_for_the_rest_of_the_file(tmp_path: Path, open_page: Any) -> None:
    """The browser may run the modules before it has read Plotly at the end of a long file."""
    opened = open_page(hand_made_report(tmp_path), view="operators")
    opened.page.evaluate("Object.defineProperty(document, 'readyState', { value: 'loading', configurable: true })")
    opened.show("memory")
    opened.page.locator(".chart").first.scroll_into_view_if_needed()
    opened.page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 200)))")
    assert opened.page.locator(".chart .missing, .chart svg.main-svg").count() == 0
    opened.page.evaluate("delete document.readyState")
    opened.page.evaluate("document.dispatchEvent(new Event('DOMContentLoaded'))")
    opened.page.locator(".chart svg.main-svg").first.wait_for()
