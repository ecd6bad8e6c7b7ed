"""The report as blocks: its figures, their order, and what is folded away. Formats are tested in tests/show."""

import io
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

import lightning_perf
from lightning_perf.analysis.precision.forecast import forecast
from lightning_perf.findings.pages import rule_page_url
from lightning_perf.report.build import build_report
from lightning_perf.report.document import PerfReport
from lightning_perf.report.sections.report import short_blocks
from lightning_perf.show.blocks import Details, Heading, Line
from tests.analysis.precision.test_forecast import sample
from tests.report.support import input_bound_report, rendered
from tests.support.shown import all_blocks, console_text, table_of, texts
from tests.support.trace_builder import TraceBuilder

HOSTILE = "<script>|evil| \x1b[31m\u202e [y](http://example.com) `code` *bold*"


@pytest.fixture
def report(tmp_path: Path) -> PerfReport:
    return input_bound_report(tmp_path, HOSTILE)


def test_the_verdict_comes_first_then_findings_then_figures(report: PerfReport) -> None:
    blocks = list(report.blocks())
    verdict = [block.spans[0].text for block in blocks[:3] if isinstance(block, Line)]
    assert verdict == [report.verdict.where, report.verdict.why, report.verdict.next]
    assert [block.text for block in blocks if isinstance(block, Heading)] == ["Findings"]
    assert [span.text for block in blocks if isinstance(block, Line) for span in block.spans if span.link] == [
        finding.kind for finding in report.findings
    ]
    folded = [block for block in blocks if isinstance(block, Details)]
    assert folded == blocks[-1:]
    headings = [block.text for block in all_blocks(folded) if isinstance(block, Heading)]
    assert headings[:2] == ["Step time: 1.00 ms, mean of 3", "Phases"]
    assert headings[-1] == "Traces"


def test_the_figures_of_the_step(report: PerfReport) -> None:
    rows = {row[0].text: row for row in table_of(report.blocks(), "category").rows}
    compute = rows["device compute"]
    assert [cell.text for cell in compute] == ["device compute", "500 µs", "50.0 %", "500 µs – 500 µs"]
    assert [cell.value for cell in compute[1:3]] == [500_000, 0.5]
    assert compute[2].bar == 0.5
    assert rows["waiting for input"][1].value == 400_000


def test_markdown_has_every_word_and_figure_of_the_console(report: PerfReport) -> None:
    markdown = re.sub(
        r"\[([a-z0-9-]+)\]\(https://github\.com/[^)]+\)", r"\1", report.to_markdown().replace("\u200b", "")
    )
    markdown = re.sub(r"\\([\\`*_{}\[\]<>|#~$&])", r"\1", markdown)
    console, shown = (set(re.sub("[|*▏▎▍▌▋▊▉█]", " ", text).split()) for text in (rendered(report, 400), markdown))
    assert console <= shown


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_cut_off_or_wider_than_the_page(report: PerfReport, width: int) -> None:
    file = io.StringIO()
    report.print(file=file, width=width)
    figures, _, paths = file.getvalue().partition("\nTraces\n")
    assert all(len(line) <= width for line in figures.splitlines())
    assert paths.startswith(f"{report.sources[0]}\n")
    assert "\x1b" not in figures


def test_links_lead_to_the_pages_of_rules(report: PerfReport) -> None:
    assert f"[input-bound]({rule_page_url('input-bound')})" in report.to_markdown()
    assert re.sub(r"\\(.)", r"\1", report.to_markdown()).count("<script>")
    assert not re.search(r"(?<!\\)<script", report.to_markdown() + report.diff(report).to_markdown())


def test_top_limits_the_tables(tmp_path: Path) -> None:
    builder = TraceBuilder().step(1, 0, 1000)
    for number in range(12):
        builder.op(f"aten::op{number}", 10 + 50 * number, 40)
    report = lightning_perf.analyze(builder.write(tmp_path / "rank0.pt.trace.json"))
    assert len(table_of(report.blocks(3), "operator").rows) == 3
    assert "… and 9 more operators" in report.to_markdown(top=3)
    assert len(table_of(report.blocks(20), "operator").rows) == 12


def test_a_diff_shows_categories_at_once(report: PerfReport) -> None:
    blocks = list(report.diff(report).blocks())
    assert [block.text for block in blocks if isinstance(block, Heading)] == ["By category"]
    folded = [block.text for block in all_blocks(blocks[-1:]) if isinstance(block, Heading)]
    assert folded == ["Operators, device self time", "Operators, host self time", "Kernels, copies and memsets"]


def test_use_of_the_device_is_called_what_the_page_calls_it(report: PerfReport) -> None:
    (rank,) = report.ranks
    assert rank.efficiency is not None
    (device,) = rank.efficiency.devices
    devices = (replace(device, busy=0.5, sm_efficiency=0.25, occupancy=0.125),)
    told = replace(report, ranks=(replace(rank, efficiency=replace(rank.efficiency, devices=devices)),))
    assert "busy 50.0 % · SM efficiency 25.0 % · occupancy 12.5 %" in rendered(told, 400)


def test_places_where_the_host_waits_are_named(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for start in builder.steps(2, 1000):
        builder.op("aten::item", start + 100, 300)
        builder.launch("k", call_us=start + 10, call_duration_us=5, start_us=start + 20, duration_us=300)
        builder.runtime("cudaStreamSynchronize", start + 110, 210)
    report = lightning_perf.analyze(builder.write(tmp_path / "t.json"))
    assert "Waits of the host for the device: 210 µs per step" in rendered(report, 400)
    (row,) = texts(table_of(report.blocks(), "in"))
    assert row[:4] == ("aten::item, cudaStreamSynchronize", "forward", "1", "210 µs")


@pytest.mark.parametrize("marked", [True, False])
def test_collectives_on_the_host_are_counted_a_step(tmp_path: Path, marked: bool) -> None:
    builder = TraceBuilder()
    for number in range(3):
        builder.op("aten::mm", 1000 * number, 900)
        builder.annotation("gloo:all_reduce", 1000 * number + 10, 40)
        builder.annotation("gloo:all_reduce", 1000 * number + 60, 60)
        if marked:
            builder.step(number, 1000 * number, 1000)
    report = lightning_perf.analyze(builder.write(tmp_path / "t.json"))
    (row,) = texts(table_of(report.blocks(), "collective on the host"))
    assert row == ("gloo:all_reduce", *(("2", "100 µs") if marked else ("6", "300 µs")))


def test_products_without_tensor_cores_are_counted_per_step(tmp_path: Path) -> None:
    builder = TraceBuilder().gpu("Tesla V100-SXM2-16GB", computeMajor=7, computeMinor=0, numSms=80)
    for start in builder.steps(4, 1000):
        builder.op("aten::mm", start + 10, 100, types=["float", "float"], dims=[[64, 64], [64, 64]])
        builder.launch(
            "volta_sgemm_128x64_nn", call_us=start + 20, call_duration_us=5, start_us=start + 50, duration_us=200
        )
    expected = "Matrix products without Tensor Cores: 200 µs per step in 1 kernel, because the inputs are FP32 and"
    assert expected in rendered(lightning_perf.analyze(builder.write(tmp_path / "trace.json")), 400)


def test_steps_are_named_only_where_the_recording_marks_them(tmp_path: Path) -> None:
    for builder, step, peak in (
        (TraceBuilder().step(3, 0, 1000), "3", "Peak in tensors 8 B (step 3) ·"),
        (TraceBuilder().op("aten::mm", 0, 1000), "–", "Peak in tensors 8 B ·"),
    ):
        builder.kernel("k", 100, 100).kernel("k", 700, 100).memory(10, 8, allocated=8)
        blocks = list(lightning_perf.analyze(builder.write(tmp_path / "t.json")).blocks())
        longest = texts(table_of(blocks, "length"))[0]
        assert (longest[0], longest[3]) == ("500 µs", step)
        assert peak in console_text(blocks)


def test_the_rank_of_the_verdict_is_among_the_few_that_are_shown(tmp_path: Path) -> None:
    for rank in range(20):
        builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", computeMajor=8).rank(rank, 20)
        compute_us = 700 if rank == 18 else 300
        builder.step(0, 0, 1000).op("aten::mm", 10, 20)
        builder.launch("gemm", call_us=12, call_duration_us=5, start_us=20, duration_us=compute_us)
        builder.launch(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
            call_us=22,
            call_duration_us=5,
            start_us=20 + compute_us,
            duration_us=800 - compute_us,
        )
        builder.write(tmp_path / f"rank{rank}.pt.trace.json")
    report = lightning_perf.analyze(tmp_path)
    assert "on rank 18" in report.verdict.where
    assert [int(row[0]) for row in texts(table_of(report.blocks(), "rank"))] == [*range(15), 18]
    assert "… and 4 more" in rendered(report, 400)


def test_the_forecast_has_advice_and_both_tables() -> None:
    found = forecast([sample("layers.0.up"), sample("lm_head", db=9.25)], precision="bf16-mixed")
    report = replace(build_report(()), forecast=found)
    assert {row[0]: row[1:3] for row in texts(table_of(report.blocks(), "recipe"))}["FP8, current scaling"] == (
        "1 of 2",
        "1 of 2",
    )
    worst, other = table_of(report.blocks(), "layer").brief().rows
    assert [cell.text for cell in worst] == ["lm_head", *["9.2"] * 6, "75.0 %"]
    assert (worst[0].troubled, other[0].text, other[0].troubled, other[1].text) == (True, "layers.0.up", False, "25.0")
    shown = rendered(report, 400)
    assert "From 1 sampled step, 1.0 % of the fit's time." in shown
    for text in (shown, report.to_markdown().replace("\\_", "_"), console_text(short_blocks(report, None))):
        assert "FP8 would be safe in 1 of 2 layers. Keep out lm_head" in text
