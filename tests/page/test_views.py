"""Every view in a real browser, from disk: on real recordings, on hand-made ones, and on hostile ones."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from lightning_perf.documents import page_json
from lightning_perf.report.build import analyze
from lightning_perf.report.document import PerfReport
from lightning_perf.report.verdict import Verdict
from lightning_perf.units import format_duration, format_share
from tests.page.samples import HOSTILE, hand_made_report, poisoned, trained_precision

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
    assert opened.texts("#table-kernels tbody tr:first-child > *")[:4] == ["gemm", "1", "600 µs", "75.0 %"]
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
        "inf from MulBackward0 in net.fc (model.py:7)",
        "all vanished",
        "beyond seed noise",
    ):
        assert text in shown
    opened.show("timeline")
    assert opened.page.locator("canvas.tl-lane").count() > 6
    assert "lightning-perf view" in opened.page.inner_text("main")


def test_another_rank_is_shown_when_chosen(tmp_path: Path, open_page: Any) -> None:
    opened = open_page(hand_made_report(tmp_path), view="kernels")
    assert "600 µs" in opened.page.inner_text("#table-kernels tbody tr:first-child")
    opened.page.select_option("#rank", "0")
    assert "400 µs" in opened.page.inner_text("#table-kernels tbody tr:first-child")
    assert "rank=0" in opened.page.url


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


def test_findings_fold_to_title_and_saving(tmp_path: Path, open_page: Any) -> None:
    report = hand_made_report(tmp_path)
    second = replace(report.findings[0], title="Another problem", evidence=("Its evidence.",))
    opened = open_page(replace(report, findings=(report.findings[0], second)))
    other = opened.page.locator("details.finding")
    assert other.count() == 1
    summary = other.locator("summary").inner_text()
    assert "2. Another problem" in summary
    assert "per step" in summary
    assert not opened.page.get_by_text("Its evidence.").is_visible()
    other.locator("summary").click()
    assert opened.page.get_by_text("Its evidence.").is_visible()


def test_empty_views_are_grouped_with_what_to_record(tmp_path: Path, open_page: Any) -> None:
    opened = open_page(hand_made_report(tmp_path))
    group = opened.page.locator("nav details")
    links = group.locator("a")
    assert group.locator("summary").inner_text() == f"Not recorded ({links.count()})"
    assert not links.first.is_visible()
    names = links.all_text_contents()
    assert names == ["Modules"]
    part = opened.page.locator(".part", has=opened.page.get_by_role("heading", name="Not recorded (1)"))
    assert part.locator("dt").all_inner_texts() == names
    assert "with_stack=True" in part.inner_text()
    group.locator("summary").click()
    links.first.click()
    assert opened.page.inner_text("main h1") == "Modules"
    assert links.first.is_visible()
