"""Two runs side by side: in a file, and chosen from those that a server has."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from lightning_perf.analysis.comparability import Comparability, Mismatch, Throughput
from lightning_perf.documents import page_json
from lightning_perf.report.build import analyze
from lightning_perf.report.compared import Compared
from lightning_perf.units import format_duration
from tests.page.samples import hand_made_report
from tests.page.server import Server
from tests.support.trace_builder import TraceBuilder


@pytest.fixture
def compared(tmp_path: Path) -> Compared:
    """A gemm of 400 µs became one of 100 µs, a copy came, a step of 1 ms takes 600 µs."""
    reports = []
    for name, wall_us, compute_us in (("before", 1000, 400), ("after", 600, 100)):
        trace = TraceBuilder().gpu("NVIDIA A100")
        for number in range(2):
            at = wall_us * number
            trace.step(number, at, wall_us).op("aten::mm", at + 10, 25)
            trace.launch("gemm", call_us=at + 20, call_duration_us=10, start_us=at + 100, duration_us=compute_us)
            trace.launch(f"only {name}", call_us=at + 40, call_duration_us=5, start_us=at + 520, duration_us=20)
        folder = tmp_path / name
        folder.mkdir()
        trace.write(folder / "rank0.1.pt.trace.json")
        reports.append(analyze(folder))
    before, after = reports
    return before.diff(after)


def test_the_figures_are_those_of_the_document(compared: Compared, open_page: Any) -> None:
    opened = open_page(page_json(compared), kind="diff")
    shown = opened.page.inner_text("main")
    step = compared.diff.step
    before, after = format_duration(step.before_ns), format_duration(step.after_ns)
    assert f"A step took {before} and takes {after} (mean, 0.600×): faster" in shown
    rows = {
        row[0]: row[1:]
        for text in opened.page.locator("#table-diff-kernels tbody tr").all()
        for row in [[cell.strip() for cell in text.locator("th, td").all_inner_texts()]]
    }
    assert rows["gemm"] == ["400 µs", "100 µs", "−300 µs", "0.250×", "1", "1", "faster"]
    assert rows["only before"] == ["20.0 µs", "–", "−20.0 µs", "–", "1", "–", "vanished"]
    assert rows["only after"] == ["–", "20.0 µs", "+20.0 µs", "–", "–", "1", "appeared"]
    assert next(iter(rows)) == "gemm"
    assert opened.page.locator("#table-diff-categories tbody tr").count() == sum(
        bool(row.before_ns or row.after_ns) for row in compared.diff.categories.rows
    )
    opened.draw_charts()


def test_what_makes_recordings_incomparable_comes_before_the_figures(compared: Compared, open_page: Any) -> None:
    checked = Comparability(
        (Mismatch("device", "V100", "H100"), Mismatch("batch", "32", "256")),
        ("model",),
        throughput=Throughput(32, 256, 32_000.0, 128_000.0),
    )
    text = replace(compared, comparability=checked).to_json()
    document = Compared.from_json(re.sub(r'"verdict": "(faster|slower|same)"', '"verdict": "incomparable"', text))
    shown = open_page(page_json(document), kind="diff").page.inner_text("main")
    reason = "the recordings differ in device and batch."
    assert shown.index(reason) < shown.index("V100 before, H100 after") < shown.index("Neither is called faster.")
    assert shown.index("32 before, 256 after") < shown.index("A step took")
    assert (
        "32,000 samples/s before (32 samples per step), 128,000 samples/s after (256 samples per step), 4.00×" in shown
    )
    assert "Not recorded by both, so not checked: model." in shown
    assert "incomparable" not in shown
    assert not re.search(r"\b(?:faster|slower|same)\n|\t(?:faster|slower|same)\b", shown)


def test_a_file_of_one_run_says_how_to_compare(tmp_path: Path, open_page: Any) -> None:
    opened = open_page(hand_made_report(tmp_path), view="compare")
    assert "lightning-perf diff A B --html" in opened.page.inner_text("main")
    assert opened.page.locator("nav a.empty[aria-current]").count() == 1


def test_runs_are_chosen_swapped_and_linked(server: Server, tmp_path: Path, compared: Compared) -> None:
    report = json.loads(page_json(hand_made_report(tmp_path)))
    diff, working = json.loads(page_json(compared)), {"state": "working", "done": 0.5, "message": "Reading"}
    server.runs(("new", 2.0), ("old", 1.0))
    for name in ("new", "old"):
        server.answers[f"data/report {name}"] = [(200, report)]
        server.answers[f"data/diff {name}"] = [(202, working), (200, diff)]
    server.open("#view=compare")
    page = server.page
    page.wait_for_selector("text=Choose the run from before the change")
    assert page.locator("#before option").all_inner_texts() == ["choose a run …", "old"]
    page.select_option("#before", "old")
    page.wait_for_selector("progress[value='0.5']")
    page.clock.run_for(1_000)
    page.wait_for_selector("#table-diff-kernels")
    assert server.asked[-1] == ("data/diff", {"run": "old", "other": "new"})
    page.click("[aria-label='Light or dark theme']")
    page.wait_for_selector("#table-diff-kernels")
    assert len([path for path, _ in server.asked if path == "data/diff"]) == 2  # another theme asks nobody
    page.click("text=Swap")
    page.wait_for_selector("#before option[value=new]", state="attached")
    page.clock.run_for(1_000)
    page.wait_for_selector("#table-diff-kernels")
    assert server.asked[-1] == ("data/diff", {"run": "new", "other": "old"})
    page.reload()
    page.clock.run_for(1_000)
    page.wait_for_selector("#table-diff-kernels")
    assert page.get_attribute("#run", "value") == "old"
    assert page.input_value("#before") == "new"


def test_a_diff_that_fails_says_why(server: Server, tmp_path: Path) -> None:
    server.runs(("new", 2.0), ("old", 1.0))
    server.answers["data/report new"] = [(200, json.loads(page_json(hand_made_report(tmp_path))))]
    server.answers["data/diff old"] = [(422, {"state": "failed", "message": "The trace ends early."})]
    server.open("#view=compare&before=old")
    server.page.wait_for_selector("text=The trace ends early.")
    server.open("#view=compare&before=gone")
    server.page.reload()
    server.page.wait_for_selector("text=The run gone does not exist")
