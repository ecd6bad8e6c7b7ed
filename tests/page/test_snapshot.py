"""Memory snapshots on the page: the areas over time, the lines, the segments, and two snapshots side by side."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from lightning_perf.documents import page_json
from lightning_perf.memory_snapshot.allocations import CATEGORIES
from lightning_perf.memory_snapshot.build import build_report
from lightning_perf.memory_snapshot.compared import compare_snapshots
from lightning_perf.memory_snapshot.document import MemoryReport
from lightning_perf.memory_snapshot.snapshot import read_snapshot
from lightning_perf.report.labels import MEMORY_LABELS
from lightning_perf.units import format_bytes
from tests.memory_snapshot.allocator import MIB, Allocator, forward, train
from tests.page.samples import HOSTILE


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> MemoryReport:
    """A training with a leak, a line with a hostile name, and an error at the end."""
    allocator = Allocator()
    train(allocator, 8, leak_bytes=MIB)
    allocator.alloc(5 * MIB, forward(3, f"/home/{HOSTILE}/net.py"), stream=2)
    allocator.record("oom", MIB, 5000 * MIB, 0, forward(4))
    path = allocator.write(tmp_path_factory.mktemp("snapshot") / "s.pickle")
    return build_report(read_snapshot(path), path)


def encoded(document: Any) -> bytes:
    return bytes(document.to_json(indent=None).encode())


def test_every_use_has_a_label_and_so_a_color() -> None:
    assert set(CATEGORIES) <= set(MEMORY_LABELS)


def test_the_page_shows_who_held_the_memory(open_page: Any, report: MemoryReport) -> None:
    (device,) = report.devices
    opened = open_page(page_json(report), kind="snapshot")
    assert opened.texts("nav a") == ["Memory", "Segments"]
    text = opened.page.inner_text("main")
    assert "Out of memory: project/net.py:4 forward asked for 4.88 GiB." in text
    assert "the lowest memory within a step grew by 4.00 MiB over 4 steps and never fell." in text
    assert opened.texts(".tile dd")[0].startswith(format_bytes(device.peak.allocated_bytes).replace(" ", "\u00a0"))
    first = opened.texts("#table-held-2 tbody tr:first-child > *")
    assert [cell.strip() for cell in first[:2]] == [
        device.groups[0].line,
        format_bytes(device.groups[0].peak_bytes),
    ]
    opened.draw_charts()
    uses, lines = opened.page.locator(".chart").all()
    assert len(uses.locator(".fills path").all()) == len(device.peak.categories)
    assert "autograd MmBackward0" in lines.locator("g.legend").text_content()


def test_segments_are_drawn_to_scale(open_page: Any, report: MemoryReport) -> None:
    (device,) = report.devices
    opened = open_page(page_json(report), kind="snapshot", view="segments")
    opened.draw_charts()
    bars = opened.page.evaluate(
        "document.querySelector('.chart').data.map(({ x, y, base, hovertext }) => ({ x, y, base, hovertext }))"
    )
    lengths = [0.0] * len(device.segments)
    for bar in bars:
        for length, row, start in zip(bar["x"], bar["y"], bar["base"], strict=True):
            assert start + length <= device.segments[row].reserved_bytes / MIB
            lengths[row] += length
    assert lengths == [segment.reserved_bytes / MIB for segment in device.segments]
    assert "optimizer state: 80.0 MiB" in [text for bar in bars for text in bar["hovertext"]]
    sizes = [row.split("\t")[1].strip() for row in opened.texts("#table-segments tbody tr")]
    assert sizes == [format_bytes(segment.reserved_bytes) for segment in device.segments]


def test_a_comparison_shows_the_change_of_each_line(open_page: Any, report: MemoryReport) -> None:
    (device,) = report.devices
    smaller = tuple(replace(row, peak_bytes=row.peak_bytes // 2) for row in device.groups)
    before = replace(report, devices=(replace(device, groups=smaller),))
    opened = open_page(page_json(compare_snapshots(before, report)), kind="snapshot-diff")
    assert opened.texts("nav a") == ["Changes"]
    cells = opened.texts("#table-changes-3 tbody tr:first-child > *")
    assert cells[:4] == ["project/train.py:30 main", "optimizer state", "40.0 MiB", "80.0 MiB"]


def test_a_snapshot_without_history_and_one_without_memory(open_page: Any, tmp_path: Path) -> None:
    allocator = Allocator()
    allocator.alloc(MIB, forward())
    path = allocator.write(tmp_path / "s.pickle", last=0)
    values = allocator.snapshot()
    values["device_traces"] = []
    report = build_report(read_snapshot(path), path)
    opened = open_page(page_json(replace(report, devices=(replace(report.devices[0], curve=None),))), kind="snapshot")
    assert opened.page.locator(".chart").count() == 0
    opened = open_page(page_json(replace(report, devices=())), kind="snapshot")
    assert "holds no memory and no events" in opened.page.inner_text("main")


def test_views_are_accessible_and_fit_a_phone(open_page: Any, report: MemoryReport) -> None:
    pytest.importorskip("axe_playwright_python", reason="needs axe: pip install axe-playwright-python")
    from tests.page.test_accessibility import violations

    opened = open_page(page_json(report), kind="snapshot", viewport={"width": 390, "height": 844}, color_scheme="dark")
    for view in ("held", "segments"):
        opened.show(view)
        assert violations(opened.page) == [], view
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390, view
