"""Every view in a real browser, from disk: on real recordings, on hand-made ones, and on hostile ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.analysis.ranks.communication import HostCollective
from lightning_perf.analysis.steps.step_times import summarize_step_times
from lightning_perf.documents import page_json
from lightning_perf.report.build import analyze
from lightning_perf.report.document import PerfReport
from lightning_perf.report.sections.fit_time import step_times_section
from lightning_perf.report.verdict import Verdict
from lightning_perf.run_files.captures import CAPTURES, CaptureRecord, CaptureTrigger, Slowdown
from lightning_perf.run_files.steps import StepSample
from lightning_perf.show.blocks import Line
from lightning_perf.units import format_duration, format_share
from tests.page.samples import HOSTILE, hand_made_report, poisoned, trained_precision
from tests.support.trace_builder import TraceBuilder

VIEWS = ("overview", "timeline", "operators", "kernels", "modules", "memory", "launches", "distributed", "precision")

# Views without data, which show a reason instead.
MISSING = {
    "kineto/resnet50_num_workers_0/worker0.1623143089861*": {"modules", "distributed"},
    "hta/nccl_parser_config/*.gz": {"modules", "memory"},
    "hta/cpu_only/*.gz": {"kernels", "modules", "memory", "launches"},
    "tracelens/h100/Falconsai*": {"distributed", "precision"},
}


@pytest.mark.corpus
@pytest.mark.parametrize("pattern", MISSING)
def test_every_view_of_a_real_recording_opens(corpus: Path, open_page: Any, pattern: str) -> None:
    trace = next((corpus / "traces").glob(pattern))
    report = analyze(trace)
    opened = open_page(report)
    for view in VIEWS:
        opened.show(view)
        assert opened.page.locator("main h1").count() == 1
        empty = opened.page.locator("main > .missing").count() and not opened.page.locator("main > section").count()
        assert opened.page.locator("nav a.empty[aria-current]").count() == (view in MISSING[pattern])
        if view in MISSING[pattern]:
            assert len(opened.texts("main > .missing")[0]) > 20
        else:
            assert not empty
    opened.show("overview")
    shown = opened.page.inner_text("main")
    assert report.verdict.where in shown
    assert all(finding.title in shown for finding in report.findings)
    assert report.lead is not None
    for row in report.ranks[report.lead].breakdown.categories:
        if row.mean_ns and row.parent is None:
            assert format_duration(row.mean_ns) in shown
            assert format_share(row.share) in shown


def test_views_show_the_figures_of_the_document(tmp_path: Path, open_page: Any) -> None:
    report = hand_made_report(tmp_path, trained_precision())
    opened = open_page(report, view="kernels")
    assert opened.texts("#table-kernels tbody tr:first-child > *")[:4] == ["gemm", "600 µs", "75.0 %", "1"]
    opened.show("operators")
    assert opened.texts("#table-operators tbody th") == ["aten::mm", "aten::add"]
    opened.show("distributed")
    ranks = opened.texts("#table-ranks tbody tr")
    assert [row.split()[0] for row in ranks] == ["0", "1"]
    shown = opened.page.inner_text("main")
    assert report.who_waits
    assert all(sentence in shown for sentence in report.who_waits)
    assert "400 µs" in ranks[0]
    assert "600 µs" in ranks[1]
    opened.show("memory")
    assert "8.00\u00a0KiB" in opened.page.inner_text("main")
    opened.show("precision")
    shown = opened.page.inner_text("main")
    for text in (
        "65,536 at the start",
        "the first inf appeared in net.fc, the gradient of its output",
        "all vanished",
        "beyond seed noise",
    ):
        assert text in shown
    opened.show("timeline")
    assert opened.page.locator("canvas.tl-lane").count() > 6
    assert "lightning-perf view" in opened.page.inner_text("main")


def test_captures_tell_when_how_slow_and_what_differed(tmp_path: Path, open_page: Any) -> None:
    def write(folder: Path, fetch_us: int) -> None:
        folder.mkdir(exist_ok=True)
        trace = TraceBuilder()
        for number in range(2):
            at = number * (fetch_us + 900)
            trace.step(number, at, fetch_us + 900).annotation("perf::fetch", at, fetch_us)
            trace.op("aten::mm", at + fetch_us, 900)
        trace.write(folder / "rank0.1.pt.trace.json")

    write(tmp_path, 100)
    write(tmp_path / "slow-step-120", 2100)
    slow = Slowdown(1_000_000, 1_250_000, (3_000_000, 3_200_000))
    records = (
        CaptureRecord("slow-step-120", CaptureTrigger.SLOW_STEPS, 119, slow),
        CaptureRecord("on-demand-300", CaptureTrigger.SIGNAL, 299),
    )
    (tmp_path / "captures.rank0.jsonl").write_bytes(CAPTURES.encode(*records))
    report = analyze(tmp_path)
    opened = open_page(report)
    first, second = opened.texts("article.finding:has(.severity)")[-2:]
    for part in ("Step 119", "slow steps", "usual 1.00 ms, limit 1.25 ms", "2 steps recorded, 3.00 ms each"):
        assert part in first
    assert all(sentence in first for sentence in report.captures[0].evidence)
    assert "no complete step recorded" in second
    opened.page.click("article.finding summary")
    changes = opened.texts("#table-captures tbody tr")
    assert [cell.strip() for cell in changes[0].split("\t")][:4] == [
        "waiting for input",
        "100 µs",
        "2.10 ms",
        "+2.00 ms",
    ]


def test_one_rank_alone_is_not_called_balanced(tmp_path: Path, open_page: Any) -> None:
    hand_made_report(tmp_path)
    opened = open_page(analyze(tmp_path / "rank0.1.pt.trace.json"), view="distributed")
    shown = opened.page.inner_text("main")
    assert "Only one rank was read" in shown
    assert "No rank keeps" not in shown


def test_step_times_are_told_as_on_the_console(tmp_path: Path, open_page: Any) -> None:
    samples = [
        StepSample(step, 900_000_000 if step == 50 else 10**8 + 2 * 10**6 * step, 10**7, None, 32, 30 <= step < 34)
        for step in range(100)
    ]
    times = summarize_step_times(samples)
    opened = open_page(replace(hand_made_report(tmp_path), step_times=times))
    shown = " ".join(opened.page.inner_text("main").replace("\u00a0", " ").split())
    facts, *sentences = (str(block.text) for block in step_times_section(times) if isinstance(block, Line))
    assert len(sentences) == 3  # the run became slower, after the profiler too, and a step stood out
    for text in (*facts.split(" · "), *sentences):
        assert text in shown


def test_the_optimizer_of_a_recording_without_steps_is_not_said_to_be_of_a_step(tmp_path: Path, open_page: Any) -> None:
    trace = TraceBuilder().gpu("NVIDIA A100").op("aten::mm", 0, 10).op("aten::_foreach_add_", 110, 40)
    trace.annotation("Optimizer.step#SGD.step", 100, 200).op("aten::mm", 400, 10)
    trace.launch("update", call_us=120, call_duration_us=5, start_us=130, duration_us=60)
    opened = open_page(analyze(trace.write(tmp_path / "rank0.pt.trace.json")), view="launches")
    (part,) = (text for text in opened.texts("main section.part") if text.startswith("Optimizer"))
    assert "in the recording" in part
    assert "per step" not in part


def test_of_many_ranks_those_with_the_most_work_come_first(tmp_path: Path, open_page: Any) -> None:
    report = hand_made_report(tmp_path)
    assert report.distributed is not None
    first, last = report.distributed.ranks
    ranks = (*(replace(first, rank=rank) for rank in range(20)), replace(last, rank=20))
    opened = open_page(replace(report, distributed=replace(report.distributed, ranks=ranks)), view="distributed")
    assert opened.texts("#table-ranks tbody th")[0] == "20"


def test_another_rank_is_shown_when_chosen(tmp_path: Path, open_page: Any) -> None:
    opened = open_page(hand_made_report(tmp_path), view="kernels")
    assert "600 µs" in opened.page.inner_text("#table-kernels tbody tr:first-child")
    opened.page.select_option("#rank", "0")
    assert "400 µs" in opened.page.inner_text("#table-kernels tbody tr:first-child")
    assert "rank=0" in opened.page.url


def test_savings_are_parts_of_the_step_of_the_finding_whatever_rank_is_shown(tmp_path: Path, open_page: Any) -> None:
    report = hand_made_report(tmp_path)
    assert report.lead == 1
    finding = replace(report.findings[0], rank=0, step_ms=2.0)  # that of rank 1, in the verdict, takes 1 ms
    opened = open_page(replace(report, findings=(finding,)))
    shares = opened.texts(".saving b")
    assert "200 µs per step (2.5 % to 10.0 % of rank 0's)" in shares[0]
    opened.show("overview", rank="0")
    assert opened.page.input_value("#rank") == "0"
    assert opened.texts(".saving b") == shares


def test_collectives_on_the_host_are_those_of_a_step(tmp_path: Path, open_page: Any) -> None:
    report = hand_made_report(tmp_path)
    ranks = []
    for rank in report.ranks:
        assert rank.communication is not None
        hosted = (HostCollective("gloo:all_reduce", 6, 9_000_000),)
        found = replace(rank.communication, steps=(), collectives=(), host_collectives=hosted)
        ranks.append(replace(rank, communication=found))
    opened = open_page(replace(report, ranks=tuple(ranks)), view="distributed")
    assert opened.texts("#table-communication tbody tr > *") == ["gloo:all_reduce", "2", "3.00 ms"]  # there are 3 steps


def test_hostile_names_stay_text(tmp_path: Path, open_page: Any) -> None:
    report = hand_made_report(tmp_path, trained_precision())
    document = poisoned(json.loads(page_json(report)))
    opened = open_page(json.dumps(document).encode(), title=HOSTILE)
    for view in VIEWS:
        opened.show(view)
        for chart in opened.page.locator(".chart").all():
            chart.scroll_into_view_if_needed()
            chart.locator("svg.main-svg").first.wait_for()
        assert opened.page.evaluate("globalThis.pwned") is None
        assert opened.page.locator("main img, main script, main a[href^=http], main iframe").count() == 0
    opened.show("kernels")
    name = opened.page.inner_text("#table-kernels tbody tr:first-child th")
    assert "<img src=x onerror=" in name
    assert "\\u202eRTL\\x0anewline\\u2028" in name


def test_a_run_without_a_recording_says_so(open_page: Any) -> None:
    verdict = Verdict("A step takes 5 ms.", "No step was profiled.", "Train for more steps.")
    opened = open_page(PerfReport(1, "0", (), verdict, ("A note.",), (), None, (), None))
    assert "A step takes 5 ms." in opened.page.inner_text("main")
    assert "A note." in opened.page.inner_text("main")
    for view in VIEWS[1:]:
        opened.show(view)
        assert opened.page.locator("main > .missing").count() == 1


@pytest.mark.parametrize(("width", "scheme", "hostile"), [(390, "light", True), (1280, "dark", False)])
def test_nothing_is_wider_than_the_page(tmp_path: Path, open_page: Any, width: int, scheme: str, hostile: bool) -> None:
    document = json.loads(page_json(hand_made_report(tmp_path, trained_precision())))
    opened = open_page(
        json.dumps(poisoned(document) if hostile else document).encode(),
        viewport={"width": width, "height": 800},
        color_scheme=scheme,
        is_mobile=width < 800,
        has_touch=width < 800,
    )
    assert opened.page.evaluate("document.documentElement.dataset.theme") == scheme
    opened.draw_charts()
    drags = opened.page.evaluate("[...document.querySelectorAll('.chart')].map((chart) => chart._fullLayout.dragmode)")
    assert set(drags) == {False if width < 800 else "zoom"}  # a finger on a chart scrolls the page
    for view in VIEWS:
        opened.show(view)
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width, view
