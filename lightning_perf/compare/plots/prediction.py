"""Prediction against measurement: the gain of mixed precision that a recording promised, and the one that came."""

from __future__ import annotations

from matplotlib.figure import Figure

from lightning_perf.compare.plots.style import (
    FAINT,
    INK,
    finish,
    hide_frame,
    looks,
    new_figure,
    number_axis,
    row_height,
    short_name,
    wrapped,
)
from lightning_perf.compare.verdicts.comparison import Comparison

__all__ = ["draw_prediction"]


def draw_prediction(comparison: Comparison) -> Figure | None:
    """For each candidate in mixed precision the predicted speed-up as a bar, and the measured one with its interval.

    Args:
        comparison: The document.

    Returns:
        The figure; None when nothing was predicted.
    """
    rows = [(c.arm, c.prediction) for c in comparison.candidates if c.prediction is not None]
    if not rows:
        return None
    figure = new_figure(1.0 + row_height([arm for arm, _ in rows]) * len(rows))
    axes = figure.subplots()
    of_arm = looks(comparison)
    for number, (arm, prediction) in enumerate(rows):
        look, measured = of_arm[arm], prediction.measured
        width = prediction.high - prediction.low
        label = "predicted from the profiled run of the baseline" if not number else None
        axes.barh([-number], [width], 0.5, prediction.low, color="#dcdcdc", edgecolor=FAINT, label=label)
        if measured.low is not None and measured.high is not None:
            axes.plot([measured.low, measured.high], [-number] * 2, color=look.color, linewidth=2.4, zorder=3)
        if measured.value is not None:
            label = "measured, with its interval" if not number else None
            axes.plot([measured.value], [-number], zorder=4, label=label, **look.points(markersize=8))
        outcome = {True: "within the prediction", False: "outside the prediction", None: "not measured"}[
            prediction.held
        ]
        figures = f"{measured.value:.3g}×, {outcome}" if measured.value is not None else outcome
        axes.text(1.01, -number, figures, transform=axes.get_yaxis_transform(), va="center", fontsize=8.5)
    axes.axvline(1, color=INK, linewidth=1, zorder=1)
    axes.set_yticks([-n for n in range(len(rows))], [wrapped(arm) for arm, _ in rows])
    axes.set_ylim(-len(rows) + 0.4, 0.6)
    hide_frame(axes)
    number_axis(axes.xaxis)
    axes.margins(x=0.08)
    axes.set_xlabel(f"speed-up of a step against {short_name(comparison.baseline)}")
    figure.legend(loc="outside lower left", ncols=2, frameon=False)
    return finish(figure, comparison, "Mixed precision: prediction against measurement")
