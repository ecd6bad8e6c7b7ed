"""Render a sweep as a table on the console, as Markdown and as a plot."""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING

from rich import box
from rich.table import Table

from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.results.plot import name_points
from lightning_perf.inference.sweep.document import Sweep, SweepRow
from lightning_perf.lazy_imports import import_extra
from lightning_perf.report.console.render import ReportConsole
from lightning_perf.tables import Table as TextTable
from lightning_perf.tables import escape, markdown_table
from lightning_perf.terminal_text import plain
from lightning_perf.units import (
    NOT_AVAILABLE,
    format_count,
    format_flop_rate,
    format_milliseconds,
    format_ratio,
    format_share,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_sweep", "print_sweep", "render_markdown", "save_plot"]

_HEADS = ("backbone", "params", "MACs", "median", "p90", "inputs/s", "speed", "of peak")


def print_sweep(sweep: Sweep, *, file: IO[str] | None, width: int | None) -> None:
    """Print a sweep; see `Sweep.print`."""
    console = ReportConsole(file=file, width=width, highlight=False)
    grid = Table(
        title=_title(sweep),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    grid.add_column(_HEADS[0], overflow="fold")
    for head in _HEADS[1:]:
        grid.add_column(head, justify="right", no_wrap=True)
    for row in sweep.rows:
        if row.latency is not None:
            grid.add_row(*(plain(cell) for cell in _cells(row)))
    console.print(grid)
    for line in _footnotes(sweep):
        console.print(plain(line))


def render_markdown(sweep: Sweep) -> str:
    """Return a sweep as Markdown; see `Sweep.to_markdown`."""
    rows = tuple(_cells(row) for row in sweep.rows if row.latency is not None)
    parts = [
        f"### {escape(_title(sweep))}",
        markdown_table(TextTable(_title(sweep), _HEADS, rows)),
        "\n".join(f"- {escape(line)}" for line in _footnotes(sweep)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _title(sweep: Sweep) -> str:
    shape = "×".join(map(str, sweep.input_shape))
    threads = "" if sweep.peaks.threads is None else f", {sweep.threads} thread{'s' if sweep.threads > 1 else ''}"
    return f"Untrained backbones, float32, input {shape}, batch {sweep.batch}, {sweep.machine.device}{threads}"


def _cells(row: SweepRow) -> tuple[str, ...]:
    latency = row.latency
    assert latency is not None
    speedup = None if latency.speedup is None else latency.speedup.value
    return (
        row.name,
        _scaled(row.parameters),
        ("≥ " if row.uncounted else "") + _scaled(row.macs),
        format_milliseconds(latency.p50_ms),
        format_milliseconds(latency.p90_ms),
        format_count(float(f"{latency.throughput:.3g}")),
        "1×" if latency.speedup is None else format_ratio(speedup),
        format_share(row.efficiency),
    )


def _scaled(count: int | None) -> str:
    """Format a large count with a prefix, e.g. 1.81 G."""
    return NOT_AVAILABLE if count is None else format_flop_rate(count).removesuffix("FLOP/s").strip()


def _footnotes(sweep: Sweep) -> list[str]:
    peaks = sweep.peaks
    lines = [f"{row.name}: {row.reason}" for row in sweep.rows if row.reason is not None]
    first = next((row.name for row in sweep.rows if row.latency is not None and row.latency.speedup is None), None)
    if first is not None:
        lines.append(f"speed: speed-up over {first}.")
    if sweep.noise is not None and sweep.noise.low is not None and sweep.noise.high is not None:
        lines.append(
            f"{first} against itself: {format_ratio(sweep.noise.low)} to {format_ratio(sweep.noise.high)}. "
            "Smaller differences are noise."
        )
    rates = format_flop_rate(peaks.flops_per_s)
    if peaks.convolution_flops_per_s is not None:
        rates += f", for convolutions {format_flop_rate(peaks.convolution_flops_per_s)}"
    lines.append(f"of peak: shortest possible time at {rates} ({peaks.source}), divided by the median.")
    if sweep.macs_correlation is not None:
        lines.append(f"Rank correlation of MACs and median latency: {sweep.macs_correlation:.2f}.")
    return lines


def draw_sweep(sweep: Sweep) -> Figure:
    """Draw median latency against MACs, both logarithmic, with a line at the peak rate.

    The area of a point shows its size; the bar goes from the 10th to the 90th percentile of the calls.

    Args:
        sweep: The document.

    Returns:
        The figure; save it within `lightning_perf.compare.plots.style.drawing`.

    Raises:
        InferenceError: No backbone has a latency.
        MissingExtraError: matplotlib is not installed.
    """
    import_extra("matplotlib", "compare")
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    from lightning_perf.compare.plots.style import FAINT, drawing, hide_frame, new_figure, short_name

    rows = [row for row in sweep.rows if row.latency is not None and row.macs]
    if not rows:
        raise InferenceError("There is nothing to plot: no backbone has a latency.")
    with drawing():
        figure = new_figure(5.5)
        axes = figure.subplots()
        macs = [(row.macs or 0) / 1e9 for row in rows]
        rate = max(sweep.peaks.flops_per_s, sweep.peaks.convolution_flops_per_s or 0.0)
        line = [2e12 * ends / rate for ends in (min(macs), max(macs))]
        axes.plot([min(macs), max(macs)], line, color=FAINT, linestyle="--", label="at the peak rate of arithmetic")
        points: list[tuple[str, float, float]] = []
        for row, x in zip(rows, macs, strict=True):
            latency = row.latency
            assert latency is not None
            high = latency.p50_ms if latency.p90_ms is None else latency.p90_ms
            axes.plot([x, x], [latency.p10_ms, high], color="#0072B2", linewidth=1.5, alpha=0.6, zorder=2)
            axes.scatter(
                [x], [latency.p50_ms], s=20 + 4 * (row.size_bytes or 0) / 2**20, color="#0072B2", alpha=0.5, zorder=3
            )
            points.append((short_name(row.name), x, latency.p50_ms))
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())
        axes.margins(x=0.15, y=0.1)
        hide_frame(axes, grid="both")
        axes.set_xlabel("multiply-accumulates of the batch (G)")
        axes.set_ylabel("median latency (ms), bar from p10 to p90")
        axes.set_title(f"{_title(sweep)}\narea = size of the weights", fontsize=9.5, loc="left")
        axes.legend(loc="lower right", frameon=False)
        name_points(figure, axes, points)
    return figure


def save_plot(sweep: Sweep, path: Path) -> None:
    """Draw and save the plot; see `Sweep.save_plot`."""
    figure = draw_sweep(sweep)
    from lightning_perf.compare.plots.style import drawing

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with drawing():
            figure.savefig(path, dpi=150)
    except OSError as error:
        raise InferenceError(f"{path} cannot be written ({error.strerror}). Give another file.") from error
    except ValueError as error:  # an unknown suffix; the message lists the known ones
        raise InferenceError(f"{path}: {error}") from error
