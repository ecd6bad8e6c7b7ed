"""Plots: traces and axes as Plotly's values (`lightning_perf.show.blocks.Plot`), and pictures of them by matplotlib."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from lightning_perf.lazy_imports import import_extra
from lightning_perf.show.blocks import Block, Heading, Line, Plot
from lightning_perf.show.terminal_text import safe
from lightning_perf.units import format_duration

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Trace: TypeAlias = dict[str, Any]
Values: TypeAlias = Sequence[float | str | None]

_BYTES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


def line(
    x: Values, y: Values, hover: Sequence[str], color: str, *, steps: bool = False, marks: bool = False, **more: Any
) -> Trace:
    """Return a line through points, or the steps between them, with the text of each point."""
    look = {"color": f"--{color}", "width": 1.5} | ({"shape": "hv"} if steps else {}) | more.pop("look", {})
    trace = {"type": "scatter", "mode": "lines+markers" if marks else "lines", "x": x, "y": y, "hovertext": hover}
    return trace | {"line": look} | ({"marker": {"size": 4}} if marks else {}) | more


def area(x: Values, y: Values, color: str, **more: Any) -> Trace:
    """Return the filled area below a step function."""
    return line(x, y, (), color, steps=True, fill="tozeroy", fillcolor=f"--{color}/22", **more)


def points(
    x: Values, y: Values, hover: Sequence[str], color: str | list[str], symbol: str | list[str] = "circle", **more: Any
) -> Trace:
    """Return points with the text of each."""
    colors = f"--{color}" if isinstance(color, str) else [f"--{name}" for name in color]
    look = {"color": colors, "symbol": symbol, "size": 8, "line": {"width": 1, "color": "--panel"}} | more.pop(
        "look", {}
    )
    return {"type": "scatter", "mode": "markers", "x": x, "y": y, "hovertext": hover, "marker": look} | more


def bars(x: Values, y: Values, hover: Sequence[str], color: str | list[str], **more: Any) -> Trace:
    """Return bars with the text of each. With ``orientation="h"`` they are as long as `x`."""
    colors = f"--{color}" if isinstance(color, str) else [f"--{name}" for name in color]
    return {"type": "bar", "x": x, "y": y, "hovertext": hover, "marker": {"color": colors}} | more


def upright(x: float, color: str = "ink-soft", **look: Any) -> Trace:
    """Return a vertical line over the whole chart."""
    return {"type": "line", "x0": x, "x1": x} | _whole("y") | {"line": {"color": f"--{color}", "width": 1} | look}


def level(y: float) -> Trace:
    """Return a dashed horizontal line over the whole chart."""
    dashed = {"color": "--ink-soft", "width": 1, "dash": "dash"}
    return {"type": "line", "y0": y, "y1": y} | _whole("x") | {"line": dashed}


def band(x0: float, x1: float, color: str) -> Trace:
    """Return a coloured band behind the whole height of the chart."""
    look = {"layer": "below", "fillcolor": f"--{color}", "line": {"width": 0}}
    return {"type": "rect", "x0": x0, "x1": x1} | _whole("y") | look


def names_axis(names: Sequence[str], lines: int = 1) -> Trace:
    """Return an axis with a row for each name, the first at the top."""
    look = {"showgrid": False, "zeroline": False, "fixedrange": True}
    place = {"tickvals": list(range(len(names))), "ticktext": names, "names": lines}
    return place | {"range": [len(names) - 0.45, -0.55]} | look


def peak(x: float, y: float) -> Trace:
    """Return the label of a peak."""
    look = {"showarrow": True, "arrowhead": 0, "ax": 0, "ay": -18, "arrowcolor": "--ink-soft"}
    return {"x": x, "y": y, "text": "peak", "font": {"size": 11}} | look


def time_axis(most_ns: float) -> tuple[str, float]:
    """Return the unit of an axis of times up to a maximum, and its size in nanoseconds."""
    return ("s", 1e9) if most_ns >= 1e10 else ("ms", 1e6)


def bytes_axis(most_bytes: float) -> tuple[str, float]:
    """Return the unit of an axis of bytes up to a maximum, and its size."""
    return next(((name, float(size)) for size, name in _BYTES if most_bytes >= size), ("B", 1.0))


def of_total(time_ns: float | None, total_ns: float | None) -> str:
    """Return a part of a bar as text."""
    return f"{format_duration(time_ns)} of {format_duration(total_ns)} in total"


def _whole(axis: str) -> Trace:
    return {f"{axis}ref": "paper", f"{axis}0": 0, f"{axis}1": 1}


WIDTH_INCHES = 8.0
DPI = 150
PIXELS_PER_INCH = 100
"""Pixels of a page in an inch of a picture."""

LINE_INCHES = 0.17
TEXT_CHARACTERS = 105
NAME_CHARACTERS = 24

COLORS = {
    "panel": "#ffffff",
    "sunken": "#f0f2f5",
    "ink": "#18202c",
    "ink-soft": "#596474",
    "line": "#e4e8ed",
    "line-strong": "#c9d0d9",
    "high": "#c92a3c",
    "high-soft": "#fdecee",
    "good": "#1a7850",
    "good-soft": "#e5f5ee",
    "arm-1": "#0b66b0",
    "arm-2": "#e17815",
    "arm-3": "#218772",
    "arm-4": "#d885b5",
    "arm-5": "#e4b440",
    "arm-6": "#3c2f6b",
}
"""The colours of charts by their names, as on a light page."""

INK, FAINT = COLORS["ink"], "#8a8a8a"

MARKERS = {
    "circle": "o",
    "square": "s",
    "triangle-up": "^",
    "diamond": "D",
    "triangle-down": "v",
    "cross": "P",
    "x": "X",
    "triangle-left": "<",
    "triangle-right": ">",
}

DASHES = {"dash": (0, (5, 3))}

WIDE = 8.0
"""From this ratio of its ends on, a logarithmic axis needs logarithmic ticks: even steps would crowd one end."""

_SETTINGS: dict[str, Any] = {
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": "white",
    "grid.color": COLORS["line"],
    "grid.linewidth": 0.8,
    # The user chooses the names of arms, so a $ in a name is a plain $.
    "text.parse_math": False,
    # The same document must give the same file.
    "svg.hashsalt": "lightning_perf",
}


@contextmanager
def drawing() -> Iterator[None]:
    """Apply the settings of all pictures while drawing and saving."""
    import matplotlib as mpl

    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)  # type: ignore[arg-type]
        # A character that the font lacks becomes a box in the picture. The console needs no warning about it.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def new_figure(height_inches: float) -> Figure:
    """Create an empty figure that pyplot does not manage."""
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH_INCHES, height_inches), dpi=DPI, layout="constrained")


def image(figure: Figure, kind: str) -> bytes:
    """Return a figure as a file, the same one each time."""
    stream = io.BytesIO()
    metadata = {"png": {"Software": "lightning_perf"}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with drawing():
        figure.savefig(stream, format=kind, dpi=DPI, metadata=metadata.get(kind))
    return stream.getvalue()


def short_name(name: str, characters: int = 40) -> str:
    """Shorten a name to one line. A long one loses its middle, because names of runs differ at their ends."""
    text = safe(name)
    return text if len(text) <= characters else f"{text[: characters // 2]}…{text[-(characters // 2 - 1) :]}"


def hide_frame(axes: Any, *, grid: str = "x") -> None:
    """Remove the frame of a plot and keep a light grid."""
    for side in ("top", "right", *(["left"] if grid == "x" else [])):
        axes.spines[side].set_visible(False)
    axes.grid(axis=grid)
    axes.tick_params(length=0)


def draw_picture(blocks: Iterable[Block], head: str) -> Figure | None:
    """Draw plots below each other, each with the heading and the lines before it; None without plots.

    `head` is a text above all plots.
    """
    import_extra("matplotlib", "compare")
    panels: list[tuple[str, list[str], Plot]] = []
    title, remarks = "", []
    for block in blocks:
        if isinstance(block, Heading):
            title, remarks = safe(block.text), _lines(block.aside)
        elif isinstance(block, Line):
            remarks = [*_lines("".join(span.text for span in block.spans)), *remarks]
        elif isinstance(block, Plot):
            panels.append((title, remarks, block))
            title, remarks = "", []
    if not panels:
        return None
    heights = [
        plot.height / PIXELS_PER_INCH + LINE_INCHES * (len(remarks) + bool(title)) for title, remarks, plot in panels
    ]
    first_lines = _lines(head)
    legend = {label: (color, plot) for _, _, plot in panels for label, color in plot.legend}
    columns = 1 if any(len(label) > NAME_CHARACTERS for label in legend) else 4
    with drawing():
        figure = new_figure(sum(heights) + LINE_INCHES * (len(first_lines) + 1.5 * math.ceil(len(legend) / columns)))
        grid = figure.add_gridspec(len(panels), 1, height_ratios=heights)
        for place, (title, remarks, plot) in enumerate(panels):
            first = _draw_plot(figure, grid[place], plot)
            _write_title(first, title, remarks, spare=bool(plot.layout.get("annotations")))
        figure.suptitle("\n".join(first_lines), x=0.012, ha="left", fontsize=9, color=COLORS["ink-soft"])
        if legend:
            handles = [_legend_mark(label, color, plot) for label, (color, plot) in legend.items()]
            figure.legend(handles=handles, loc="outside lower left", ncols=columns, frameon=False)
    return figure


def _lines(text: str) -> list[str]:
    return textwrap.wrap(safe(text), TEXT_CHARACTERS)


def _write_title(axes: Any, title: str, remarks: Sequence[str], *, spare: bool) -> None:
    """Write a title and remarks from the left edge of the picture on."""
    lines = len(remarks) + bool(title) + spare
    axes.set_title("\n".join(" " * lines), loc="left", fontsize=10)  # keeps the room
    place: dict[str, Any] = {"xycoords": ("figure fraction", "axes fraction"), "textcoords": "offset points"}
    for text, height, look in (
        ("\n".join(remarks), 5 + 13 * spare, {"fontsize": 9, "color": COLORS["ink-soft"]}),
        (title, 6 + 13 * (spare + len(remarks)), {"fontsize": 11.5, "fontweight": "bold"}),
    ):
        axes.annotate(text, (0.012, 1), xytext=(0, height), va="bottom", **place, **look).set_in_layout(False)


def _draw_plot(figure: Figure, place: Any, plot: Plot) -> Any:
    """Draw a plot, each of its horizontal axes in a column of its own. Return the first column."""
    layout = plot.layout
    names = sorted((name for name in layout if name.startswith("xaxis")), key=lambda name: _domain(layout[name])[0])
    widths = [end - start for start, end in map(_domain, (layout[name] for name in names))]
    columns = place.subgridspec(1, len(names), width_ratios=widths)
    first = None
    for column, name in enumerate(names):
        axes = figure.add_subplot(columns[column], sharey=first)
        axis, height = layout[name], layout["yaxis"]
        hide_frame(axes, grid="x" if "names" in height else "y")
        if axis.get("type") == "log":
            axes.set_xscale("log")
        for trace in plot.data:
            if trace.get("xaxis", "x").replace("x", "xaxis") == name:
                _TRACES[trace["type"]](axes, trace)
        for shape in layout.get("shapes", ()):
            _draw_shape(axes, shape, _domain(axis))
        for mark in layout.get("annotations", ()):
            axes.annotate(
                safe(mark["text"]), (mark["x"], 1), xycoords=("data", "axes fraction"), xytext=(0, 3),
                textcoords="offset points", ha="center", color=_color(mark["font"]["color"]), fontsize=8.5,
            )  # fmt: skip
        _finish_axis(axes, "x", axis)
        if first is None:
            _finish_axis(axes, "y", height)
            first = axes
        else:
            axes.tick_params(labelleft=False)
    return first


def _domain(axis: Mapping[str, Any]) -> Sequence[float]:
    return axis.get("domain", (0.0, 1.0))  # type: ignore[no-any-return]


def _color(name: str) -> str:
    """Return a colour such as ``--arm-1`` or, with its opacity, ``--arm-1/22``."""
    name, _, opacity = name.removeprefix("--").partition("/")
    return COLORS[name] + opacity


def _draw_points(axes: Any, trace: Mapping[str, Any]) -> None:
    x, y, mode, opacity = trace["x"], trace["y"], trace["mode"], trace.get("opacity", 1.0)
    marker, line = trace.get("marker", {}), trace.get("line", {})
    if "lines" in mode:
        dash = DASHES.get(line.get("dash", ""), "-")
        axes.plot(x, y, color=_color(line["color"]), lw=line["width"], ls=dash, alpha=opacity, zorder=2)
    for direction in ("x", "y"):
        error = trace.get(f"error_{direction}")
        if error is not None:
            ends = {f"{direction}err": [error["arrayminus"], error["array"]]}
            look = {"ecolor": _color(error["color"]), "elinewidth": error["thickness"]}
            axes.errorbar(x, y, fmt="none", zorder=3, **ends, **look)
    if "markers" in mode:
        if isinstance(marker["symbol"], str):
            axes.plot(x, y, ls="none", zorder=4, alpha=opacity, **_mark(marker))
        else:
            for left, height, color, symbol in zip(x, y, marker["color"], marker["symbol"], strict=True):
                look = _mark({**marker, "color": color, "symbol": symbol})
                axes.plot([left], [height], zorder=4, alpha=opacity, **look)
    for height, text in zip(y, trace.get("text", ()), strict=False):
        axes.text(1.01, height, safe(text), transform=axes.get_yaxis_transform(), va="center", fontsize=8.5)


def _mark(marker: Mapping[str, Any]) -> dict[str, Any]:
    color, symbol = _color(marker["color"]), marker["symbol"].removesuffix("-open")
    hollow, edge = symbol != marker["symbol"], marker["line"]
    return {
        "marker": MARKERS[symbol],
        "markersize": 0.75 * marker["size"],
        "markerfacecolor": "white" if hollow else color,
        "markeredgecolor": color if hollow else _color(edge.get("color", "--panel")),
        "markeredgewidth": edge["width"],
    }


def _draw_box(axes: Any, trace: Mapping[str, Any]) -> None:
    color, width = _color(trace["line"]["color"]), trace["line"]["width"]
    ends = {"whislo": "lowerfence", "q1": "q1", "med": "median", "q3": "q3", "whishi": "upperfence"}
    line = {"color": color, "linewidth": width}
    axes.bxp(
        [{end: trace[name][0] for end, name in ends.items()}],
        positions=trace["y"],
        widths=trace["width"],
        orientation="horizontal",
        showfliers=False,
        patch_artist=True,
        manage_ticks=False,
        boxprops={"facecolor": _color(trace["fillcolor"]), "edgecolor": color, "linewidth": width},
        medianprops={"color": color, "linewidth": 2 * width},
        whiskerprops=line,
        capprops=line,
    )


def _draw_bars(axes: Any, trace: Mapping[str, Any]) -> None:
    axes.barh(trace["y"], trace["x"], trace["width"], trace["base"], color=_color(trace["marker"]["color"]))


_TRACES = {"scatter": _draw_points, "box": _draw_box, "bar": _draw_bars}


def _draw_shape(axes: Any, shape: Mapping[str, Any], domain: Sequence[float]) -> None:
    if shape["type"] == "line":
        line = shape["line"]
        dash = DASHES.get(line.get("dash", ""), "-")
        axes.axvline(shape["x0"], color=_color(line["color"]), lw=line["width"], ls=dash, zorder=1)
    elif shape.get("xref") != "paper":
        axes.axvspan(shape["x0"], shape["x1"], color=_color(shape["fillcolor"]), lw=0, zorder=0)
    elif list(domain) == [shape["x0"], shape["x1"]]:
        axes.set_facecolor(_color(shape["fillcolor"]))


def _finish_axis(axes: Any, side: str, settings: Mapping[str, Any]) -> None:
    """Set the range, the ticks and the title of an axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    axis, logarithmic = getattr(axes, f"{side}axis"), settings.get("type") == "log"
    ends = settings.get("range")
    if ends is None:
        axes.margins(**{side: 0.08})
    else:
        ends = [10**end for end in ends] if logarithmic else ends
        getattr(axes, f"set_{side}lim")(*ends)
    if settings.get("zeroline"):
        axes.axhline(0, color=INK, lw=1, zorder=1)
    axis.set_minor_locator(NullLocator())
    if "tickvals" in settings:
        every = math.ceil(len(settings["tickvals"]) / settings.get("most", math.inf)) or 1
        names = [_wrapped(text, settings.get("names")) for text in settings["ticktext"]]
        axis.set_ticks(settings["tickvals"][::every], names[::every])
    elif logarithmic and ends is not None and ends[1] / ends[0] > WIDE:
        axis.set_major_locator(LogLocator())
    else:
        axis.set_major_locator(MaxNLocator(settings.get("nticks", 6), steps=[1, 2, 5, 10], min_n_ticks=1))
    if "tickvals" not in settings:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}".replace("-", "−")))
    axis.set_label_text(safe(settings.get("title", "")))


def _wrapped(text: str, lines: int | None) -> str:
    """Wrap each line of a name. A very long one loses its middle, because names differ at their ends."""
    parts = [safe(part) for part in text.split("\n")]
    if lines is None:
        return "\n".join(parts)
    room = lines * NAME_CHARACTERS - 2
    parts = [part if len(part) <= room else f"{part[: room // 2]}…{part[-(room // 2) :]}" for part in parts]
    return "\n".join(line for part in parts for line in textwrap.wrap(part, NAME_CHARACTERS) or [part])


def _legend_mark(label: str, color: str, plot: Plot) -> Any:
    """Return the mark of a colour in a plot, with its label."""
    from matplotlib.lines import Line2D

    marks = [trace["marker"] for trace in plot.data if trace.get("marker", {}).get("color") == f"--{color}"]
    square = {"symbol": "square", "size": 10, "line": {"width": 0}}
    mark = next((mark for mark in marks if "symbol" in mark), square)
    return Line2D([], [], ls="none", label=short_name(label, 60), **_mark({**mark, "color": f"--{color}"}))
