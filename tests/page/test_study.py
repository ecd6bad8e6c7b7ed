"""A study's comparison: its verdict, its runs, and what an unfair one shows."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from lightning_perf.compare.records.metrics import METRICS
from lightning_perf.compare.verdicts.build import compare_arms
from lightning_perf.compare.verdicts.comparison import Comparison, Prediction
from lightning_perf.compare.verdicts.gates import Settings, parse_gate
from lightning_perf.documents import page_json
from lightning_perf.run_files.run_record import Place
from lightning_perf.statistics.values import Estimate
from lightning_perf.units import format_change, format_detectable
from tests.compare.support import write_arms, write_run

pytest.importorskip("scipy")

ARMS = ("32-true", "16-mixed")
BASE_MS = (100.0, 103.0, 99.0, 101.0, 104.0, 98.0)


@pytest.fixture
def comparison(tmp_path: Path) -> Comparison:
    """Six blocks of two arms, the second a tenth faster; its second run collapsed, the baseline's first is invalid."""
    arms = {
        name: [
            write_run(
                tmp_path / name / f"{name}-{block}",
                step_ms=ms * 0.9**arm * (1 + 0.004 * ((block * (arm + 3)) % 5)),
                started=10.0 * block + arm,
                accuracies=(0.5, 0.05 if (arm, block) == (1, 2) else 0.9 + 0.01 * ((block + arm) % 4)),
                problems=("throttled",) if (arm, block) == (0, 1) else (),
                train__seed=block,
                train__precision=name,
                device__name="NVIDIA H200",
                place=Place("s", name, block, arm, treatment=("precision",)),
            )
            for block, ms in enumerate(BASE_MS, start=1)
        ]
        for arm, name in enumerate(ARMS)
    }
    found = compare_arms(arms, Settings(goal=0.4, gates=(parse_gate("step_time<=0.95"),)))
    measured = Estimate(1.1, 1.05, 1.15, 0.95, 6, "t")
    candidate = replace(found.candidates[0], prediction=Prediction("32-true-1", 1.2, 1.6, measured, False))
    return replace(found, candidates=(candidate,), notes=("A note.",))


def points(opened: Any, number: int) -> list[float]:
    """The x of every point with a mark in a chart, as Plotly was given them."""
    found: list[float] = opened.page.evaluate(
        """(number) => document.querySelectorAll(".chart")[number].data
            .filter((trace) => trace.type === "scatter" && trace.mode.includes("markers"))
            .flatMap((trace) => trace.x)""",
        number,
    )
    return found


def chart_number(opened: Any, title: str) -> int:
    labels = [chart.get_attribute("aria-label") for chart in opened.page.locator(".chart").all()]
    return next(number for number, label in enumerate(labels) if title in label)


def values(comparison: Comparison, metric: str, *, collapsed: bool = False) -> list[float]:
    return sorted(
        value
        for run in comparison.runs
        if run.left_out is None and (metric != "accuracy" or run.collapsed == collapsed)
        if (value := run.values[metric]) is not None
    )


def test_verdict_figures_and_every_run_are_those_of_the_document(comparison: Comparison, open_page: Any) -> None:
    opened = open_page(page_json(comparison), kind="study")
    opened.draw_charts()
    shown = opened.page.inner_text("main")
    (candidate,) = comparison.candidates
    assert candidate.verdict.headline in shown
    assert all(line in shown for line in (*candidate.verdict.details, *comparison.notes))
    by_title = {row.split("\t")[0].strip(): row for row in opened.texts("#table-results tbody tr")}
    for result in candidate.metrics:
        row = by_title[METRICS[result.metric].title]
        if result.estimate.value is None:
            assert result.estimate.reason
            assert result.estimate.reason in row
        if METRICS[result.metric].scale.value == "ratio" and result.estimate.value is not None:
            assert format_change(result.estimate.value) in row
            if result.estimate.low is not None and result.estimate.low != result.estimate.high:
                assert f"{format_change(result.estimate.low)} to {format_change(result.estimate.high)}" in row
            if result.detectable is not None:
                assert row.endswith(format_detectable(result.detectable))
    assert "passed" in opened.texts("#table-gates tbody tr")[0]
    steps = chart_number(opened, "step time of every run")
    assert sorted(points(opened, steps)) == pytest.approx(values(comparison, "step_time"))
    accuracy = points(opened, chart_number(opened, "Accuracy of every run"))
    learned, lost = values(comparison, "accuracy"), values(comparison, "accuracy", collapsed=True)
    assert len(lost) == 1
    assert sorted(accuracy) == pytest.approx([100 * value for value in (*lost, *learned)])
    box = opened.page.evaluate(
        """(number) => document.querySelectorAll(".chart")[number].data.filter((trace) => trace.type === "box")
            .map((trace) => [trace.q1[0], trace.median[0], trace.q3[0], trace.lowerfence[0], trace.upperfence[0]])""",
        steps,
    )
    for arm, drawn in zip(comparison.arms, box, strict=True):
        summary = arm.metrics["step_time"]
        assert drawn == pytest.approx([summary.q1, summary.median, summary.q3, summary.min, summary.max])
    ratios = points(opened, chart_number(opened, "ratio to the baseline"))
    expected = [r.estimate.value for r in candidate.metrics if METRICS[r.metric].scale.value == "ratio"]
    assert sorted(ratios) == pytest.approx(sorted(value for value in expected if value is not None))
    assert points(opened, chart_number(opened, "predicted speed-up")) == [1.1]


def test_few_noisy_runs_have_factors_and_a_legible_axis(comparison: Comparison, open_page: Any) -> None:
    (candidate,) = comparison.candidates
    wide = replace(
        candidate.metrics[0],
        estimate=Estimate(0.0563, 1e-17, 2183.0, 0.95, 2, "paired t"),
        robust=Estimate(17.865, None, None, 0.95, 2, "Walsh averages"),
        detectable=1e22,
    )
    candidate = replace(candidate, metrics=(wide, *candidate.metrics[1:]))
    noisy = replace(comparison, candidates=(candidate,))
    opened = open_page(page_json(noisy), kind="study")
    opened.draw_charts()
    row = opened.texts("#table-results tbody tr")[0]
    for text in ("×0.056", "under ×10⁻⁶ to ×2183", "×17.9", "over ×10⁶"):
        assert text in row
    low, high = opened.page.evaluate(
        "(number) => document.querySelectorAll('.chart')[number].layout.xaxis.range",
        chart_number(opened, "ratio to the baseline"),
    )
    assert -4 < low < -3 < 3 < high < 4
    arrows = opened.page.evaluate(
        """(number) => document.querySelectorAll(".chart")[number].data
            .filter((trace) => /left|right/.test(trace.marker?.symbol))
            .map((trace) => [trace.marker.symbol, trace.x[0], trace.y[0]])""",
        chart_number(opened, "ratio to the baseline"),
    )
    assert arrows == [["triangle-left", 1e-3, 0], ["triangle-right", 1e3, 0]]


def test_runs_stand_with_the_reasons_why_they_are_left_out(comparison: Comparison, open_page: Any) -> None:
    opened = open_page(page_json(comparison), kind="study", view="runs")
    opened.draw_charts()
    rows = {row.split("\t")[0].strip(): row for row in opened.texts("#table-runs tbody tr")}
    assert set(rows) == {f"{name}-{block}" for name in ARMS for block in range(1, 7)}
    assert "no: invalid: throttled" in rows["32-true-1"]
    assert "collapsed" in rows["16-mixed-2"]
    assert "1 invalid: throttled" in opened.texts("#table-arms tbody tr")[0]
    order = opened.page.evaluate(
        """(number) => document.querySelectorAll(".chart")[number].data
            .filter((trace) => trace.mode === "markers").flatMap((trace) => trace.x.map((x, i) => [x, trace.y[i]]))""",
        chart_number(opened, "in order of start"),
    )
    assert [y for _, y in sorted(order)] == pytest.approx([100 * (r or 0.0) for r in comparison.drift.residuals])
    lines = opened.page.evaluate(
        "(number) => document.querySelectorAll('.chart')[number].data.map((trace) => trace.x)",
        chart_number(opened, "within each block"),
    )
    by_block: dict[int | None, list[float]] = {}
    for run in comparison.runs:
        value = run.values["step_time"]
        if run.left_out is None and value is not None:
            by_block.setdefault(run.block, []).append(value)
    assert sorted(map(sorted, lines)) == [pytest.approx(sorted(row)) for row in sorted(map(sorted, by_block.values()))]


def test_a_single_run_an_arm_is_shown_without_intervals(tmp_path: Path, open_page: Any) -> None:
    arms = {name: [write_run(tmp_path / name, step_ms=ms, accuracies=())] for name, ms in (("a", 100.0), ("b", 50.0))}
    opened = open_page(page_json(compare_arms(arms, Settings())), kind="study")
    opened.draw_charts()
    assert "−50.0 %" in opened.texts("#table-results tbody tr")[0]
    opened.show("runs")
    assert opened.page.locator("#table-runs tbody tr").count() == 2


def with_loss(run: Any, loss: float | None) -> Any:
    epochs = tuple(msgspec.structs.replace(epoch, metrics={"val_loss": loss}) for epoch in run.epochs)
    return replace(run, epochs=epochs, other_cpu_share=0.4)


def test_a_diverged_candidate_is_shown_with_its_loss_and_the_busy_machine(tmp_path: Path, open_page: Any) -> None:
    arms = write_arms(tmp_path)
    arms["fp32"] = [with_loss(run, 0.3 + 0.001 * n) for n, run in enumerate(arms["fp32"])]
    arms["amp"] = [with_loss(run, 9.0 if n else None) for n, run in enumerate(arms["amp"])]
    comparison = compare_arms(arms)
    opened = open_page(page_json(comparison), kind="study")
    opened.draw_charts()
    shown = opened.page.inner_text("main")
    (candidate,) = comparison.candidates
    assert opened.texts(".verdict .outcome") == ["diverged"]
    assert candidate.verdict.headline in shown
    assert "faster" not in candidate.verdict.headline  # though its steps take less time
    assert "Times alone: step time −" in candidate.verdict.headline
    assert all(line in shown for line in candidate.verdict.details)
    assert "The machine was busy: other processes took 40 % during fp32" in shown
