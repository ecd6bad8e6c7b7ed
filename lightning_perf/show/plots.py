"""Traces, axes and marks of charts as Plotly's values, see `lightning_perf.show.blocks.Plot`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from lightning_perf.units import format_duration

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
