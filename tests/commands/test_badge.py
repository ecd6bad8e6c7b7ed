"""``lightning-perf badge``: the figure, its color, and the errors."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from lightning_perf.cli import main
from lightning_perf.commands.badge import AMBER, BLUE, GREEN, GREY, LABEL, RED, Badge, draw_badge
from lightning_perf.compare.verdicts.build import compare_arms
from lightning_perf.compare.verdicts.gates import Settings, parse_gate
from lightning_perf.report.build import build_report
from lightning_perf.run_files.steps import StepSample
from tests.compare.support import write_arms

COLORS = (GREEN, RED, AMBER, BLUE, GREY, LABEL)


def texts(svg: str) -> list[str]:
    """The texts of a badge, in order."""
    return [text.text or "" for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def color(svg: str) -> str:
    """The color of its right part."""
    return [path.get("fill", "") for path in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}path")][-1]


def luminance(value: str) -> float:
    """The relative luminance of a color, by WCAG 2."""
    parts = [int(value[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("value", COLORS)
def test_white_text_is_legible_on_every_color(value: str) -> None:
    assert 1.05 / (luminance(value) + 0.05) >= 4.5


def test_text_of_others_is_escaped() -> None:
    badge = draw_badge(Badge('<script>"&', "ok", BLUE))
    assert texts(badge) == ['<script>"&', "ok"]
    assert ET.fromstring(badge).get("aria-label") == '<script>"&: ok'


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run of 100 steps of 12.5 ms, a fifth of which waits for 32 samples."""
    samples = [StepSample(n, 12_500_000, 2_500_000, None, 32, False) for n in range(105)]
    report = build_report((), samples=samples, notes=(), precision=None)
    (tmp_path / "report.json").write_text(report.to_json())
    return tmp_path


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), ["step time", "12.5 ms"]),
        (("--metric=step_time_p90",), ["p90 step time", "12.5 ms"]),
        (("--metric=throughput", "--label=speed"), ["speed", "2,560 samples/s"]),
        (("--metric=data_wait",), ["wait for data", "20.0 %"]),
        (("--metric=findings",), ["findings", "0"]),
    ],
)
def test_a_report_shows_its_figure(
    run_folder: Path, options: tuple[str, ...], expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["badge", str(run_folder), *options]) == 0
    badge = capsys.readouterr().out
    assert texts(badge) == expected
    assert color(badge) == BLUE


def test_a_badge_is_written_to_a_file(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = run_folder / "new" / "badge.svg"
    assert main(["badge", str(run_folder), str(file)]) == 0
    assert capsys.readouterr().out == ""
    assert texts(file.read_text()) == ["step time", "12.5 ms"]


@pytest.mark.parametrize(
    ("gates", "expected"),
    [
        (("step_time<=1.05",), GREEN),
        (("step_time<=0.9",), RED),
        (("step_time<=0.94", "step_time<=1.05"), AMBER),
        (("accuracy>=0.5",), GREEN),  # no gate on this metric, and the interval is below 1
        ((), GREEN),
    ],
)
def test_a_comparison_has_the_color_of_its_gate(
    tmp_path: Path, gates: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(treatment=("precision",), gates=tuple(map(parse_gate, gates)))
    comparison = compare_arms(write_arms(tmp_path / "runs", train__precision="16-mixed"), settings)
    candidate = comparison.candidate("amp")
    assert candidate.metric("step_time").estimate.high < 1  # type: ignore[operator]
    file = tmp_path / "comparison.json"
    file.write_text(comparison.to_json())
    assert main(["badge", str(file)]) == 0
    badge = capsys.readouterr().out
    assert texts(badge)[0] == "step time vs fp32"
    assert re.fullmatch(r"−6\.\d\d? %", texts(badge)[1])
    assert color(badge) == expected


@pytest.mark.parametrize(("low", "high", "expected"), [(0.9, 1.1, GREY), (1.01, 1.1, RED), (0.8, 0.9, GREEN)])
def test_without_a_gate_the_interval_gives_the_color(
    tmp_path: Path, low: float, high: float, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    comparison = compare_arms(write_arms(tmp_path / "runs"), Settings())
    candidate = comparison.candidate("amp")
    metrics = tuple(
        replace(result, estimate=replace(result.estimate, low=low, high=high)) for result in candidate.metrics
    )
    changed = replace(comparison, candidates=(replace(candidate, metrics=metrics),))
    file = tmp_path / "comparison.json"
    file.write_text(changed.to_json())
    assert main(["badge", str(file)]) == 0
    assert color(capsys.readouterr().out) == expected


def test_a_refused_comparison_has_no_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "comparison.json"
    file.write_text('{"state": "unfair", "schema_version": 1}')
    assert main(["badge", str(file)]) == 0
    badge = capsys.readouterr().out
    assert (texts(badge), color(badge)) == (["step time", "no result (unfair)"], GREY)


@pytest.mark.parametrize(
    ("content", "options", "problem"),
    [
        (None, (), "cannot be read"),
        ("hello", (), "is not JSON of a document"),
        ("{}", (), "is not a lightning-perf report"),
        ("report", ("--metric=speed",), "has no figure 'speed'. Choose one with --metric: step_time, step_time_p90"),
    ],
)
def test_errors_name_the_file_and_the_figures(
    content: str | None, options: tuple[str, ...], problem: str, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run_folder / ("report.json" if content == "report" else "other.json")
    if content not in (None, "report"):
        file.write_text(str(content))
    assert main(["badge", str(file), *options]) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert str(file) in error
