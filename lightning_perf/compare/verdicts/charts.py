"""The charts of a comparison's page: changes with their intervals, and every run as a point."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lightning_perf.compare.records.metrics import METRICS, Scale
from lightning_perf.compare.verdicts.blocks import arm_color, arm_place, change_text, drift_text
from lightning_perf.show.blocks import Block, Heading, Line, Plot
from lightning_perf.show.plots import Trace, band, bars, line, names_axis, points, upright
from lightning_perf.units import NOT_AVAILABLE, axis_unit, column_format, format_change, format_ratio

if TYPE_CHECKING:
    from lightning_perf.compare.verdicts.comparison import Arm, Comparison, MetricResult, Run
    from lightning_perf.statistics.values import Estimate

SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")

FEWEST_FOR_BOX = 3
"""With fewer runs, only the points are drawn."""

LOST_SHARE = 0.24
"""Width of the panel of collapsed runs, if other runs learned."""

FARTHEST = 1e3
"""Intervals beyond this factor extend beyond the chart, so that the rest stays visible. Their texts give the ends."""

HELD = {True: "within the prediction", False: "outside the prediction", None: "not measured"}

DRIFT_POINTS = 41


def forest(comparison: Comparison) -> Iterator[Block]:
    """Yield the ratio to the baseline in every metric, and the difference of accuracy, each with its interval."""
    rows = [
        (candidate.arm, result)
        for metric in METRICS
        for candidate in comparison.candidates
        for result in candidate.metrics
        if result.metric == metric and result.estimate.value is not None
    ]
    if not rows:
        return
    ratios = [row for row in rows if METRICS[row[1].metric].scale is Scale.RATIO]
    differences = [row for row in rows if row not in ratios]
    margin = next((each.accuracy.margin for each in comparison.candidates if each.accuracy is not None), None)
    several = len(comparison.candidates) > 1
    aside = f"{100 * comparison.confidence:.3g} % intervals{', all candidates together' if several else ''}"
    yield Heading(f"Change from {comparison.baseline}", definition="change", aside=aside)
    marks = [f"Shaded: times within ±{100 * comparison.equivalence:.3g} % are equivalent."]
    marks += [f"Dashed: the margin of −{100 * margin:.3g} points."] if differences and margin else []
    yield Line(" ".join([*marks, "↓ lower is better, ↑ higher."]), "quiet")
    if ratios:
        yield _ratios(comparison, ratios, arm_legend(comparison) if several else ())
    if differences:
        yield Plot(
            "The difference of accuracy from the baseline, with its interval.",
            tuple(_interval_of(comparison, row, place, 100) for place, row in enumerate(differences)),
            {
                "xaxis": {"title": "difference in percentage points"},
                "yaxis": _row_axis(differences),
                "shapes": [upright(0), *([upright(-100 * margin, "high", dash="dash", width=1.5)] if margin else [])],
            },
            height=70 + 32 * len(differences),
        )


def _ratios(comparison: Comparison, rows: Sequence[tuple[str, MetricResult]], legend: Any) -> Plot:
    zone = 1 + comparison.equivalence
    ends = [1 / zone, zone]
    for _, result in rows:
        found = result.estimate
        ends += [value for value in (found.value,) if value is not None and value > 0]
        ends += [
            min(max(end, 1 / FARTHEST), FARTHEST) for end in (found.low, found.high) if end is not None and end > 0
        ]
    low, high = min(ends), max(ends)
    room = (high / low) ** 0.06
    traces = []
    for place, (arm, result) in enumerate(rows):
        traces.append(_interval_of(comparison, (arm, result), place, 1))
        look: Trace = {"look": {"size": 10, "line": {"width": 0}}}
        color, found = arm_color(comparison, arm), result.estimate
        if found.low is not None and found.low < low:
            traces.append(points([low], [place], (), color, "triangle-left", **look))
        if found.high is not None and found.high > high:
            traces.append(points([high], [place], (), color, "triangle-right", **look))
    scale = {"type": "log", "title": "ratio to the baseline", "tickangle": 0}
    return Plot(
        "The ratio to the baseline in every metric, with its interval.",
        tuple(traces),
        {
            "xaxis": {**scale, "range": [math.log10(low / room), math.log10(high * room)]},
            "yaxis": _row_axis(rows),
            "shapes": [band(1 / zone, zone, "good-soft"), upright(1)],
        },
        height=70 + 32 * len(rows),
        legend=legend,
    )


def predictions(comparison: Comparison) -> Iterator[Block]:
    """Yield the predicted gain of mixed precision as a bar with the measured gain; nothing without a prediction."""
    rows = [(each.arm, each.prediction) for each in comparison.candidates if each.prediction is not None]
    if not rows:
        return
    texts = [f"predicted: {format_ratio(row.low)} – {format_ratio(row.high)}" for _, row in rows]
    widths, places = [row.high - row.low for _, row in rows], list(range(len(rows)))
    look = {"orientation": "h", "base": [row.low for _, row in rows], "width": 0.5}
    measured = (
        _interval(comparison, arm, row.measured, place, "measured", format_ratio(row.measured.value))
        for place, (arm, row) in enumerate(rows)
        if row.measured.value is not None
    )
    yield Heading("Mixed precision: predicted and measured", definition="prediction-of-mixed-precision")
    yield Plot(
        "The predicted speed-up, and the measured one with its interval.",
        (bars(widths, places, texts, "line-strong", **look), *measured),
        {
            "xaxis": {"title": f"speed-up of a step over {comparison.baseline}"},
            "yaxis": names_axis([f"{arm}\n{HELD[row.held]}" for arm, row in rows], 3),
            "shapes": [upright(1)],
        },
        height=80 + 64 * len(rows),
        legend=(("predicted from the profiled run of the baseline", "line-strong"),),
    )


def time_boxes(comparison: Comparison, name: str) -> Iterator[Block]:
    """Yield a time of every run, by arm; nothing if no run has it."""
    if not any(arm.metrics[name].n for arm in comparison.arms):
        return
    title = METRICS[name].title
    factor, unit = axis_unit(METRICS[name].unit, max(arm.metrics[name].max or 0.0 for arm in comparison.arms))
    aside = "box: quartiles and median; whiskers: minimum and maximum"
    yield Heading(f"{title[0].upper()}{title[1:]} of every run", definition="box-and-whisker", aside=aside)
    axis = {"title": f"{title} of a run ({unit}), lower is better", "measured": True}
    yield Plot(
        f"{title} of every run by arm. The tables have the figures.",
        tuple(trace for arm in comparison.arms for trace in _arm(comparison, arm, name, factor, lambda _: True)),
        {"boxmode": "overlay", "xaxis": axis, "yaxis": names_axis([arm.name for arm in comparison.arms], 3)},
        height=76 + 74 * len(comparison.arms),
    )


def accuracy_boxes(comparison: Comparison) -> Iterator[Block]:
    """Yield the accuracy of every run, by arm; nothing if the runs have none."""
    used = [run for run in comparison.runs if run.left_out is None and run.values["accuracy"] is not None]
    if not comparison.accuracy_metric or not used:
        return
    lost = [run for run in used if run.collapsed]
    split = 0 < len(lost) < len(used)
    traces: list[Trace] = []
    names = []
    cross = {"symbol": "x", "size": 10, "color": "--high", "line": {"width": 0}}
    for arm in comparison.arms:
        traces += _arm(comparison, arm, "accuracy", 100, lambda run: not run.collapsed)
        crosses = _arm(comparison, arm, "accuracy", 100, lambda run: run.collapsed)[-1]
        if lost:
            traces.append(crosses | {"marker": cross, "xaxis": "x2" if split else "x"})
        count = sum(run.arm == arm.name for run in lost)
        names.append(f"{arm.name}\n{count} of {arm.used} collapsed" if count else arm.name)
    limit = comparison.collapse_limit
    aside = f"after the last epoch{f'; below {100 * limit:.1f} % a run counts as collapsed' if limit else ''}"
    yield Heading("Accuracy of every run", definition="collapsed", aside=aside)
    panel = band(0, LOST_SHARE, "high-soft") | {"xref": "paper"}
    second = {"title": "collapsed (%)", "domain": [0, LOST_SHARE], "anchor": "y", "nticks": 3}
    domain = [LOST_SHARE + 0.08, 1] if split else [0, 1]
    yield Plot(
        "Accuracy of every run by arm, with collapsed runs shown separately.",
        tuple(traces),
        {
            "boxmode": "overlay",
            "xaxis": {"title": f"{comparison.accuracy_metric} (%)", "measured": True, "domain": domain},
            "yaxis": {**names_axis(names, 3), "anchor": "free", "position": 0},
            **({"xaxis2": second, "shapes": [panel]} if split else {}),
        },
        height=76 + 74 * len(comparison.arms),
    )


def block_lines(comparison: Comparison) -> Iterator[Block]:
    """Yield one line per block through the step times of its runs; nothing without blocks or without step times."""
    blocks: dict[int, list[tuple[Run, float]]] = defaultdict(list)
    for run in comparison.runs:
        value = run.values["step_time"]
        if run.left_out is None and run.block is not None and value is not None:
            blocks[run.block].append((run, value))
    if not comparison.blocked or not blocks:
        return
    factor, unit = axis_unit("ms", max(value for rows in blocks.values() for _, value in rows))
    traces = []
    for number, block in enumerate(sorted(blocks)):
        rows = sorted(blocks[block], key=lambda row: arm_place(comparison, row[0].arm))
        arms = [run.arm for run, _ in rows]
        texts = [f"block {block}: {_value('step_time', value)}\n{run.run_id}" for run, value in rows]
        colors, symbols = [arm_color(comparison, arm) for arm in arms], [_symbol(comparison, arm) for arm in arms]
        places = [arm_place(comparison, arm) for arm in arms]
        look = {"mode": "lines+markers", "line": {"width": 1.5, "color": "--ink-soft"}}
        fainter = {"opacity": 1 - 0.6 * number / max(1, len(blocks) - 1)}
        traces.append(points([factor * value for _, value in rows], places, texts, colors, symbols, **look, **fainter))
    aside = "a line joins the runs of one block, and later blocks are fainter"
    yield Heading("Step time within each block", definition="block", aside=aside)
    yield Plot(
        "Step time within each block. Parallel lines mean a difference, and crossing lines mean noise.",
        tuple(traces),
        {
            "xaxis": {"title": f"step time ({unit}), lower is better", "measured": True},
            "yaxis": names_axis([arm.name for arm in comparison.arms], 3),
        },
        height=90 + 80 * len(comparison.arms),
    )


def run_order(comparison: Comparison) -> Iterator[Block]:
    """Yield each run's step time against the mean of its arm, in order of start; nothing if no arm has two of them."""
    if all(arm.metrics["step_time"].n < 2 for arm in comparison.arms):
        return
    used = [run for run in comparison.runs if run.left_out is None]
    traces = []
    for arm in comparison.arms:
        rows = [
            (place, run, change)
            for place, (run, change) in enumerate(zip(used, comparison.drift.residuals, strict=True), start=1)
            if run.arm == arm.name and change is not None
        ]
        texts = [f"{format_change(1 + change)}\n{run.run_id}\n{_block(run)}" for _, run, change in rows]
        places, changes = [place for place, _, _ in rows], [100 * change for _, _, change in rows]
        color, look = arm_color(comparison, arm.name), {"look": {"size": 9}}
        traces.append(points(places, changes, texts, color, _symbol(comparison, arm.name), **look))
    what = "drift" if comparison.drift.change.value is None else "drift from the first run to the last"
    aside = f"{what}: {drift_text(comparison.drift)}"
    yield Heading("Step time in the order of runs", definition="drift", aside=aside)
    # A band behind the runs of every other block. Blocks that ran side by side have several bands.
    order = {block: place for place, block in enumerate(dict.fromkeys(run.block for run in used))}
    odd = [n for n, run in enumerate(used) if comparison.blocked and order[run.block] % 2]
    bands = [band(n + 0.5, n + 1.5, "sunken") for n in odd]
    every = {"range": [0.4, len(used) + 0.6], "dtick": None if len(used) > 16 else 1}
    zero = {"zeroline": True, "zerolinecolor": "--ink-soft"}
    yield Plot(
        "Each run's step time against the mean of its arm, in order of start.",
        (*traces, *_drift_line(comparison, len(used))),
        {
            "xaxis": {"title": "runs in order of start", **every},
            "yaxis": {"title": "% from the arm's mean", **zero},
            "shapes": bands,
        },
        height=300,
        legend=arm_legend(comparison),
    )


def arm_legend(comparison: Comparison) -> tuple[tuple[str, str], ...]:
    """Return the names and the colours of the arms."""
    return tuple((arm.name, arm_color(comparison, arm.name)) for arm in comparison.arms)


def _drift_line(comparison: Comparison, count: int) -> Iterable[Trace]:
    """Return the straight line through the logarithms. The document's drift is its slope."""
    change = comparison.drift.change
    if change.value is None or change.value <= -1 or count < 2:
        return []
    slope = math.log1p(change.value) / (count - 1)
    x = [1 + (count - 1) * step / (DRIFT_POINTS - 1) for step in range(DRIFT_POINTS)]
    y = [100 * math.expm1(slope * (place - (count + 1) / 2)) for place in x]
    return [line(x, y, (), "ink-soft", look={"dash": "dash"})]


def _arm(comparison: Comparison, arm: Arm, metric: str, factor: float, belongs: Callable[[Run], bool]) -> list[Trace]:
    """Return the box of an arm from its summary, and a point for each run, from top to bottom in order of start."""
    row, summary = arm_place(comparison, arm.name), arm.metrics[metric]
    runs = [
        (run, value)
        for run in comparison.runs
        if run.arm == arm.name and run.left_out is None and (value := run.values[metric]) is not None and belongs(run)
    ]
    # No point hides another.
    places = [row + (0.34 * (n / (len(runs) - 1) - 0.5) if len(runs) > 1 else 0) for n in range(len(runs))]
    texts = [f"{_value(metric, value)}\n{run.run_id}\n{_block(run)}" for run, value in runs]
    color = arm_color(comparison, arm.name)
    found = points([factor * value for _, value in runs], places, texts, color, _symbol(comparison, arm.name))
    if summary.n < FEWEST_FOR_BOX:
        return [found]
    ends = {"lowerfence": summary.min, "q1": summary.q1, "median": summary.median, "q3": summary.q3}
    figures = {name: [factor * (value or 0.0)] for name, value in {**ends, "upperfence": summary.max}.items()}
    look = {"width": 0.56, "line": {"color": f"--{color}", "width": 1.5}, "fillcolor": f"--{color}/22"}
    return [{"type": "box", "orientation": "h", "y": [row], "hoverinfo": "skip", **figures, **look}, found]


def _interval_of(comparison: Comparison, row: tuple[str, MetricResult], place: int, factor: float) -> Trace:
    arm, result = row
    figures, title = "{} ({})".format(*change_text(result, result.estimate)), METRICS[result.metric].title
    return _interval(comparison, arm, result.estimate, place, title, figures, factor, certain=result.deterministic)


def _interval(
    comparison: Comparison,
    arm: str,
    found: Estimate,
    place: int,
    what: str,
    figures: str,
    factor: float = 1,
    *,
    certain: bool = False,
) -> Trace:
    """Return a point with its interval, or a hollow point without one. Pictures write the figures next to it."""
    color, symbol, value = arm_color(comparison, arm), _symbol(comparison, arm), found.value or 0.0
    known = found.low is not None and found.high is not None
    look: Trace = {"size": 10}
    if not (known or certain):
        look["line"] = {"width": 2, "color": f"--{color}"}
        symbol += "-open"
    bar: Trace = {}
    if found.low is not None and found.high is not None:
        ends = {"array": [factor * (found.high - value)], "arrayminus": [factor * (value - found.low)]}
        shape = {"type": "data", "symmetric": False, "color": f"--{color}", "thickness": 2.5, "width": 0}
        bar = {"error_x": ends | shape}
    return points([factor * value], [place], [f"{what}: {figures}"], color, symbol, look=look, text=[figures], **bar)


def _row_axis(rows: Sequence[tuple[str, MetricResult]]) -> Trace:
    """Return an axis that names each metric once for all candidates."""
    names = []
    for place, (_, result) in enumerate(rows):
        metric = METRICS[result.metric]
        again = place > 0 and rows[place - 1][1].metric == result.metric
        names.append("" if again else f"{metric.title} {'↑' if metric.higher_is_better else '↓'}")
    return {**names_axis(names, 2), "range": [len(rows) - 0.4, -0.6]}


def _value(metric: str, value: float) -> str:
    figures = column_format(METRICS[metric].unit, [value])
    return f"{figures.value(value)} {figures.unit}".rstrip()


def _block(run: Run) -> str:
    return f"block {NOT_AVAILABLE if run.block is None else run.block}"


def _symbol(comparison: Comparison, name: str) -> str:
    return SYMBOLS[arm_place(comparison, name) % len(SYMBOLS)]
