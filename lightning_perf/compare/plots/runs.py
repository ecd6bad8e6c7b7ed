"""Draw every run as a point: times and accuracy by arm, pairs within blocks, and step times in order of the runs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lightning_perf.compare.plots.style import (
    FAINT,
    INK,
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
from lightning_perf.units import axis_unit, format_change

if TYPE_CHECKING:
    from lightning_perf.compare.verdicts.comparison import Arm, Comparison, Run

FEWEST_FOR_BOX = 3
"""An arm with fewer runs has only points."""

TIMES = ("step_time", "train_time")

MOST_LABELLED = 12
"""With more blocks the labels of the blocks would overlap."""

CLOSE = 0.02
"""Labels closer than this share of the axis would touch."""


def draw_times(comparison: Comparison) -> Figure | None:
    """Draw the step time and the training time of every run, by arm."""
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
    """Draw the accuracy of every run by arm, collapsed runs in a panel of their own."""
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
        detail += f"{' ' if detail else ''}A run below {scale * comparison.collapse_limit:.1f} % counts as collapsed."
    return finish(figure, comparison, "Accuracy of every run", detail)


def _draw_arm(
    axes: Any, row: float, arm: Arm, metric: Metric, points: list[tuple[Run, float]], look: ArmLook, scale: float
) -> None:
    """Draw one row: a box from the arm's summary, and a point for every run, from top to bottom in order of start."""
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
        axes.text(0.02, row, "no run has a value", transform=axes.get_yaxis_transform(), va="center", color=FAINT)


def _box_text(comparison: Comparison, metric: str) -> str:
    boxes = any(arm.metrics[metric].n >= FEWEST_FOR_BOX for arm in comparison.arms)
    return "Box: quartiles and median. Whiskers: minimum and maximum." if boxes else ""


def _rows(axes: Any, comparison: Comparison) -> dict[str, float]:
    """Return the vertical position of each arm, the baseline at the top."""
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


def draw_pairs(comparison: Comparison) -> Figure | None:
    """Draw one line per block through its step times. Parallel lines show a difference, crossing lines noise.

    Returns:
        The figure; None if the runs are not in blocks, or have no step times.
    """
    metric = METRICS["step_time"]
    blocks: dict[int, dict[str, float]] = defaultdict(dict)
    for run in comparison.runs:
        value = run.values[metric.name]
        if run.left_out is None and run.block is not None and value is not None:
            blocks[run.block][run.arm] = value
    if not comparison.blocked or not blocks:
        return None
    names = [arm.name for arm in comparison.arms]
    figure = new_figure(0.7 + max(0.85, row_height(names)) * len(names))
    axes = figure.subplots()
    scale, unit = axis_unit(metric.unit, max(value for row in blocks.values() for value in row.values()))
    of_arm = looks(comparison)
    shades = mpl.colormaps["cividis"]
    for place, (_, row) in enumerate(sorted(blocks.items())):
        drawn = [name for name in names if name in row]
        x, y = [scale * row[name] for name in drawn], [-names.index(name) for name in drawn]
        axes.plot(x, y, color=shades(0.85 * place / max(1, len(blocks) - 1)), linewidth=1.4, alpha=0.85, zorder=2)
        for name, left, height in zip(drawn, x, y, strict=True):
            axes.plot(left, height, zorder=3, **of_arm[name].points())
    axes.set_yticks([-n for n in range(len(names))], [wrapped(name) for name in names])
    axes.set_ylim(-len(names) + 0.65, 0.55)
    hide_frame(axes)
    number_axis(axes.xaxis)
    axes.margins(x=0.06)
    if len(blocks) <= MOST_LABELLED:
        _number_blocks(axes, {block: scale * row[names[0]] for block, row in blocks.items() if names[0] in row})
    axes.set_xlabel(f"{metric.title} ({unit}), lower is better")
    detail = "Each line joins the runs of one block, from dark to light in order of the blocks."
    if len(blocks) <= MOST_LABELLED:
        detail += " The labels are block numbers."
    return finish(figure, comparison, "Step time within each block", detail)


def _number_blocks(axes: Any, places: Mapping[int, float]) -> None:
    """Write the block numbers above the points of the baseline, at different heights where points are close."""
    left, right = axes.get_xlim()
    level, last = 0, float("-inf")
    for block, x in sorted(places.items(), key=lambda item: item[1]):
        level = (level + 1) % 3 if x - last < CLOSE * (right - left) else 0
        last = x
        place = (0, 6 + 9 * level)
        axes.annotate(str(block), (x, 0), place, textcoords="offset points", ha="center", fontsize=8)


def draw_order(comparison: Comparison) -> Figure | None:
    """Draw each run's step time relative to the mean of its arm, in order of start, with the line of the drift.

    Returns:
        The figure; None if no arm has two runs with a step time.
    """
    used = [run for run in comparison.runs if run.left_out is None]
    residuals = comparison.drift.residuals
    if all(arm.metrics["step_time"].n < 2 for arm in comparison.arms):
        return None
    long_names = any(len(arm.name) > 24 for arm in comparison.arms)
    figure = new_figure(3.0 + (0.3 * len(comparison.arms) if long_names else 0))
    axes = figure.subplots()
    _shade_blocks(axes, [run.block for run in used] if comparison.blocked else [])
    axes.axhline(0, color=INK, linewidth=1, zorder=1)
    for name, look in looks(comparison).items():
        rows = [n for n, run in enumerate(used) if run.arm == name and residuals[n] is not None]
        y = [100 * (residuals[n] or 0.0) for n in rows]
        axes.plot([n + 1 for n in rows], y, zorder=3, label=wrapped(name, 40), **look.points(markersize=7))
    change = comparison.drift.change
    if change.value is not None and change.value > -1 and len(used) > 1:
        x = [1 + (len(used) - 1) * step / 40 for step in range(41)]
        slope, middle = math.log1p(change.value) / (len(used) - 1), (len(used) + 1) / 2
        line = [100 * math.expm1(slope * (place - middle)) for place in x]
        axes.plot(x, line, color=FAINT, linewidth=1.6, linestyle=(0, (5, 3)), zorder=2, label="drift")
    hide_frame(axes, grid="y")
    number_axis(axes.yaxis, 5)
    axes.xaxis.set_major_locator(MaxNLocator(min(12, max(1, len(used))), integer=True))
    axes.set_xlim(0.4, len(used) + 0.6)
    axes.margins(y=0.15)
    axes.set_xlabel("runs in order of start")
    axes.set_ylabel("step time against\nthe mean of its arm (%)")
    figure.legend(loc="outside lower left", ncols=1 if long_names else 6, frameon=False)
    return finish(figure, comparison, "Step time in the order of runs", _drift_text(comparison))


def _drift_text(comparison: Comparison) -> str:
    change = comparison.drift.change
    if change.value is None:
        return f"Drift: {change.reason}."
    text = f"Drift from the first run to the last: {format_change(1 + change.value)}"
    if change.low is None or change.high is None:
        return f"{text} ({change.reason})."
    p = f", p = {comparison.drift.p:.2g}" if comparison.drift.p is not None else ""
    ends = f"{format_change(1 + change.low)} to {format_change(1 + change.high)}"
    text += f" ({100 * change.confidence:.3g} % interval {ends}{p})."
    return text + (" Shaded: every other block." if comparison.blocked else "")


def _shade_blocks(axes: object, blocks: list[int | None]) -> None:
    """Shade the runs of every other block. Blocks that ran side by side have several bands."""
    order = {block: place for place, block in enumerate(dict.fromkeys(blocks))}
    for n, block in enumerate(blocks):
        if order[block] % 2:
            axes.axvspan(n + 0.5, n + 1.5, color="#f3f3f3", linewidth=0, zorder=0)  # type: ignore[attr-defined]
