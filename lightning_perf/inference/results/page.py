"""The parts of a trade-off's page, and its pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from lightning_perf.inference.counting.document import Count, Roofline
from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.results.blocks import (
    accuracy_table,
    cold_table,
    format_macs,
    latency_table,
    layer_table,
    peak_rate,
    sweep_title,
    tradeoff_table,
)
from lightning_perf.lazy_imports import import_extra
from lightning_perf.show.blocks import (
    EVERY_ROW,
    Block,
    Figure,
    Figures,
    Heading,
    Line,
    Plot,
    Span,
    Style,
    Table,
    listing,
    table,
)
from lightning_perf.show.plots import bars, drawing, hide_frame, names_axis, new_figure, short_name
from lightning_perf.units import (
    counted,
    format_bandwidth,
    format_bytes,
    format_count,
    format_duration,
    format_flops,
    format_milliseconds,
    format_ratio,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Drawing

    from lightning_perf.inference.results.tradeoff import Sweep, Tradeoff


def tradeoff_parts(tradeoff: Tradeoff) -> dict[str, Iterable[Block]]:
    """Return the blocks of each part of a trade-off's page. The name of a part of a cell ends with the cell's place."""
    count = tradeoff.count
    settings = (
        (
            row.variant,
            row.summary,
            ", ".join(f"{name} {value}" for name, value in (row.provenance or {}).items()),
            row.reason or "",
        )
        for row in tradeoff.rows
    )
    failed = (Line((Span(row.variant, "strong"), f" {row.reason}")) for row in tradeoff.rows if row.reason is not None)
    failures = tuple(listing(failed))
    heads = ("variant", "description", "settings", "reason for no measurement")
    parts: dict[str, Iterable[Block]] = {
        "recommendation": _recommendation(tradeoff),
        "context": [Line(" · ".join(_context(tradeoff)), "quiet")],
        "failures": [Heading("Not or only partly measured"), *failures] if failures else [],
        "outputs": [accuracy_table(tradeoff)],
        "cold": [cold_table(tradeoff)],
        "how": [table(heads, settings, "Settings", "name text text text")],
        "machine": [Heading("Machine and method"), *_machine(tradeoff)],
        "forward_pass": [] if count is None else _forward_pass(tradeoff, count),
        "least_time": [] if tradeoff.roofline is None else _least_time(tradeoff.roofline),
        "layers": [] if count is None else [layer_table(count, tradeoff.roofline, EVERY_ROW)],
    }
    if count is None:
        parts["missing"] = [Line("The operations of the original could not be counted.", label="layers")]
    for place, cell in enumerate(tradeoff.cells):
        parts[f"variants.{place}"] = [_marked(tradeoff, tradeoff_table(tradeoff, cell, intervals=True))]
        parts[f"calls.{place}"] = [_marked(tradeoff, latency_table(tradeoff, cell))]
    return parts


def _marked(tradeoff: Tradeoff, variants: Table) -> Table:
    """Return a table of variants with the recommended one first, and with marks on that and on the original."""
    marks = {tradeoff.rows[0].variant: " original"}
    if tradeoff.recommendation is not None and tradeoff.recommendation.variant is not None:
        marks[tradeoff.recommendation.variant] = " recommended"
    rows = sorted(variants.rows, key=lambda row: marks.get(row[0].text) != " recommended")
    marked = ((replace(row[0], detail=marks.get(row[0].text, "")), *row[1:]) for row in rows)
    return replace(variants, rows=tuple(marked))


def _recommendation(tradeoff: Tradeoff) -> Iterator[Line]:
    found = tradeoff.recommendation
    if found is None:
        return
    style: Style = "good" if found.variant else "strong"
    yield Line(found.variant or "none of them", style, label="Deploy", label_style="strong")
    yield Line(found.reason, label="Why", label_style="strong")
    most_ms, drop = found.max_latency_ms, found.max_accuracy_drop_points
    limits = [] if most_ms is None else [f"p90 latency at most {format_milliseconds(most_ms)}"]
    limits += [] if drop is None else [f"accuracy drop at most {drop:g} {'point' if drop == 1 else 'points'}"]
    if limits:
        yield Line("; ".join(limits), label="Limits", label_style="strong")


def _context(tradeoff: Tradeoff) -> Iterator[str]:
    machine = tradeoff.machine
    yield tradeoff.model
    yield f"inputs {'×'.join(map(str, tradeoff.input_shape))}"
    yield "float32 originals"
    yield from dict.fromkeys((machine.device, machine.cpu))
    if "torch" in machine.versions:
        yield f"torch {machine.versions['torch']}"
    yield f"lightning_perf {tradeoff.tool_version}"


def _machine(tradeoff: Tradeoff) -> Iterator[Line]:
    machine, effort = tradeoff.machine, tradeoff.effort
    yield Line(machine.device, label="Device")
    yield Line(f"{machine.cpu}, {machine.cpus} usable", label="Processor")
    yield Line(machine.platform, label="System")
    if machine.load_before is not None and machine.load_after is not None:
        yield Line(f"{machine.load_before:.2f} before, {machine.load_after:.2f} after", label="Load average")
    yield Line(", ".join(f"{name} {version}" for name, version in machine.versions.items()), label="Versions")
    what = "variant, batch size and number of threads"
    rounds = f"in {effort.rounds} rounds (method {tradeoff.method_version})"
    yield Line(f"{effort.seconds:g} s per {what}, {rounds}", label="Effort")


MOST_BARS = 15

COLORS = {"compute": "bound_by_compute", "memory": "bound_by_memory"}


def _forward_pass(tradeoff: Tradeoff, count: Count) -> Iterator[Block]:
    """Yield the arithmetic and the memory traffic of one forward pass."""
    bounds, latencies = tradeoff.roofline, tradeoff.rows[0].latencies if tradeoff.rows else ()
    unused = f"{format_count(count.unused_parameters)} unused" if count.unused_parameters else ""
    figures = [
        Figure("Parameters", format_count(count.parameters), unused),
        Figure("In memory", format_bytes(count.size_bytes)),
        Figure("MACs", format_macs(count.macs), definition="macs"),
        Figure("FLOPs", format_flops(count.flops), definition="macs"),
        Figure("Bytes moved", format_bytes(count.bytes_moved), definition="bytes-moved"),
        Figure("FLOPs per byte", format_count(count.arithmetic_intensity), definition="bytes-moved"),
    ]
    if bounds is not None:
        figures.append(Figure("Least time", format_milliseconds(bounds.bound_ms), definition="least-time"))
        layers = format_milliseconds(bounds.layer_by_layer_ms)
        figures.append(Figure("Layer by layer", layers, "at least", "least-time"))
    if latencies:
        p50_ms = latencies[0].p50_ms
        times = f"{format_ratio(p50_ms / bounds.bound_ms)} the least time" if bounds is not None else ""
        figures.append(Figure("Time of the original", format_milliseconds(p50_ms), times, "latency"))
    yield Heading(
        "One forward pass", definition="macs", aside=f"one input of {'×'.join(map(str, count.input_shape[1:]))}"
    )
    yield Figures(tuple(figures))
    lacking = len(count.uncounted)
    if lacking:
        layers = counted(lacking, "layer")
        yield Line(f"FLOPs are too low, because no formula is known for operators in {layers}.", "warning")


def _least_time(roofline: Roofline) -> Iterator[Block]:
    """Yield the layers with the longest least time."""
    layers = sorted((each for each in roofline.layers if each.bound_ms > 0), key=lambda each: -each.bound_ms)[
        :MOST_BARS
    ]
    if not layers:
        return
    peaks = roofline.peaks
    rates = f"{peak_rate(peaks)} and {format_bandwidth(peaks.bandwidth_bytes_per_s)}"
    names = [layer.path or "(the model)" for layer in layers]
    texts = [
        f"{name}, {layer.kind}\n"
        f"compute {format_milliseconds(layer.compute_ms)}, memory {format_milliseconds(layer.memory_ms)}"
        for name, layer in zip(names, layers, strict=True)
    ]
    times, colors = [1000 * layer.bound_ms for layer in layers], [COLORS[layer.limit] for layer in layers]
    aside = " · ".join((peaks.device, peaks.dtype, rates, peaks.source))
    yield Heading("Least time by layer", definition="least-time", aside=aside)
    yield Plot(
        "The layers with the longest least time. The table has all of them.",
        (bars(times, list(range(len(layers))), texts, colors, orientation="h"),),
        {"xaxis": {"title": "least time, µs"}, "yaxis": names_axis(names)},
        height=64 + 24 * len(layers),
        legend=(("bound by arithmetic", COLORS["compute"]), ("bound by memory", COLORS["memory"])),
    )


OFFSETS = tuple((x, y) for y in (6, -12, 18, -24, 30, -36, 42, -48, 54, -60) for x in (8, -8))
"""Positions of a name relative to its point, in points, the best first."""


def name_points(figure: Drawing, axes: Axes, points: Sequence[tuple[str, float, float]]) -> None:
    """Write names next to their points, each at the first position where it covers no other name.

    The figure is complete except for the names: their positions depend on its size and scales.
    """
    from matplotlib.text import Text

    figure.draw_without_rendering()
    taken: list[Any] = []
    for name, x, y in sorted(points, key=lambda point: (-point[2], point[1])):
        text = None
        for offset in OFFSETS:
            if text is not None:
                text.remove()
            text = axes.annotate(
                name,
                (x, y),
                xytext=offset,
                textcoords="offset points",
                horizontalalignment="left" if offset[0] > 0 else "right",
                fontsize=8,
                arrowprops={"arrowstyle": "-", "color": "#9aa5b1", "lw": 0.5},
                zorder=5,
            )
            text.get_window_extent()  # moves the text to its place; the result would include the line to the point
            box = Text.get_window_extent(text)
            if not any(box.overlaps(other) for other in taken):
                break
        taken.append(box)


BEST, OTHER, ORIGINAL = "#0a5fb4", "#9aa5b1", "#d1495b"
AREA, LEAST_AREA = 900.0, 25.0
"""Areas of the largest and of the smallest model, in points²."""

MOST_NAMES = 10
"""Most models with names at their points; with more, the points have numbers and a key."""


class _Point(NamedTuple):
    """A model in a picture, with the ends of a bar across its point and of an upright one."""

    name: str
    x: float
    y: float
    size_bytes: int
    color: str
    across: Sequence[float]
    upright: Sequence[float]


def draw_tradeoff(tradeoff: Tradeoff) -> Drawing:
    """Draw the variants with the first batch size and number of threads."""
    cell = tradeoff.cells[0]
    shown = tradeoff.measured(cell)
    if not shown:
        raise InferenceError("There is nothing to draw: no variant was measured. Their rows show the reasons.")
    has_accuracy = all(row.accuracy is not None for row, _ in shown)
    points = []
    for number, (row, latency) in enumerate(shown):
        height, ends = -float(number), (0.0, 0.0)
        if has_accuracy and (found := row.accuracy) is not None:
            height, ends = 100 * found.share, (100 * found.low, 100 * found.high)
        color = ORIGINAL if row is tradeoff.rows[0] else BEST if row.variant in cell.front else OTHER
        bars = (latency.p10_ms, latency.slow_ms), ends if has_accuracy else (height, height)
        points.append(_Point(row.variant, latency.p50_ms, height, row.size_bytes or 1, color, *bars))

    def finish(axes: Axes) -> None:
        _label(axes.xaxis, lambda value: format_duration(1e6 * value))
        if not has_accuracy:
            axes.set_yticks([])
            return
        best: list[_Point] = []
        for point in sorted((each for each in points if each.name in cell.front), key=lambda each: (each.x, each.y)):
            if not best or point.y > best[-1].y:  # among those with equal latency within the noise, the most accurate
                best.append(point)
        if best:
            xs = [*(point.x for point in best), 1.3 * max(point.x for point in points)]
            axes.step(
                xs, [*(point.y for point in best), best[-1].y], where="post", color=BEST, lw=1.2, ls="--", zorder=1
            )

    shape, largest = "×".join(map(str, tradeoff.input_shape)), max(point.size_bytes for point in points)
    title = (
        f"{short_name(tradeoff.model)}: {cell.conditions}, inputs {shape} float32, "
        f"{short_name(tradeoff.machine.device)}\n"
        f"area: size of the files, at most {format_bytes(largest)}; "
        f"blue: best trade-offs; red: the original; A/A noise {100 * cell.tie:.1f} %"
    )
    y_title = f"accuracy on {tradeoff.validation_inputs} held-out inputs, % (line: 95 % interval)"
    x_title = "latency per call: median, bar from p10 to p90 (logarithmic)"
    return _draw(points, finish, title, x_title, y_title if has_accuracy else "accuracy was not measured")


def draw_sweep(sweep: Sweep) -> Drawing:
    """Draw median latency against MACs, both logarithmic, with a line at the peak rate."""
    points = []
    for row in sweep.rows:
        if (latency := row.latency) is not None and row.macs:
            bars = (row.macs / 1e9,) * 2, (latency.p10_ms, latency.slow_ms)
            name, size = short_name(row.name), row.size_bytes or 1
            points.append(_Point(name, row.macs / 1e9, latency.p50_ms, size, BEST, *bars))
    if not points:
        raise InferenceError("There is nothing to plot: no backbone has a latency.")
    ends = [pick(point.x for point in points) for pick in (min, max)]
    rate = max(sweep.peaks.flops_per_s, sweep.peaks.convolution_flops_per_s or 0.0)

    def finish(axes: Axes) -> None:
        times_ms = [2e12 * end / rate for end in ends]
        axes.plot(ends, times_ms, color=OTHER, ls="--", zorder=1, label="at the peak rate of arithmetic")
        axes.legend(loc="lower right", frameon=False)
        axes.set_yscale("log")
        _label(axes.xaxis, "{:g}".format)
        _label(axes.yaxis, "{:g}".format)

    title, x_title = f"{sweep_title(sweep)}\narea: size of the weights", "multiply-accumulates of the batch (G)"
    return _draw(points, finish, title, x_title, "median latency (ms), bar from p10 to p90")


def _draw(points: Sequence[_Point], finish: Callable[[Axes], None], title: str, x_title: str, y_title: str) -> Drawing:
    """Draw points with names, bars, and areas that show sizes, on a logarithmic horizontal axis."""
    import_extra("matplotlib", "infer")
    largest = max(point.size_bytes for point in points)
    with drawing():
        figure = new_figure(5.6)
        axes = figure.subplots()
        axes.set_xscale("log")
        for point in points:
            x, y, color = [point.x], [point.y], point.color
            axes.plot(point.across, y * 2, color=color, lw=1.5, zorder=3, solid_capstyle="butt")
            axes.plot(x * 2, point.upright, color=color, lw=0.7, alpha=0.5, zorder=2)
            area = max(LEAST_AREA, AREA * point.size_bytes / largest)
            axes.scatter(x, y, s=area, color=color, alpha=0.45, lw=0, zorder=3)
            axes.scatter(x, y, s=10, color=color, zorder=4)
        finish(axes)
        axes.margins(x=0.18, y=0.12)
        hide_frame(axes, grid="both")
        axes.set_xlabel(x_title)
        axes.set_ylabel(y_title)
        axes.set_title(title, fontsize=10, loc="left")
        named = [point[:3] for point in points]
        name_points(figure, axes, _numbered(axes, named) if len(named) > MOST_NAMES else named)
    return figure


def _label(axis: Axis, text: Callable[[float], str]) -> None:
    """Label 1, 2 and 5 times the powers of ten on a logarithmic axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axis.set_minor_formatter(NullFormatter())


def _numbered(axes: Axes, points: Sequence[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    """Replace names that would cover each other by numbers, from left to right, with a key next to the plot."""
    from matplotlib.lines import Line2D

    axes.tick_params(axis="x", labelsize=7)  # the key leaves less room for the labels
    points = sorted(points, key=lambda point: point[1])
    key = [Line2D([], [], ls="", label=f"{number}  {name}") for number, (name, _, _) in enumerate(points, 1)]
    lines, place = axes.get_legend_handles_labels()[0], (1.0, 1.0)
    axes.legend(
        handles=[*lines, *key], loc="upper left", bbox_to_anchor=place, frameon=False, fontsize=8, handlelength=1
    )
    return [(str(number), x, y) for number, (_, x, y) in enumerate(points, 1)]
