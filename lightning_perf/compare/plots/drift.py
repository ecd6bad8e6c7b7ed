"""Residuals by order: whether runs became slower or faster in the order in which they ran."""

from __future__ import annotations

import math

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lightning_perf.compare.plots.style import (
    FAINT,
    INK,
    finish,
    hide_frame,
    looks,
    new_figure,
    number_axis,
    wrapped,
)
from lightning_perf.compare.verdicts.comparison import Comparison
from lightning_perf.units import format_change

__all__ = ["draw_order"]


def draw_order(comparison: Comparison) -> Figure | None:
    """Each run's step time over the mean of its arm, by order of start, with the line of the drift.

    Args:
        comparison: The document.

    Returns:
        The figure; None when no arm has two runs with a step time.
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
    """A band behind the runs of every other block; blocks that ran side by side have several."""
    order = {block: place for place, block in enumerate(dict.fromkeys(blocks))}
    for n, block in enumerate(blocks):
        if order[block] % 2:
            axes.axvspan(n + 0.5, n + 1.5, color="#f3f3f3", linewidth=0, zorder=0)  # type: ignore[attr-defined]
