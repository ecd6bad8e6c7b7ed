"""The parts of a report's page as blocks, without a browser. The tests of `tests/page` draw them."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from lightning_perf.analysis.precision.forecast import forecast
from lightning_perf.analysis.precision.scales import summarize_shadow
from lightning_perf.analysis.steps.step_times import summarize_step_times
from lightning_perf.findings.finding import Finding
from lightning_perf.findings.whole_run import RULE_IDS, HeldBack
from lightning_perf.report.build import analyze
from lightning_perf.report.document import PerfReport
from lightning_perf.report.sections.fit_time import COLORS
from lightning_perf.report.sections.page import VIEWS, report_parts
from lightning_perf.run_files.captures import CaptureRecord, CaptureTrigger
from lightning_perf.run_files.fit.account import Group
from lightning_perf.run_files.numerics.precision import BadRun
from lightning_perf.run_files.steps import StepSample
from lightning_perf.show.blocks import Bar, Figures, Plot
from tests.analysis.kernels.test_torch_2_15 import recorded
from tests.analysis.precision.test_forecast import sample
from tests.analysis.precision.test_scales import shadow_step as shadow_sample
from tests.findings import accounts, compilations
from tests.page.samples import hand_made_report, trained_precision
from tests.page.test_tables import many_kernels
from tests.report.test_captured import SLOW, record, trace
from tests.report.test_memory_sections import recording
from tests.support.shown import console_text, page_text, table_of, texts
from tests.support.trace_builder import TraceBuilder


def part(report: PerfReport, name: str) -> str:
    return " ".join(page_text(report_parts(report)[name]).split())


def with_forecast(folder: Path) -> PerfReport:
    found = forecast([sample(), sample("lm_head", db=9.2)], precision="bf16-mixed")
    return replace(hand_made_report(folder), forecast=found)


def with_shadow_steps(folder: Path) -> PerfReport:
    drift = summarize_shadow([shadow_sample(0, 0.99), shadow_sample(100, 0.95)])
    return replace(hand_made_report(folder), shadow=drift)


def with_held_back(folder: Path) -> PerfReport:
    finding = Finding("cpu-bf16", "high", "FP32 products", (), "Train in bf16.", 1.0, 2.0, "", 0, 10.0)
    held = HeldBack(finding, "Estimated while the machine was busy. Record again on a quiet machine.")
    return replace(hand_made_report(folder), held_back=(held,))


def with_one_reason_for_two(folder: Path) -> PerfReport:
    report = with_held_back(folder)
    return replace(
        report, held_back=(*report.held_back, *report.held_back, replace(report.held_back[0], reason="Cold."))
    )


def with_step_times(folder: Path) -> PerfReport:
    samples = [
        StepSample(step, 900_000_000 if step == 50 else 10**8 + 2 * 10**6 * step, 10**7, None, 32, 30 <= step < 34)
        for step in range(100)
    ]
    return replace(hand_made_report(folder), step_times=summarize_step_times(samples))


def of_one_rank(folder: Path) -> PerfReport:
    hand_made_report(folder)
    return analyze(folder / "rank0.1.pt.trace.json")


def of_an_optimizer_without_steps(folder: Path) -> PerfReport:
    trace = TraceBuilder().gpu("NVIDIA A100").op("aten::mm", 0, 10).op("aten::_foreach_add_", 110, 40)
    trace.annotation("Optimizer.step#SGD.step", 100, 200).op("aten::mm", 400, 10)
    trace.launch("update", call_us=120, call_duration_us=5, start_us=130, duration_us=60)
    return analyze(trace.write(folder / "rank0.pt.trace.json"))


def of_overlapping_streams(folder: Path) -> PerfReport:
    trace = TraceBuilder().gpu("NVIDIA A100").step(1, 0, 1000).op("aten::mm", 10, 50, types=["float"])
    for stream in (7, 8):
        trace.launch("gemm", call_us=20, call_duration_us=5, start_us=100, duration_us=400, stream=stream)
    return analyze(trace.write(folder / "rank0.pt.trace.json"))


def slow_capture(folder: Path) -> PerfReport:
    trace(folder, fetch_us=100)
    trace(folder / "slow-step-120", fetch_us=2100, first=121, work_us=1000)
    record(folder, CaptureRecord("slow-step-120", CaptureTrigger.SLOW_STEPS, 119, SLOW))
    record(folder, CaptureRecord("on-demand-300", CaptureTrigger.SIGNAL, 299))
    return analyze(folder)


PARTS: list[tuple[Callable[[Path], PerfReport], str, tuple[str, ...], tuple[str, ...]]] = [
    (
        with_forecast,
        "forecast",
        ("lm_head", " 9.2 ", "FP8, current scaling", "H100 SXM5"),
        ("Signal-to-noise ratio of each",),
    ),
    (
        with_shadow_steps,
        "shadow",
        ("at least 0.9500 (step 100)", "100 1.010 1.000 0.95000 1.0200", "body 0.95000 100 0.97000 1.500–1.500"),
        ("Drift of the gradient", "Loss of the same batches"),
    ),
    (
        with_held_back,
        "held_back",
        ("Held back", "FP32 products [cpu-bf16] Estimated while the machine was busy."),
        (),
    ),
    (
        with_one_reason_for_two,
        "held_back",
        ("Reason for these 2: Estimated while", "FP32 products [cpu-bf16] Cold."),
        (),
    ),
    (
        with_step_times,
        "step_times",
        ("slower than the first.", "than those before.", "The longest is step 50 with"),
        (),
    ),
    (of_one_rank, "compared", (), ("Only one rank was read",)),
    (of_an_optimizer_without_steps, "optimizer.0", (), ("Optimizer, in the recording",)),
    (
        of_overlapping_streams,
        "arithmetic.0",
        ("add up to 800 µs, but the device computes for 400 µs per step.",),
        (),
    ),
    (
        partial(accounts.faulty, "slow-checkpoints"),
        "fit_time",
        ("first step complete after",),
        ("checkpoints: 20.0 s, ",),
    ),
    (partial(accounts.faulty, "slow-checkpoints"), "fit_findings", ("Findings of the whole fit", " of the fit "), ()),
    (
        compilations.recompiling,
        "compilation",
        (
            "2 of them were recompilations, 8.00 s in all.",
            "Inductor's cache had 0 of 6 graphs.",
            "forward (model.py:24)",
            "7 to 90",
        ),
        ("first step: 2.00 s", "later steps: 8.00 s"),
    ),
    (
        lambda folder: compilations.analyzed(folder, *compilations.BROKEN, *compilations.SKIPPED),
        "compilation",
        ("model.py:31", "if scale.item() > 1:", "Without a CUDA graph", "mutated inputs"),
        (),
    ),
    (
        lambda folder: recording(folder, 8),
        "memory.0",
        (),
        ("parameters: 4.00 GiB", "fragmentation: 1.00 GiB"),
    ),
    (
        lambda folder: analyze(recorded().write(folder / "trace.json")),
        "regions.0",
        ("encoder 2 400 µs 78.4 % 300 µs", "Power (W) 0 400 300–500", "Energy: 0.360 J per step."),
        (),
    ),
    (
        many_kernels,
        "operators.0",
        ("aten::inner 12 1.08 ms 100 % 480 µs", "aten::op3 1 0 ns 0 % 20.0 µs"),
        (),
    ),
    (many_kernels, "kernels.0", ("k1 1 90.0 µs 8.3 % 90.0 µs unknown",), ("device compute: 1.08 ms",)),
    (many_kernels, "call_tree.0", (), ("aten::op11 90.0 µs 0 ns 60.0 µs 20.0 µs 1 aten::inner 90.0 µs 90.0 µs",)),
    (
        many_kernels,
        "missing.0",
        (),
        ("modules This recording does not name modules.", "distributed The run has one rank"),
    ),
    (
        slow_capture,
        "captures",
        ("waiting for input 100 µs 2.10 ms +2.00 ms",),
        ("Step 119", "usual 1.00 ms, limit 1.25 ms · 2 steps recorded, 3.10 ms each", "no complete step recorded"),
    ),
]
"""Reports, and the words of a part of their pages: those that the console has, too, and those that it has not."""


@pytest.mark.parametrize(("make", "name", "words", "drawn"), PARTS)
def test_a_part_has_the_figures_of_the_report(
    make: Callable[[Path], PerfReport], name: str, words: tuple[str, ...], drawn: tuple[str, ...], tmp_path: Path
) -> None:
    report = make(tmp_path)
    shown = part(report, name)
    assert [word for word in (*words, *drawn) if word not in shown] == []
    console = " ".join(console_text(report.blocks(), 400).split())
    assert [word for word in words if word not in console] == []


def test_of_many_ranks_those_with_the_most_work_come_first(tmp_path: Path) -> None:
    report = hand_made_report(tmp_path)
    assert report.distributed is not None
    first, last = report.distributed.ranks
    ranks = (*(replace(first, rank=rank) for rank in range(20)), replace(last, rank=20))
    many = replace(report, distributed=replace(report.distributed, ranks=ranks))
    assert texts(table_of(report_parts(many)["ranks"], "rank"))[0][0] == "20"


def test_the_verdict_does_not_repeat_the_first_finding(tmp_path: Path) -> None:
    report = hand_made_report(tmp_path)
    top = report.findings[0]
    shown = part(report, "verdict") + part(report, "findings")
    assert (shown.count(top.title), shown.count(top.evidence[0]), shown.count("Fix: ")) == (1, 1, len(report.findings))


def test_a_verdict_about_the_fit_leaves_no_finding_of_the_steps_out(tmp_path: Path) -> None:
    report = hand_made_report(tmp_path)
    report = replace(report, verdict=replace(report.verdict, why="Over the fit: Long validation.", next="Less."))
    assert "Over the fit: Long validation." in part(report, "verdict")
    assert all(finding.title in part(report, "findings") for finding in report.findings)


def test_the_error_of_a_bad_run_comes_first(tmp_path: Path) -> None:
    bad = BadRun(7, "bf16-mixed", "loss")
    report = hand_made_report(tmp_path)
    report = replace(report, precision=replace(trained_precision(), bad_run=bad))
    assert part(report, "verdict").startswith(f"Error {bad.title}. Fix: {bad.action}")


def tiles(document: Any) -> dict[str, str]:
    (figures,) = (
        b for b in report_parts(PerfReport.from_json(json.dumps(document)))["summary.1"] if isinstance(b, Figures)
    )
    return {figure.label: f"{figure.text} {figure.note}".strip() for figure in figures.figures}


def test_unknown_tensor_cores_are_unknown(tmp_path: Path) -> None:
    document = json.loads(hand_made_report(tmp_path).to_json())
    arithmetic = document["ranks"][1]["arithmetic"]
    arithmetic |= {"tensor_core_share": 0.0, "tensor_core_unknown_ns": arithmetic["compute_ns"]}
    assert tiles(document)["Tensor Cores"].startswith("unknown")
    arithmetic["tensor_core_unknown_ns"] //= 4
    assert tiles(document)["Tensor Cores"] == "0 % of compute, 25.0 % unknown"


def test_terms_on_amd_are_those_of_amd(tmp_path: Path) -> None:
    document = json.loads(hand_made_report(tmp_path).to_json())
    (device,) = document["ranks"][1]["metadata"]["devices"]
    device |= {"name": "AMD Instinct MI300X", "compute_major": 9, "compute_minor": 4}
    assert {"CU efficiency", "Matrix Cores (MFMA)"} <= tiles(document).keys()
    assert "AMD Instinct MI300X" in part(PerfReport.from_json(json.dumps(document)), "summary.1")


def test_the_tile_of_the_step_time_says_mean_or_median(tmp_path: Path) -> None:
    report = with_step_times(tmp_path)
    assert tiles(json.loads(report.to_json()))["Step time"] == "210 ms median of 91 without the profiler"
    report = replace(report, step_times=None)
    assert tiles(json.loads(report.to_json()))["Step time"].startswith("1.00 ms mean of 3 recorded, ± ")


def test_one_step_has_a_flat_bar_and_long_steps_an_axis_in_seconds(tmp_path: Path) -> None:
    one = TraceBuilder().step(1, 0, 1000).op("aten::mm", 10, 50)
    parts = report_parts(analyze(one.write(tmp_path / "one.json")))
    assert list(parts["steps.0"]) == []
    assert [block.legend for block in parts["breakdown.0"] if isinstance(block, Bar)] == [False]
    long = TraceBuilder()
    for at in long.steps(2, 50_000_000):
        long.op("aten::mm", at + 10, 40_000_000)
    parts = report_parts(analyze(long.write(tmp_path / "long.json")))
    assert [block.layout["yaxis"]["title"] for block in parts["steps.0"] if isinstance(block, Plot)] == ["s"]


def test_every_rule_has_a_view_and_every_group_of_a_fit_a_color_of_its_own() -> None:
    assert sorted(rule for _, rules in VIEWS.values() for rule in rules.split()) == sorted(RULE_IDS)
    assert set(COLORS) == set(get_args(Group))
    assert len(set(COLORS.values())) == len(COLORS)
