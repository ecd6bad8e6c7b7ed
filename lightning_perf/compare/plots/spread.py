"""Box and whisker with every run: the step time and the training time, and the accuracy."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from lightning_perf.compare.plots.style import (
    FAINT,
    ArmLook,
    finish,
    hide_frame,
    looks,
    new_figure,
    number_axis,
    row_height,
    wrapped,
)
from lightning_perf.compare.records.metrics import METRICS, Metric
from lightning_perf.compare.verdicts.comparison import Arm, Comparison, Run
from lightning_perf.units import axis_unit

__all__ = ["draw_accuracy", "draw_times"]

FEWEST_FOR_BOX = 3
"""With fewer runs the points are all there is to see."""

TIMES = ("step_time", "train_time")


def draw_times(comparison: Comparison) -> Figure | None:
    """Step time and training time of every run, by arm.

    Args:
        comparison: The document.

    Returns:
        The figure; None when no run has a time.
    """
    names = [name for name in TIMES if any(arm.metrics[name].n for arm in comparison.arms)]
    if not names:
        return None
    height = row_height([arm.name for arm in comparison.arms]) * len(comparison.arms)
    figure = new_figure(len(names) * (0.7 + height))
    panels = figure.subplots(len(names), 1, squeeze=False)[:, 0]
    for axes, name in zip(panels, names, strict=True):
        metric = METRICS[name]
        scale, unit = _scale(comparison, metric)
        rows = _rows(axes, comparison)
        for arm in comparison.arms:
            points = [(run, value) for run in _used(comparison, arm) if (value := run.values[name]) is not None]
            _draw_arm(axes, rows[arm.name], arm, metric, points, looks(comparison)[arm.name], scale)
        axes.set_xlabel(f"{metric.title} of a run ({unit}), lower is better")
    return finish(figure, comparison, "Times of every run", _box_text(comparison, names[0]))


def draw_accuracy(comparison: Comparison) -> Figure | None:
    """Accuracy of every run by arm, runs that collapsed apart from those that learned.

    Args:
        comparison: The document.

    Returns:
        The figure; None when the runs have no accuracy.
    """
    used = [run for run in comparison.runs if run.left_out is None]
    if comparison.accuracy_metric is None or not used:
        return None
    collapsed = any(run.collapsed and run.values["accuracy"] is not None for run in used)
    learned = any(not run.collapsed and run.values["accuracy"] is not None for run in used)
    if not collapsed and not learned:
        return None
    figure = new_figure(0.9 + row_height([a.name for a in comparison.arms]) * len(comparison.arms))
    ratios = ([1.0] if collapsed else []) + ([3.0] if learned else [])
    panels = figure.subplots(1, len(ratios), squeeze=False, sharey=True, width_ratios=ratios)[0]
    scale, metric = 100, METRICS["accuracy"]
    rows: dict[str, float] = {}
    for number, axes in enumerate(panels):
        lost = collapsed and number == 0
        rows = _rows(axes, comparison)
        for arm in comparison.arms:
            points = [
                (run, value)
                for run in _used(comparison, arm)
                if run.collapsed == lost and (value := run.values["accuracy"]) is not None
            ]
            look = looks(comparison)[arm.name]
            if lost:
                y = [rows[arm.name] + _offset(n, len(points)) for n in range(len(points))]
                crosses = look.points(marker="X", markersize=8)
                axes.plot([scale * value for _, value in points], y, **crosses)
            else:
                _draw_arm(axes, rows[arm.name], arm, metric, points, look, scale)
        if lost:
            limit = comparison.collapse_limit
            axes.set_title("collapsed", loc="left", fontsize=9.5, color="#a00000")
            axes.set_facecolor("#faf0ee")
            low = min(run.values["accuracy"] or 0.0 for run in used if run.collapsed)
            high = limit if limit is not None else 1.0
            axes.set_xlim(scale * max(0.0, low - 0.25 * (high - low)), scale * high)
            number_axis(axes.xaxis, 3)
            axes.set_xlabel("%")
    last = panels[-1]
    if learned:
        if collapsed:
            last.set_title("learned", loc="left", fontsize=9.5)
        last.set_xlabel(f"{comparison.accuracy_metric} after the last epoch (%), higher is better")
    else:
        last.set_xlabel(f"{comparison.accuracy_metric} (%)")
    panels[0].set_yticks(list(rows.values()), [_accuracy_label(comparison, arm) for arm in comparison.arms])
    detail = _box_text(comparison, "accuracy")
    if comparison.collapse_limit is not None and comparison.collapse_limit > 0:
        detail += f"{' ' if detail else ''}Below {scale * comparison.collapse_limit:.1f} % a run counts as collapsed."
    return finish(figure, comparison, "Accuracy of every run", detail)


def _draw_arm(
    axes: Any, row: float, arm: Arm, metric: Metric, points: list[tuple[Run, float]], look: ArmLook, scale: float
) -> None:
    """One row: the box from the arm's summary, and a point for every run, from top to bottom in order of start."""
    summary = arm.metrics[metric.name]
    if summary.n >= FEWEST_FOR_BOX:
        quantities = {"q1": summary.q1, "med": summary.median, "q3": summary.q3, "whislo": summary.min}
        box = {name: scale * (value or 0.0) for name, value in quantities.items()}
        box["whishi"] = scale * (summary.max or 0.0)
        line = {"color": look.color, "linewidth": 1.2}
        axes.bxp(
            [box],
            positions=[row],
            widths=0.52,
            orientation="horizontal",
            showfliers=False,
            patch_artist=True,
            manage_ticks=False,
            boxprops={"facecolor": look.color + "22", "edgecolor": look.color, "linewidth": 1.2},
            medianprops={"color": look.color, "linewidth": 2.6},
            whiskerprops=line,
            capprops=line,
        )
    y = [row + _offset(number, len(points)) for number in range(len(points))]
    axes.plot([scale * value for _, value in points], y, zorder=4, **look.points())
    if not points:
        axes.text(0.02, row, "no run has a number", transform=axes.get_yaxis_transform(), va="center", color=FAINT)


def _box_text(comparison: Comparison, metric: str) -> str:
    boxes = any(arm.metrics[metric].n >= FEWEST_FOR_BOX for arm in comparison.arms)
    return "Box: quartiles and median. Whiskers: least and most." if boxes else ""


def _rows(axes: Any, comparison: Comparison) -> dict[str, float]:
    """The height of each arm, the baseline at the top."""
    rows = {arm.name: float(-number) for number, arm in enumerate(comparison.arms)}
    axes.set_yticks(list(rows.values()), [wrapped(arm.name) for arm in comparison.arms])
    axes.set_ylim(-len(rows) + 0.45, 0.55)
    hide_frame(axes)
    number_axis(axes.xaxis)
    axes.margins(x=0.06)
    return rows


def _offset(number: int, count: int) -> float:
    return 0.0 if count < 2 else 0.34 * (0.5 - number / (count - 1))


def _accuracy_label(comparison: Comparison, arm: Arm) -> str:
    runs = _used(comparison, arm)
    lost = sum(run.collapsed for run in runs)
    nowhere = sum(run.values["accuracy"] is None for run in runs)
    text = wrapped(arm.name)
    if lost:
        text += f"\n{lost} of {arm.used} collapsed"
    return text + (f", {nowhere} to nan" if nowhere else "")


def _used(comparison: Comparison, arm: Arm) -> list[Run]:
    return [run for run in comparison.runs if run.arm == arm.name and run.left_out is None]


def _scale(comparison: Comparison, metric: Metric) -> tuple[float, str]:
    return axis_unit(metric.unit, max(arm.metrics[metric.name].max or 0.0 for arm in comparison.arms))
