"""Draw intervals: a forest plot of all metrics against the baseline, and predicted against measured gains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

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
    short_name,
    wrapped,
)
from lightning_perf.compare.records.metrics import METRICS, Scale
from lightning_perf.units import format_change

if TYPE_CHECKING:
    from lightning_perf.compare.verdicts.comparison import Comparison, MetricResult

ZONE = "#d8e8d8"
TICK_STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0)
MOST_TICKS = 8
WIDE = 8.0
"""From this ratio of its ends on, a logarithmic axis needs logarithmic ticks: even steps would crowd one end."""
FARTHEST = 1000.0
"""Ends of intervals beyond this factor are drawn as arrows at the edge. The labels give their values."""

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

_Row: TypeAlias = "tuple[str, MetricResult, ArmLook]"


def draw_ratios(comparison: Comparison) -> Figure | None:
    """Draw the ratio of candidate to baseline in every metric, with its interval and the zone of equivalence."""
    of_arm = looks(comparison)
    rows: list[_Row] = []
    for name in METRICS:
        for candidate in comparison.candidates:
            found = next((r for r in candidate.metrics if r.metric == name and r.estimate.value is not None), None)
            if found is not None:
                rows.append((candidate.arm, found, of_arm[candidate.arm]))
    ratios = [row for row in rows if METRICS[row[1].metric].scale is Scale.RATIO]
    differences = [row for row in rows if METRICS[row[1].metric].scale is Scale.DIFFERENCE]
    panels = [part for part in (ratios, differences) if part]
    if not panels:
        return None
    lines = 1.3 * sum(wrapped(c.arm, 40).count("\n") + 1 for c in comparison.candidates)
    legend = 0.16 * (lines if _legend_columns(comparison) == 1 else 1.3)
    figure = new_figure(legend + 0.3 * len(rows) + 0.75 * len(panels))
    heights = [len(part) + 1.0 for part in panels]
    of_panel = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, part in zip(of_panel, panels, strict=True):
        if part is ratios:
            _draw_ratio_axes(axes, part, comparison)
        else:
            _draw_difference_axes(axes, part, comparison)
        _label_rows(axes, part)
    _legend(figure, comparison)
    base = short_name(comparison.baseline)
    coverage = f"{100 * comparison.confidence:.3g} %"
    detail = f"{coverage} intervals" + (", all candidates together." if len(comparison.candidates) > 1 else ".")
    return finish(figure, comparison, f"Change against {base}", detail)


def _draw_ratio_axes(axes: Any, rows: Sequence[_Row], comparison: Comparison) -> None:
    zone = 1 + comparison.equivalence
    axes.axvspan(1 / zone, zone, color=ZONE, linewidth=0, zorder=0)
    axes.axvline(1, color=INK, linewidth=1, zorder=1)
    axes.set_xscale("log")
    ends = [1 / zone, zone]
    for number, (_, result, look) in enumerate(rows):
        _draw_interval(axes, -number, result, look, 1.0)
        estimate = result.estimate
        ends += [value for value in (estimate.value,) if value is not None and value > 0]
        ends += [min(max(end, 1 / FARTHEST), FARTHEST) for end in (estimate.low, estimate.high) if end is not None]
    low, high = min(ends), max(ends)
    room = (high / low) ** 0.06
    axes.set_xlim(low / room, high * room)
    for number, (_, result, look) in enumerate(rows):
        _draw_arrows(axes, -number, result, look, low, high)
    axes.xaxis.set_major_locator(FixedLocator(_ticks(low / room, high * room)))
    axes.xaxis.set_minor_locator(FixedLocator([]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick_text(value)))
    axes.set_xlabel(f"ratio to the baseline; shaded: times within ±{100 * comparison.equivalence:.3g} % are equivalent")


def _ticks(low: float, high: float) -> list[float]:
    """Return round ratios from low to high, including 1 if it is between them."""
    if high / low > WIDE:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for marks in ((1, 2, 5), (1, 3), (1,)):
            ticks = [tick for d in decades for m in marks if low <= (tick := m * 10.0**d) <= high]
            if len(ticks) <= MOST_TICKS:
                return ticks
        every = math.ceil(len(decades) / MOST_TICKS)
        return [10.0**d for d in decades if d % every == 0 and low <= 10.0**d <= high]
    for step in TICK_STEPS:
        numbers = range(math.ceil(low / step), math.floor(high / step) + 1)
        if len(numbers) <= MOST_TICKS:
            return [round(number * step, 3) for number in numbers]
    return [1.0]


def _tick_text(value: float) -> str:
    if 0.001 <= value <= 1000:
        return f"{value:.3f}".rstrip("0").rstrip(".")
    return "10" + str(round(math.log10(value))).translate(_SUPERSCRIPT)


def _draw_arrows(axes: Any, height: float, result: MetricResult, look: ArmLook, low: float, high: float) -> None:
    """Draw arrows where an interval extends beyond the axis."""
    ends = result.estimate.low, result.estimate.high
    if ends[0] is not None and ends[0] < low:
        axes.plot([low], [height], zorder=3, **look.points(marker="<", markersize=7))
    if ends[1] is not None and ends[1] > high:
        axes.plot([high], [height], zorder=3, **look.points(marker=">", markersize=7))


def _draw_difference_axes(axes: Any, rows: Sequence[_Row], comparison: Comparison) -> None:
    axes.axvline(0, color=INK, linewidth=1, zorder=1)
    for number, (_, result, look) in enumerate(rows):
        _draw_interval(axes, -number, result, look, 100.0)
    label = "difference to the baseline in percentage points"
    margin = next((c.accuracy.margin for c in comparison.candidates if c.accuracy is not None), None)
    if margin is not None:
        axes.axvline(-100 * margin, color="#a00000", linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)
        label += f"; dashed: the margin of −{100 * margin:.3g}"
    number_axis(axes.xaxis)
    axes.margins(x=0.08)
    axes.set_xlabel(label)


def _draw_interval(axes: Any, height: float, result: MetricResult, look: ArmLook, scale: float) -> None:
    estimate = result.estimate
    if estimate.low is not None and estimate.high is not None:
        axes.plot(
            [scale * estimate.low, scale * estimate.high], [height] * 2, color=look.color, linewidth=2.2, zorder=2
        )
    hollow = {"markerfacecolor": "white", "markeredgecolor": look.color, "markeredgewidth": 1.4}
    without = {} if estimate.low is not None or result.deterministic else hollow
    axes.plot([scale * (estimate.value or 0.0)], [height], zorder=3, **look.points(markersize=7) | without)


def _label_rows(axes: Any, rows: Sequence[_Row]) -> None:
    """Label the metrics on the left, each once for all candidates, and the values on the right."""
    labels = []
    last = ""
    for number, (_, result, _) in enumerate(rows):
        metric = METRICS[result.metric]
        better = "higher" if metric.higher_is_better else "lower"
        labels.append(f"{metric.title} ({better} is better)" if result.metric != last else "")
        if number and result.metric != last:
            axes.axhline(0.5 - number, color="#eeeeee", linewidth=0.8, zorder=0)
        last = result.metric
        axes.text(
            1.01, -number, _figures(result), transform=axes.get_yaxis_transform(), va="center", ha="left", fontsize=8.5
        )
    axes.set_yticks([-n for n in range(len(rows))], labels)
    axes.set_ylim(-len(rows) + 0.4, 0.6)
    hide_frame(axes)


def _figures(result: MetricResult) -> str:
    estimate = result.estimate

    def text(value: float | None) -> str:
        if value is None:
            return "–"
        if METRICS[result.metric].scale is Scale.RATIO:
            return format_change(value)
        return f"{'−' if value < 0 else '+'}{abs(100 * value):.2f} pt"

    if estimate.low is None or estimate.high is None:
        return f"{text(estimate.value)} ({'the same in every run' if result.deterministic else 'no interval'})"
    if estimate.low == estimate.high:
        return f"{text(estimate.value)} (the same in every block)"
    return f"{text(estimate.value)} ({text(estimate.low)} to {text(estimate.high)})"


def _legend(figure: Figure, comparison: Comparison) -> None:
    from matplotlib.lines import Line2D

    of_arm = looks(comparison)
    handles = [
        Line2D([], [], linewidth=2.2, label=wrapped(c.arm, 40), **of_arm[c.arm].points(linestyle="-", markersize=7))
        for c in comparison.candidates
    ]
    hollow: dict[str, Any] = {"markerfacecolor": "white", "markeredgecolor": FAINT, "markeredgewidth": 1.4}
    if any(r.estimate.low is None and not r.deterministic for c in comparison.candidates for r in c.metrics):
        handles.append(Line2D([], [], marker="o", linestyle="none", label="no interval", **hollow))
    figure.legend(handles=handles, loc="outside lower left", ncols=_legend_columns(comparison), frameon=False)


def _legend_columns(comparison: Comparison) -> int:
    return 1 if any(len(candidate.arm) > 24 for candidate in comparison.candidates) else 4


def draw_prediction(comparison: Comparison) -> Figure | None:
    """Draw the predicted speed-up of each mixed-precision candidate as a bar, and the measured one beside it."""
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
