"""Paired lines: the runs of each block joined across the arms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from lightning_perf.compare.plots.style import (
    finish,
    hide_frame,
    looks,
    new_figure,
    number_axis,
    row_height,
    wrapped,
)
from lightning_perf.compare.records.metrics import METRICS
from lightning_perf.compare.verdicts.comparison import Comparison
from lightning_perf.units import axis_unit

__all__ = ["draw_pairs"]

MOST_LABELLED = 12
"""With more blocks their numbers would lie on each other."""

CLOSE = 0.02
"""Share of the axis within which two numbers would touch."""


def draw_pairs(comparison: Comparison) -> Figure | None:
    """A line a block through the step times of its runs: lines that lean alike are a difference, crossing ones noise.

    Args:
        comparison: The document.

    Returns:
        The figure; None when the runs are not in blocks, or have no step times.
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
    detail = "A line joins the runs of one block, dark to light in order of blocks."
    if len(blocks) <= MOST_LABELLED:
        detail += " The figures are the blocks' numbers."
    return finish(figure, comparison, "Step time within each block", detail)


def _number_blocks(axes: Any, places: Mapping[int, float]) -> None:
    """The blocks' numbers above the points of the baseline, in steps where points lie close together."""
    left, right = axes.get_xlim()
    level, last = 0, float("-inf")
    for block, x in sorted(places.items(), key=lambda item: item[1]):
        level = (level + 1) % 3 if x - last < CLOSE * (right - left) else 0
        last = x
        place = (0, 6 + 9 * level)
        axes.annotate(str(block), (x, 0), place, textcoords="offset points", ha="center", fontsize=8)
