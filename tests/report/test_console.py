from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

import lightning_perf
from lightning_perf.report.console import print_report
from lightning_perf.report.console.render import render
from lightning_perf.report.console.safe import plain, shorten
from lightning_perf.report.document import PerfReport, from_json, to_json
from tests.support.trace_builder import TraceBuilder

HOSTILE = "[bold red]evil[/] \x1b[31m\x07\r\n\u202eoliam \u2066x [link=http://example.com]y[/link] :smile: \ud800"


@pytest.fixture
def report(tmp_path: Path) -> PerfReport:
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", computeMajor=8)
    for number in range(3):
        start = number * 1000
        builder.step(number, start, 1000)
        builder.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", start, 400)
        builder.op(HOSTILE, start + 410, 80, types=["float"], dims=[[8, 8]])
        builder.launch(HOSTILE, call_us=start + 420, call_duration_us=10, start_us=start + 440, duration_us=500)
    return lightning_perf.analyze(builder.write(tmp_path / "rank0.pt.trace.json"))


def printed(report: PerfReport, width: int) -> str:
    file = io.StringIO()
    print_report(report, file=file, width=width)
    return file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_cut_off_or_wider_than_the_page(report: PerfReport, width: int) -> None:
    text = printed(report, width)
    paths = text[text.index("\nTraces\n") :]
    for line in text.removesuffix(paths).splitlines():
        assert len(line) <= width
    for figure in ("40.0 %", "50.0 %", "500 µs", "400 µs"):
        assert figure in text


def test_the_verdict_comes_first(report: PerfReport) -> None:
    lines = printed(report, 120).splitlines()
    assert lines[0].startswith("Where  A step takes 1.00 ms (mean of 3): 50.0 % is device compute, 40.0 % waits")
    assert any(line.startswith("Next   Load in worker processes") for line in lines[:6])


def test_paths_are_printed_whole_on_a_line(report: PerfReport) -> None:
    assert f"\n{report.sources[0]}\n" in printed(report, 40)


def test_a_pipe_gets_no_escape_sequence(report: PerfReport) -> None:
    assert "\x1b" not in printed(report, 80)


def test_sixteen_colours_are_enough(report: PerfReport) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system="standard", width=100, highlight=False, markup=False)
    for part in render(report):
        console.print(part)
    assert "\x1b[1m" in file.getvalue()
    assert "38;5" not in file.getvalue()
    assert "38;2" not in file.getvalue()


def test_hostile_names_are_inert_on_a_terminal(report: PerfReport) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=400, color_system="standard", legacy_windows=False)
    for part in render(report):
        console.print(part)
    text = file.getvalue()
    assert r"[bold red]evil[/] \x1b[31m\x07\r\n" in text
    for char in ("\x07", "\r", "\u202e", "\u2066"):
        assert char not in text
    assert "\x1b]8" not in text  # no link


def test_hostile_names_make_valid_json(report: PerfReport) -> None:
    assert from_json(to_json(report)) == report


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
