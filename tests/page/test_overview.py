"""The overview: nothing twice, one step, overlapping streams, unknown Tensor Cores, terms of AMD, empty views."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning_perf.report.build import analyze
from lightning_perf.report.document import PerfReport
from tests.page.samples import hand_made_report
from tests.support.trace_builder import TraceBuilder


def document(folder: Path) -> Any:
    return json.loads(hand_made_report(folder).to_json())


def test_the_verdict_does_not_repeat_the_first_finding(tmp_path: Path, open_page: Any) -> None:
    report = hand_made_report(tmp_path)
    top = report.findings[0]
    second = replace(top, title="Another problem", evidence=("Its evidence.",), kind="host-work")
    opened = open_page(replace(report, findings=(top, second)))
    shown = opened.page.inner_text("main")
    assert shown.count(top.title) == 1
    assert report.verdict.where in shown
    assert shown.count(top.evidence[0]) == 1
    assert "Fix:" in opened.page.inner_text("[aria-label=Verdict]")


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


def test_one_step_gets_a_flat_bar(tmp_path: Path, open_page: Any) -> None:
    trace = TraceBuilder().gpu("NVIDIA A100").step(1, 0, 1000).op("aten::mm", 10, 50)
    trace.launch("gemm", call_us=20, call_duration_us=10, start_us=100, duration_us=400)
    opened = open_page(analyze(trace.write(tmp_path / "rank0.pt.trace.json")))
    assert opened.page.locator(".chart").count() == 0
    bar = opened.page.locator(".part:has(#table-breakdown) .stack-bar")
    assert bar.bounding_box()["height"] < 40


def test_sums_over_overlapping_streams_say_so(tmp_path: Path, open_page: Any) -> None:
    trace = TraceBuilder().gpu("NVIDIA A100").step(1, 0, 1000).op("aten::mm", 10, 50, types=["float"])
    for stream in (7, 8):
        trace.launch("gemm", call_us=20, call_duration_us=5, start_us=100, duration_us=400, stream=stream)
    report = analyze(trace.write(tmp_path / "rank0.pt.trace.json"))
    opened = open_page(report)
    told = "Kernels overlap: their times add up to 800 µs, but the device computes for 400 µs per step."
    assert told in opened.page.inner_text("main")
    assert "Kernels overlap" not in open_page(hand_made_report(tmp_path)).page.inner_text("main")


def tile(opened: Any, label: str) -> str:
    text: str = opened.page.locator(
        f".tile:has(dt:text-is('{label}')) dd, .tile:has(dt button:text-is('{label}')) dd"
    ).inner_text()
    return " ".join(text.split())


def test_unknown_tensor_cores_are_unknown(tmp_path: Path, open_page: Any) -> None:
    found = document(tmp_path)
    for rank in found["ranks"]:
        whole = rank["arithmetic"]["compute_ns"]
        rank["arithmetic"] |= {"tensor_core_ns": 0, "tensor_core_share": 0.0, "tensor_core_unknown_ns": whole}
    opened = open_page(PerfReport.from_json(json.dumps(found)))
    assert tile(opened, "Tensor Cores").startswith("unknown")
    for rank in found["ranks"]:
        rank["arithmetic"]["tensor_core_unknown_ns"] = rank["arithmetic"]["compute_ns"] // 4
    assert tile(open_page(PerfReport.from_json(json.dumps(found))), "Tensor Cores") == "0 % of compute, 25.0 % unknown"


def test_terms_on_amd_are_those_of_amd(tmp_path: Path, open_page: Any) -> None:
    found = document(tmp_path)
    for rank in found["ranks"]:
        rank["metadata"]["devices"] = [
            {**device, "name": "AMD Instinct MI300X", "compute_major": 9, "compute_minor": 4}
            for device in rank["metadata"]["devices"]
        ]
        for device in rank["efficiency"]["devices"]:
            device["sm_efficiency"] = 0.5
    opened = open_page(PerfReport.from_json(json.dumps(found)))
    shown = opened.page.inner_text("main")
    for term in ("gfx942", "CU efficiency", "Matrix Cores (MFMA)"):
        assert term in shown
    for term in ("compute capability", "SM efficiency", "Tensor Cores"):
        assert term not in shown


def test_long_steps_have_an_axis_in_seconds(tmp_path: Path, open_page: Any) -> None:
    trace = TraceBuilder().gpu("NVIDIA A100")
    for at in trace.steps(2, 50_000_000):
        trace.op("aten::mm", at + 10, 40_000_000)
    opened = open_page(analyze(trace.write(tmp_path / "rank0.pt.trace.json")))
    opened.draw_charts()
    assert opened.page.text_content(".chart .ytitle") == "s"


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
