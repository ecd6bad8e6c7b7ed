"""Tables at every width: pinned names, a choice of columns, shadows at cut edges, rows of one height, details."""

import json
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.documents import page_json
from lightning_perf.report.build import analyze
from tests.page.samples import HOSTILE, hand_made_report, poisoned
from tests.support.trace_builder import TraceBuilder

FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int, float)"
LONG = "void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_f16_128x128_32x4_nn_align8>(Params) " * 2


def many_kernels(folder: Path) -> Any:
    trace = TraceBuilder().gpu("NVIDIA A100", computeMajor=8, computeMinor=0, numSms=108).step(1, 0, 10_000)
    for number in range(12):
        at = 20 + 100 * number
        name = f"aten::op{number}"
        trace.python(f"train.py({number}): step", at - 10, 90).op(name, at, 60, dims=[[number, 4]], types=["float"])
        trace.op("aten::inner", at + 5, 40).memory(at + 8, 512, address=number)
        arguments: dict[str, Any] = {
            "grid": [number + 1, 2, 1],
            "block": [128, 1, 1],
            "registers per thread": 40,
            "shared memory": 1024,
            "blocks per SM": 0.5,
            "est. achieved occupancy %": 30,
        }
        kernel = f"k{number}" if number % 2 else f"{LONG}{number}"
        trace.launch(kernel, call_us=at + 10, call_duration_us=5, start_us=2000 + at, duration_us=90, **arguments)
    return analyze(trace.write(folder / "rank0.pt.trace.json"))


def headings(opened: Any, table: str) -> list[str]:
    return [text.split("\n")[0] for text in opened.texts(f"#table-{table} thead th")]


@pytest.mark.parametrize("width", [1400, 1920])
def test_no_column_is_cut_at_the_width_of_a_desk(tmp_path: Path, open_page: Any, width: int) -> None:
    opened = open_page(many_kernels(tmp_path), view="kernels", viewport={"width": width, "height": 900})
    for view, table in (("kernels", "kernels"), ("operators", "operators"), ("operators", "call-tree")):
        opened.show(view)
        frame = opened.page.locator(f"#table-{table} .scroll-frame")
        assert frame.evaluate("item => item.firstChild.scrollWidth <= item.firstChild.clientWidth + 1")
        assert "more-right" not in frame.get_attribute("class")
    if width == 1920:
        opened.show("kernels")
        assert {"Grid", "Block", "Registers", "Shared memory"} <= set(headings(opened, "kernels"))
        assert opened.page.locator("main").bounding_box()["width"] > 1700  # the whole width of the window


def test_the_name_stays_in_sight_and_shadows_mark_what_is_hidden(tmp_path: Path, open_page: Any) -> None:
    opened = open_page(many_kernels(tmp_path), view="kernels", viewport={"width": 600, "height": 900})
    frame, scroll = (opened.page.locator(f"#table-kernels .{name}") for name in ("scroll-frame", "scroll"))
    opened.page.wait_for_selector("#table-kernels .scroll-frame.more-right")
    assert "more-left" not in frame.get_attribute("class")
    name = opened.page.locator("#table-kernels tbody th").first
    before = name.bounding_box()["x"]
    scroll.evaluate("item => item.scrollTo(10_000, 0)")
    opened.page.wait_for_selector("#table-kernels .scroll-frame.more-left:not(.more-right)")
    assert name.bounding_box()["x"] == before


def test_rows_have_one_height_and_a_long_name_opens(tmp_path: Path, open_page: Any) -> None:
    opened = open_page(many_kernels(tmp_path), view="kernels", viewport={"width": 1400, "height": 900})
    rows = opened.page.locator("#table-kernels tbody tr")
    heights = {round(row.bounding_box()["height"]) for row in rows.all()}
    assert max(heights) - min(heights) <= 1  # borders fall between pixels
    row = rows.filter(has=opened.page.locator("button.name")).first
    row.locator("button.name").click()
    assert row.bounding_box()["height"] > 1.5 * max(heights)


def test_a_kernel_shows_its_function_and_opens_its_whole_name(tmp_path: Path, open_page: Any) -> None:
    trace = TraceBuilder().step(1, 0, 1000)
    trace.launch(FILL, call_us=10, call_duration_us=5, start_us=20, duration_us=90)
    opened = open_page(analyze(trace.write(tmp_path / "rank0.pt.trace.json")), view="kernels")
    name = opened.page.locator("#table-kernels button.name")
    assert (name.inner_text(), name.get_attribute("title")) == ("vectorized Fill float", FILL)
    for shown in (FILL, "vectorized Fill float"):
        name.click()
        assert name.inner_text() == shown


def test_the_reader_chooses_columns_and_the_address_keeps_them(tmp_path: Path, open_page: Any) -> None:
    opened = open_page(many_kernels(tmp_path), view="kernels", viewport={"width": 1400, "height": 900})
    page = opened.page
    assert "Minimum" not in headings(opened, "kernels")
    summary = page.locator("#table-kernels .columns-choice summary")
    assert summary.inner_text().startswith("Columns (")
    summary.click()
    page.get_by_label("Minimum").check()
    page.get_by_label("Share", exact=True).uncheck()
    assert "Minimum" in headings(opened, "kernels")
    assert "Share" not in headings(opened, "kernels")
    page.keyboard.press("Escape")
    assert not page.get_by_label("Minimum").is_visible()
    page.reload()
    page.wait_for_selector("#table-kernels tbody td")
    assert "Minimum" in headings(opened, "kernels")
    assert "Share" not in headings(opened, "kernels")
    summary.click()
    page.click(".columns-list button:text-is('Usual')")
    assert "Share" in headings(opened, "kernels")
    assert "columns" not in page.url


def test_an_operator_opens_its_shapes_and_stacks(tmp_path: Path, open_page: Any) -> None:
    report = many_kernels(tmp_path)
    opened = open_page(report, view="operators")
    page = opened.page
    page.fill("#table-operators input[type=search]", "op3")
    page.click("#table-operators tbody button.more")
    shown = page.inner_text("#table-operators tr.details")
    assert "[[3,4]]" in shown
    assert "train.py(3): step" in shown
    hostile = open_page(json.dumps(poisoned(json.loads(page_json(report)))).encode(), view="operators")
    hostile.page.click("#table-operators tbody button.more >> nth=0")
    hostile.page.wait_for_selector("#table-operators tr.details pre")
    assert hostile.page.evaluate("globalThis.pwned") is None
    assert HOSTILE[:8] in hostile.page.inner_text("#table-operators tr.details")


def test_the_call_tree_and_memory_by_operator_are_shown(tmp_path: Path, open_page: Any) -> None:
    opened = open_page(many_kernels(tmp_path), view="operators")
    tree = opened.page.locator("#table-call-tree tbody tr")
    assert tree.count() == 24
    assert "aten::inner" in tree.nth(1).inner_text()
    tree.first.locator(".twist").click()
    assert tree.count() == 23
    opened.show("memory")
    row = opened.page.locator("#table-memory-2 tbody tr").first.inner_text().split()
    assert row == ["aten::inner", "6.00", "KiB", "6.00", "KiB", "12", "0"]


def test_sizes_and_bandwidth_of_collectives_are_shown(tmp_path: Path, open_page: Any) -> None:
    trace = TraceBuilder().rank(0, 2).gpu("NVIDIA A100").step(1, 0, 1000)
    inputs: dict[str, Any] = {"Input type": ["float"], "Input Dims": [[394241]]}
    trace.host("user_annotation", "nccl:all_reduce", 10, 50, **inputs)
    trace.launch("ncclKernel_X", call_us=20, call_duration_us=5, start_us=40, duration_us=200)
    opened = open_page(analyze(trace.write(tmp_path / "rank0.pt.trace.json")), view="distributed")
    assert "all_reduce 1.50 MiB (1,576,964 bytes) in 1 call" in opened.page.inner_text("main")
    row = opened.texts("#table-communication tbody tr:first-child > *")
    assert row[:3] == ["all_reduce float", "1.50 MiB", "1"]
    assert "7.88 GB/s" in row


def test_tables_of_a_small_report_have_no_choice(tmp_path: Path, open_page: Any) -> None:
    opened = open_page(hand_made_report(tmp_path), view="overview")
    assert opened.page.locator("#table-breakdown .columns-choice").count() == 0
