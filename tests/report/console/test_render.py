from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import lightning_perf
from lightning_perf.findings.pages import rule_page_url
from lightning_perf.report.console.render import render
from lightning_perf.report.document import PerfReport
from lightning_perf.terminal_text import UNBREAKABLE, kernel_text, plain, shorten
from tests.report.support import input_bound_report
from tests.support.trace_builder import TraceBuilder

HOSTILE = "[bold red]evil[/] \x1b[31m\x07\r\n\u202eoliam \u2066x [link=http://example.com]y[/link] :smile: \ud800"


@pytest.fixture
def report(tmp_path: Path) -> PerfReport:
    return input_bound_report(tmp_path, HOSTILE)


def printed(report: PerfReport, width: int) -> str:
    file = io.StringIO()
    report.print(file=file, width=width)
    return file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_cut_off_or_wider_than_the_page(report: PerfReport, width: int) -> None:
    text = printed(report, width)
    paths = text[text.index("\nTraces\n") :]
    for line in text.removesuffix(paths).splitlines():
        assert len(line) <= width
    for figure in ("40.0 %", "50.0 %", "500 µs", "400 µs"):
        assert figure in text


def test_use_of_the_device_is_called_what_the_page_calls_it(report: PerfReport) -> None:
    (rank,) = report.ranks
    assert rank.efficiency is not None
    (device,) = rank.efficiency.devices
    devices = (replace(device, busy=0.5, sm_efficiency=0.25, occupancy=0.125),)
    told = replace(report, ranks=(replace(rank, efficiency=replace(rank.efficiency, devices=devices)),))
    assert "busy 50.0 % · SM efficiency 25.0 % · occupancy 12.5 %" in printed(told, 120)


def test_the_verdict_comes_first(report: PerfReport) -> None:
    lines = printed(report, 120).splitlines()
    assert lines[0].startswith("Where  A step takes 1.00 ms (mean of 3): 50.0 % is device compute, 40.0 % waits")
    assert any(line.startswith("Next   Measure before you use worker processes") for line in lines[:6])


def test_paths_are_printed_whole_on_a_line(report: PerfReport) -> None:
    assert f"\n{report.sources[0]}\n" in printed(report, 40)


def test_a_pipe_gets_no_escape_sequence(report: PerfReport) -> None:
    assert "\x1b" not in printed(report, 80)


def test_a_pipe_gets_no_blanks_at_the_ends_of_lines(report: PerfReport) -> None:
    assert all(line == line.rstrip() for line in printed(report, 80).splitlines())


def test_an_output_without_unicode_gets_units_all_the_same(report: PerfReport) -> None:
    content = io.BytesIO()
    file = io.TextIOWrapper(content, encoding="ascii")
    report.print(file=file, width=80)
    text = content.getvalue().decode("ascii")
    assert "500 us" in text
    assert "######" in text


@pytest.mark.parametrize("width", [50, 60, 80])
def test_names_of_categories_are_whole_on_narrow_pages(report: PerfReport, width: int) -> None:
    lines = printed(report, width).splitlines()
    for name in ("device compute", "waiting for input", "host operators"):
        assert any(line.startswith(name) for line in lines)


@pytest.mark.parametrize("width", range(50, 90))
def test_no_figure_is_torn_from_its_unit(report: PerfReport, width: int) -> None:
    text = printed(report, width)
    verdict = text[: text.index("\nStep time")]
    assert not re.search(r"\d\n *(%|[nµm]s)", verdict)
    assert UNBREAKABLE not in text
    assert "50.0 % is device compute" in " ".join(verdict.split())


def test_names_that_differ_at_their_end_stay_apart(tmp_path: Path) -> None:
    builder = TraceBuilder().step(1, 0, 1000)
    for number, end in enumerate(("input", "weight")):
        start = 10 + 200 * number
        builder.op(f"aten::cudnn_convolution_backward_with_a_rather_long_name_{end}", start, 100)
        builder.launch(f"k{number}", call_us=start + 1, call_duration_us=2, start_us=start + 5, duration_us=50)
    text = printed(lightning_perf.analyze(builder.write(tmp_path / "t.json")), 70)
    assert "name_input " in text
    assert "name_weight " in text


def test_places_where_the_host_waits_are_named(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for start in builder.steps(2, 1000):
        builder.op("aten::item", start + 100, 300)
        builder.launch("k", call_us=start + 10, call_duration_us=5, start_us=start + 20, duration_us=300)
        builder.runtime("cudaStreamSynchronize", start + 110, 210)
    text = printed(lightning_perf.analyze(builder.write(tmp_path / "t.json")), 80)
    assert "Waits of the host for the device: 210 µs per step" in text
    assert "\naten::item, cudaStreamSynchronize  forward      1  210 µs" in text


@pytest.mark.parametrize("marked", [True, False])
def test_collectives_on_the_host_are_counted_a_step(tmp_path: Path, marked: bool) -> None:
    builder = TraceBuilder()
    for number in range(3):
        builder.op("aten::mm", 1000 * number, 900)
        builder.annotation("gloo:all_reduce", 1000 * number + 10, 40)
        builder.annotation("gloo:all_reduce", 1000 * number + 60, 60)
        if marked:
            builder.step(number, 1000 * number, 1000)
    text = printed(lightning_perf.analyze(builder.write(tmp_path / "t.json")), 100)
    expected = "gloo:all_reduce: 2 calls, 100 µs on the host" if marked else "6 calls, 300 µs on the host"
    assert expected in text


def test_steps_are_named_only_where_the_recording_marks_them(tmp_path: Path) -> None:
    def text(builder: TraceBuilder) -> str:
        builder.kernel("k", 100, 100).kernel("k", 700, 100).memory(10, 8, allocated=8)
        return printed(lightning_perf.analyze(builder.write(tmp_path / "t.json")), 100)

    assert "Long gap: 500 µs in step 3," in text(TraceBuilder().step(3, 0, 1000))
    assert " step " not in text(TraceBuilder().op("aten::mm", 0, 1000))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("volta_sgemm_64x64_nn", "volta_sgemm_64x64_nn"),
        (
            "void at::native::elementwise_kernel<4, at::native::Add<float>, std::array<char*, 3ul> >(int, Add)",
            "elementwise_kernel<4, Add<float> >",
        ),
        ("k<(a::Mode)1>(int, f(*)(int))", "k<(a::Mode)1>"),
        ("void (anonymous namespace)::softmax<float>(float*)", "softmax<float>"),
        ("unbalanced)", "unbalanced)"),
        ("(all)", "(all)"),
        ("Memset (Device)", "Memset (Device)"),
        ("", ""),
    ],
)
def test_kernel_names_keep_what_tells_them_apart(name: str, expected: str) -> None:
    assert kernel_text(name) == expected


def test_sixteen_colours_are_enough(report: PerfReport) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system="standard", width=100, highlight=False, markup=False)
    for part in render(report, top=8):
        console.print(part)
    assert "\x1b[1m" in file.getvalue()
    assert "38;5" not in file.getvalue()
    assert "38;2" not in file.getvalue()


def test_hostile_names_are_inert_on_a_terminal(report: PerfReport) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=400, color_system="standard", legacy_windows=False)
    for part in render(report, top=8):
        console.print(part)
    text = file.getvalue()
    assert r"[bold red]evil[/] \x1b[31m\x07\r\n" in text
    for char in ("\x07", "\r", "\u202e", "\u2066"):
        assert char not in text
    links = re.findall(r"\x1b\]8;[^;]*;([^\x1b]*)\x1b", text)
    assert set(links) == {"", *(rule_page_url(finding.kind) for finding in report.findings)}  # "" ends a link


def test_hostile_names_make_valid_json(report: PerfReport) -> None:
    assert PerfReport.from_json(report.to_json()) == report


def test_plain_keeps_ordinary_text() -> None:
    for text in ("void at::native::kernel<4, float>(Array<char*, 3>)", "größer — 学习 ✓", "[a-z]"):
        assert plain(text).plain == text


def test_shorten_keeps_both_ends() -> None:
    name = "a" * 50 + "z" * 50
    short = shorten(name, 21)
    assert len(short) == 21
    assert short.startswith("aaaa")
    assert short.endswith("zzzz")
    assert shorten("short", 21) == "short"


def test_the_rank_that_the_verdict_speaks_of_stands_among_the_few_that_are_shown(tmp_path: Path) -> None:
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
    text = printed(lightning_perf.analyze(tmp_path), 80)
    assert "on rank 18" in text.splitlines()[0]
    table = text[text.index("\nRanks\n") : text.index("… and 4 more")]
    shown = [int(line.split()[0]) for line in table.splitlines() if line[:1].isdigit()]
    assert shown == [*range(15), 18]


def test_what_does_not_fit_on_a_line_goes_on_below_its_own_text(report: PerfReport) -> None:
    notes = [line for line in printed(replace(report, notes=("word " * 40,)), 60).splitlines() if "word" in line]
    assert len(notes) > 1
    assert notes[0].startswith("Note  word")
    assert all(line.startswith("      word") for line in notes[1:])
    (long, *_) = (replace(finding, title="cause " * 20) for finding in report.findings)
    title = [line for line in printed(replace(report, findings=(long,)), 60).splitlines() if "cause" in line]
    assert len(title) > 1
    assert all(line.startswith("   cause") for line in title[1:])
