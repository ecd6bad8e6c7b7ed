"""Draw the trend of a history as a picture."""

from __future__ import annotations

import io
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_perf.compare.records.metrics import METRICS, Metric
from lightning_perf.history.blocks import change_text, headline, short_commit
from lightning_perf.history.entries import HistoryError
from lightning_perf.lazy_imports import import_extra
from lightning_perf.run_files.atomic import write_named_file
from lightning_perf.show.terminal_text import safe
from lightning_perf.units import axis_unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lightning_perf.history.document import History, Series

MOST_SERIES = 6
"""Panels of a picture. Further series are only in the document."""

PANEL_INCHES = 2.6
MOST_TICKS = 12
WORSE, BETTER, POINT = "#D55E00", "#009E73", "#0072B2"


def draw_history(history: History) -> Figure:
    """Draw one panel per series: rows, levels, and changes with the interval of their place."""
    import_extra("matplotlib", "compare")
    from lightning_perf.compare.plots.style import drawing, new_figure

    shown = history.series[:MOST_SERIES]
    metric = METRICS[history.metric]
    with drawing():
        figure = new_figure(0.5 + PANEL_INCHES * len(shown))
        panels = figure.subplots(len(shown), 1, squeeze=False)[:, 0]
        for axes, series in zip(panels, shown, strict=True):
            _draw_series(axes, series, metric)
        more = len(history.series) - len(shown)
        title = headline(history) + (f" {more} more series are not drawn." if more else "")
        figure.suptitle(safe(title), x=0.012, ha="left", fontsize=11, fontweight="bold", wrap=True)
    return figure


def save_plot(history: History, path: Path) -> None:
    """Draw and save the picture; see `History.save_plot`."""
    figure = draw_history(history)
    from lightning_perf.compare.plots.style import drawing

    stream = io.BytesIO()
    with drawing():
        figure.savefig(stream, format=path.suffix.lstrip(".").lower(), dpi=150)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_named_file(path, stream.getvalue())
    except OSError as error:
        raise HistoryError(f"{path}: cannot be written ({error.strerror}). Give another file.") from error


def _draw_series(axes: Any, series: Series, metric: Metric) -> None:
    from lightning_perf.compare.plots.style import FAINT, hide_frame, number_axis

    factor, unit = axis_unit(metric.unit, max(row.high for row in series.rows))
    places = range(len(series.rows))
    values = [factor * row.value for row in series.rows]
    lows = [value - factor * row.low for value, row in zip(values, series.rows, strict=True)]
    highs = [factor * row.high - value for value, row in zip(values, series.rows, strict=True)]
    for change in series.changes:
        color = WORSE if change.worse else BETTER
        axes.axvspan(change.earliest - 1, change.latest, color=color, alpha=0.15, linewidth=0)
        axes.axvline(change.row - 0.5, color=color, linewidth=1.2)
        text = change_text(change.estimate, metric).partition(" (")[0]
        axes.annotate(
            text, (change.row - 0.5, 1), xycoords=("data", "axes fraction"), xytext=(3, -2),
            textcoords="offset points", va="top", color=color, fontsize=8.5,
        )  # fmt: skip
    starts = [0, *(change.row for change in series.changes), len(series.rows)]
    for start, end in pairwise(starts):
        axes.plot([start - 0.4, end - 0.6], [factor * series.rows[start].level] * 2, color=FAINT, linewidth=1.4)
    axes.errorbar(
        places, values, yerr=[lows, highs], fmt="o", color=POINT, ecolor=FAINT, markersize=4.5, elinewidth=1,
    )  # fmt: skip
    every = max(1, -(-len(series.rows) // MOST_TICKS))
    ticks = list(places)[::every]
    dates = [datetime.fromtimestamp(series.rows[n].date_unix_s, timezone.utc) for n in ticks]
    names = [
        f"{safe(short_commit(series.rows[n].commit)[:7])}\n{date:%m-%d}" for n, date in zip(ticks, dates, strict=True)
    ]
    axes.set_xticks(ticks, names, fontsize=8)
    axes.set_xlim(-0.7, len(series.rows) - 0.3)
    axes.set_ylabel(f"{metric.title} ({unit})" if unit else metric.title)
    axes.set_title(safe(series.name), loc="left", fontsize=9.5, color="#555555")
    number_axis(axes.yaxis, 5)
    hide_frame(axes, grid="y")
