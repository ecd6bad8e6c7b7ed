"""The timeline in a browser: its colors, its movements, and the addresses of its states."""

import itertools
import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from lightning_perf.documents import page_json
from lightning_perf.page.html import render_html
from lightning_perf.report.build import analyze, build_report
from lightning_perf.report.document import PerfReport
from tests.page.samples import HOSTILE, hand_made_report, poisoned
from tests.page.server import Server
from tests.support.trace_builder import FETCH, TraceBuilder

STEP_US = 400


def run_of(folder: Path, steps: int, ranks: int = 1) -> PerfReport:
    """Steps of 400 µs: a fetch of 100 µs, an operator, then a kernel from 200 to 400 µs."""
    paths = []
    for rank in range(ranks):
        trace = TraceBuilder().rank(rank, ranks).gpu("GPU")
        for number in range(steps):
            at = 1000 + number * STEP_US
            trace.step(number, at, STEP_US).annotation(FETCH, at, 100).annotation("perf::fetch", at, 100)
            trace.annotation("perf::forward", at + 100, 300).op("aten::mm", at + 110, 80)
            trace.launch("gemm", call_us=at + 150, call_duration_us=20, start_us=at + 200, duration_us=200)
        paths.append(trace.write(folder / f"rank{rank}.1.pt.trace.json"))
    return build_report(paths)


def state(opened: Any) -> dict[str, str]:
    address = opened.page.evaluate("location.hash.slice(1)")
    return {key: values[0] for key, values in parse_qs(address).items()}


def settle(opened: Any) -> dict[str, str]:
    """The state of the address, once the page has handled what happened and written it.

    The page's own timers are in order, so one that begins later and lasts longer ends later on the busiest machine.
    """
    opened.page.evaluate(
        "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 400))))"
    )
    return state(opened)


def color_at(opened: Any, place: float, lane: str = "Largest category") -> str:
    """The color of a lane at a place from 0 to 1, as the style sheet's name of it."""
    found: str = opened.page.evaluate(
        """([place, lane]) => {
            const name = [...document.querySelectorAll(".tl-name")].find((each) => each.textContent.startsWith(lane));
            const canvas = name.nextElementSibling;
            const probe = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
            const pen = probe.getContext("2d", { willReadFrequently: true });
            const color = () => String([...pen.getImageData(0, 0, 1, 1).data]);
            pen.drawImage(canvas, Math.floor(place * canvas.width), canvas.height >> 1, 1, 1, 0, 0, 1, 1);
            const found = color();
            const style = getComputedStyle(document.documentElement);
            const names = ["device_compute", "host_compute", "input", "kernel_launch", "host_other"];
            return names.find((name) => {
                pen.fillStyle = style.getPropertyValue(`--${name}`).trim();
                pen.fillRect(0, 0, 1, 1);
                return color() === found;
            }) ?? found;
        }""",
        [place, lane],
    )
    return found


def click_at(opened: Any, place: float) -> None:
    box = opened.page.locator("canvas[data-row]").nth(2).bounding_box()
    opened.page.mouse.click(box["x"] + place * box["width"], box["y"] + box["height"] / 2)


@pytest.fixture
def one(tmp_path: Path, open_page: Any) -> Any:
    opened = open_page(run_of(tmp_path, 1), view="timeline")
    opened.page.wait_for_selector(".tl-plot")
    return opened


def test_time_is_drawn_where_it_passed(one: Any) -> None:
    assert [color_at(one, place) for place in (0.1, 0.3, 0.4, 0.6, 0.9)] == [
        "input",
        "host_compute",
        "kernel_launch",
        "device_compute",
        "device_compute",
    ]


def test_a_click_chooses_a_bin_and_shows_its_parts(one: Any) -> None:
    click_at(one, 0.75)
    shown = one.page.inner_text(".tl-details")
    assert "Step 0, 300 µs after its start" in shown
    assert "device compute" in shown
    assert "gemm" in shown
    assert "forward" in shown
    click_at(one, 0.3)
    assert "aten::mm" in one.page.inner_text(".tl-details")
    assert "operators on the host" in one.page.inner_text(".tl-details")  # why the device is idle
    assert "µs after its start: host operators 100 %" in one.page.inner_text(".tl [role=status]")


def test_the_keyboard_zooms_pans_and_chooses(one: Any) -> None:
    one.page.focus(".tl-plot")
    one.page.keyboard.press("+")
    zoomed = settle(one)
    start, end = int(zoomed["time.from"]), int(zoomed["time.to"])
    assert end - start == pytest.approx(STEP_US * 1000 / 1.6, rel=0.01)
    one.page.keyboard.press("ArrowRight")
    panned = settle(one)
    assert int(panned["time.from"]) > start
    assert int(panned["time.to"]) - int(panned["time.from"]) == pytest.approx(end - start, rel=0.01)
    one.page.keyboard.press("-")
    one.page.keyboard.press("Home")
    assert "time.from" not in settle(one)
    one.page.keyboard.press("Shift+ArrowRight")
    first = int(settle(one)["time.at"])
    one.page.keyboard.press("Shift+ArrowRight")
    assert int(settle(one)["time.at"]) - first == 1000  # a bin of 400
    assert "µs after its start" in one.page.inner_text(".tl [role=status]")
    outline = one.page.evaluate("getComputedStyle(document.querySelector('.tl-plot')).outlineStyle")
    assert outline != "none"


def test_the_wheel_zooms_once_the_timeline_is_in_use(one: Any) -> None:
    box = one.page.locator("canvas[data-row]").nth(2).bounding_box()
    one.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 5)
    one.page.mouse.wheel(0, -200)
    assert "hold Ctrl" in one.page.inner_text(".tl-hover")
    assert "time.from" not in settle(one)
    click_at(one, 0.5)
    one.page.mouse.wheel(0, -400)
    found = settle(one)
    start, end = int(found["time.from"]), int(found["time.to"])
    assert end - start < 0.6 * STEP_US * 1000
    assert (start + end) / 2 == pytest.approx(STEP_US * 500, rel=0.02)  # around the pointer


def test_dragging_pans(one: Any) -> None:
    one.page.focus(".tl-plot")
    for _ in range(3):
        one.page.keyboard.press("+")
    before = settle(one)
    box = one.page.locator("canvas[data-row]").nth(2).bounding_box()
    one.page.mouse.move(box["x"] + 400, box["y"] + 5)
    one.page.mouse.down()
    one.page.mouse.move(box["x"] + 300, box["y"] + 5, steps=4)
    one.page.mouse.up()
    after = settle(one)
    assert int(after["time.from"]) > int(before["time.from"])
    assert "time.at" not in after  # a drag is no click


def test_the_brush_chooses_steps_of_many(tmp_path: Path, open_page: Any) -> None:
    opened = open_page(run_of(tmp_path, 54), view="timeline")
    box = opened.page.locator(".tl-overview").bounding_box()
    opened.page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 5)
    opened.page.mouse.down()
    opened.page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 5, steps=4)
    opened.page.mouse.up()
    found = settle(opened)
    whole = 54 * STEP_US * 1000
    assert int(found["time.from"]) == pytest.approx(0.25 * whole, rel=0.02)
    assert int(found["time.to"]) == pytest.approx(0.5 * whole, rel=0.02)
    opened.page.click("[aria-label='Next step']")
    found = settle(opened)
    assert int(found["time.to"]) - int(found["time.from"]) == pytest.approx(1.04 * STEP_US * 1000, rel=0.02)
    assert color_at(opened, 0.1) == "input"
    assert color_at(opened, 0.8) == "device_compute"


def test_an_address_opens_the_same_instant_after_a_reload(one: Any) -> None:
    one.page.focus(".tl-plot")
    one.page.keyboard.press("+")
    click_at(one, 0.75)
    before = settle(one)
    shown = one.page.inner_text(".tl-details")
    one.page.reload()
    one.page.wait_for_selector(".tl-bin-head")
    assert one.page.inner_text(".tl-details") == shown
    assert settle(one) == before


def test_ranks_share_the_axis_and_a_click_chooses_one(tmp_path: Path, open_page: Any) -> None:
    opened = open_page(run_of(tmp_path, 2, ranks=3), view="timeline")
    assert opened.texts(".tl-rank b, .tl-rank button") == ["Rank 0", "Rank 1", "Rank 2"]
    box = opened.page.locator("canvas[data-row='2']").last.bounding_box()
    opened.page.mouse.click(box["x"] + 0.4 * box["width"], box["y"] + 5)
    opened.page.wait_for_selector(".tl-rank b:text-is('Rank 2')")
    found = settle(opened)
    assert found["rank"] == "2"
    assert "Rank 2" in opened.page.inner_text(".tl-bin-head")
    opened.page.wait_for_function("document.activeElement.classList.contains('tl-plot')")
    opened.page.keyboard.press("ArrowUp")
    opened.page.wait_for_selector(".tl-rank b:text-is('Rank 1')")


def test_ranks_without_a_common_clock_are_aligned_by_their_steps(tmp_path: Path, open_page: Any) -> None:
    document = json.loads(run_of(tmp_path, 2, ranks=2).to_json())
    document["ranks"][1]["clocks"][0]["clock_ns"] += 5_000_000_000
    opened = open_page(json.dumps(document).encode(), view="timeline")
    assert "clocks of the ranks differ" in opened.page.inner_text(".tl")
    assert color_at(opened, 0.05) == "input"


def test_a_pause_between_windows_takes_little_room(tmp_path: Path, open_page: Any) -> None:
    trace = TraceBuilder().gpu("GPU")
    for number, at in enumerate((0, 10_000_000)):
        trace.step(number, at, 400).annotation(FETCH, at, 400)
    report = build_report([trace.write(tmp_path / "rank0.1.pt.trace.json")])
    opened = open_page(report, view="timeline")
    assert "Shortened: 1 long pause" in opened.page.inner_text(".tl")
    labels = opened.page.eval_on_selector_all(
        ".tl-axis span", "all => all.filter(one => one.textContent).map(one => one.getBoundingClientRect().left)"
    )
    assert min(after - before for before, after in itertools.pairwise(labels)) >= 50, labels
    assert (color_at(opened, 0.25), color_at(opened, 0.75)) == ("input", "input")


def test_names_lead_to_their_tables_and_back(one: Any) -> None:
    click_at(one, 0.75)
    one.page.click(".tl-facts a[title='gemm']")
    one.page.wait_for_selector("#table-kernels tbody th")
    assert state(one)["kernels.search"] == "gemm"
    assert one.texts("#table-kernels tbody th") == ["gemm"]
    assert one.page.input_value("#table-kernels input[type=search]") == "gemm"  # although the table is short
    one.page.click("#table-kernels tbody .go")
    one.page.wait_for_selector(".tl-name:has-text('gemm')")
    assert "200 bins" in one.page.inner_text(".tl")
    assert "gemm" in one.page.inner_text(".tl-details")  # the bin with the most of it is chosen
    one.page.go_back()
    one.page.go_back()
    one.page.wait_for_selector(".tl-bin-head")
    one.page.click(".tl-facts .find >> nth=0")
    one.page.wait_for_selector(".tl-name[title], .tl-name:has-text('gemm')")
    assert state(one)["time.find"] == "kernels:gemm"


def test_a_longest_gap_leads_to_its_instant(tmp_path: Path, open_page: Any) -> None:
    opened = open_page(run_of(tmp_path, 2), view="launches")
    opened.page.click("#table-gaps tbody a >> nth=0")
    opened.page.wait_for_selector(".tl-bin-head")
    assert "In a gap of" in opened.page.inner_text(".tl-details")
    opened.page.click(".tl-details a:text-is('All long gaps')")
    opened.page.wait_for_selector("#table-gaps tbody a")


def test_the_line_that_fills_an_empty_view_can_be_copied(tmp_path: Path, open_page: Any) -> None:
    opened = open_page(run_of(tmp_path, 1), view="modules")
    assert opened.texts(".missing .code-line code")[0] == "PerfCallback(with_stack=True)"
    assert opened.page.locator(".missing .code-line button.copy").count() == 2
    assert "Record with PerfCallback(with_stack=True) or" in opened.page.inner_text(".missing")


def test_without_a_server_a_command_opens_perfetto_at_the_instant(one: Any) -> None:
    click_at(one, 0.75)
    command = one.page.inner_text(".tl-details .code-line code")
    assert command.startswith("lightning-perf view ")
    assert command.endswith("--at 1300.000")


def test_an_instant_in_a_later_window_names_its_own_file_and_time(tmp_path: Path, open_page: Any) -> None:
    paths = []
    for window, base_ns in enumerate((0, 2_000_000)):
        trace = TraceBuilder(baseTimeNanoseconds=base_ns).rank(0, 1).step(window, 500, STEP_US)
        paths.append(trace.op("aten::mm", 510, 380).write(tmp_path / f"rank0.{window + 1}.pt.trace.json"))
    opened = open_page(build_report(paths), view="timeline")
    for place, name, start_us in ((0.1, "rank0.1", 500), (0.9, "rank0.2", 500)):
        click_at(opened, place)
        command = opened.page.inner_text(".tl-details .code-line code")
        assert f"{name}.pt.trace.json --at " in command
        assert start_us <= float(command.split()[-1]) <= start_us + STEP_US


def test_hostile_names_on_the_timeline_stay_text(tmp_path: Path, open_page: Any) -> None:
    document = json.loads(page_json(hand_made_report(tmp_path)))
    lanes = [rank["timeline"] for rank in document["ranks"]]
    evil = poisoned(document)
    for rank, timeline in zip(evil["ranks"], lanes, strict=True):
        for name, lane in timeline.items():
            if isinstance(lane, dict):
                rank["timeline"][name]["data"] = lane["data"]
    opened = open_page(json.dumps(evil).encode(), view="timeline")
    click_at(opened, 0.2)
    assert HOSTILE[:20] in opened.page.inner_text(".tl-details")
    opened.page.click(".tl-facts .find >> nth=0")
    opened.page.wait_for_selector(".tl-name:has-text('onerror')")
    assert opened.page.evaluate("globalThis.pwned") is None
    assert opened.page.locator("main img, main script, main a[href^=javascript]").count() == 0


@pytest.mark.parametrize("data", ["", "!!", "AAAA", "/////w=="])
def test_a_lane_that_cannot_be_read_does_not_break_the_view(tmp_path: Path, open_page: Any, data: str) -> None:
    document = json.loads(run_of(tmp_path, 2).to_json())
    document["ranks"][0]["timeline"]["categories"]["data"] = data
    opened = open_page(json.dumps(document).encode(), view="timeline")
    assert "Analyze the trace again." in opened.page.inner_text("main")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_chosen_bin_has_no_violation_of_accessibility_rules(tmp_path: Path, open_page: Any, scheme: str) -> None:
    pytest.importorskip("axe_playwright_python")
    from tests.page.test_accessibility import violations

    opened = open_page(run_of(tmp_path, 2, ranks=2), color_scheme=scheme)
    opened.show("timeline", **{"time.at": "300000", "time.find": "kernels:gemm"})
    opened.page.wait_for_selector(".tl-bin-head")
    assert violations(opened.page) == []


@pytest.mark.corpus
def test_the_file_of_the_v100_sample_is_no_larger_than_without_a_timeline(corpus: Path) -> None:
    (trace,) = (corpus / "traces/kineto/resnet50_num_workers_0").glob("worker0.1623143089861*")
    report = analyze(trace)
    assert report.ranks[0].timeline is not None
    assert report.ranks[0].timeline.bins == 400
    assert len(render_html(page_json(report), "run", trace.name)) < 2_400_000


def test_perfetto_opens_at_the_instant_and_keeps_its_place(server: Server, tmp_path: Path) -> None:
    report = json.loads(page_json(run_of(tmp_path, 2)))
    server.runs(("fit", 1.0))
    server.answers["data/runs"][0][1]["runs"][0]["traces"] = ["other.pt.trace.json", "rank0.1.pt.trace.json"]
    server.answers["data/report fit"] = [(200, report)]
    server.open("#view=timeline&time.at=300000")
    server.page.wait_for_selector(".tl-perfetto")
    server.page.click(".tl-perfetto")
    frame = server.page.get_attribute("iframe", "src")
    query = parse_qs(urlsplit(frame).fragment.partition("?")[2])
    start, end = int(query["visStart"][0]), int(query["visEnd"][0])
    assert start < 1_300_000 < end  # in the file's own time
    assert query["mode"] == ["embedded"]
    assert query["url"][0].endswith("trace?run=fit&file=1")
    assert "Perfetto: rank0.1.pt.trace.json at 300 µs" in server.page.inner_text(".dock h2")
    server.page.evaluate(
        """() => {
            const frame = document.querySelector("iframe").contentWindow;
            frame.postMessage = (message) => (globalThis.told = message.perfetto);
        }"""
    )
    server.page.focus(".tl-plot")
    server.page.keyboard.press("Shift+ArrowRight")  # the loaded frame follows instead of loading again
    told = server.page.evaluate("globalThis.told")
    assert told["timeStart"] < 1_301_500e-9 < told["timeEnd"]
    server.page.evaluate("globalThis.kept = document.querySelector('iframe')")
    server.page.click("nav a:text-is('Kernels')")
    server.page.wait_for_selector("#table-kernels tbody th")
    assert not server.page.is_visible("iframe")
    server.page.click("nav a:text-is('Timeline')")
    server.page.wait_for_selector(".tl-plot")
    assert server.page.is_visible("iframe")
    assert server.page.evaluate("globalThis.kept === document.querySelector('iframe')")
    server.page.click(".dock button:text-is('Close')")
    assert server.page.locator("iframe").count() == 0
