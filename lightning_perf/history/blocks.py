"""The blocks of a history and of its gate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from itertools import chain, pairwise
from typing import TYPE_CHECKING

from lightning_perf.compare.records.metrics import METRICS, Metric, Scale
from lightning_perf.compare.verdicts.blocks import gate_table
from lightning_perf.compare.verdicts.gates import GateOutcome
from lightning_perf.show.blocks import (
    EVERY_ROW,
    Block,
    Cell,
    Chart,
    Details,
    Heading,
    Line,
    Plot,
    Table,
    TableRow,
    listing,
    note,
    table,
)
from lightning_perf.show.plots import band, draw_picture, line, points, upright
from lightning_perf.statistics.values import Estimate
from lightning_perf.units import (
    NOT_AVAILABLE,
    axis_unit,
    column_format,
    counted,
    format_change,
    format_points,
    format_share,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lightning_perf.history.document import History, LevelChange, Row, Series
    from lightning_perf.history.gate import HistoryGate

MOST_ROWS = 30
"""Rows of a series in the terminal and in Markdown: the newest ones. The JSON and the page have all."""

MOST_DRAWN = 6
"""Series of a picture. Further ones are only in the document."""

NEXT_STEP = "Compare this commit with the last good one in a study: blocks have less noise than a history."
SHOWN_COMMITS = 8
HASH_CHARACTERS = 12
TICK_CHARACTERS = 7


def history_blocks(history: History) -> Iterator[Block]:
    """Yield the blocks of a history: per series its changes, then its rows."""
    yield Line(headline(history), "strong")
    metric = METRICS[history.metric]
    for number, series in enumerate(history.series):
        yield Heading(_series_title(history, number))
        yield from listing(_series_lines(series))
        if len(series.rows) > 1:
            yield _chart(series, metric)
        yield from listing(_change_lines(series, metric))
        yield _rows(series, metric, MOST_ROWS)
    yield from listing(history.notes)


def history_parts(history: History) -> dict[str, Iterable[Block]]:
    """Return the blocks of each part of a history's page: the result, and each series with all its rows."""
    metric = METRICS[history.metric]
    facts = [history.store]
    facts += [f"since {history.since}"] if history.since else []
    facts += [f"may differ: {', '.join(history.allowed)}"] if history.allowed else []
    facts.append(f"{100 * history.confidence:.3g} % intervals")
    parts: dict[str, Iterable[Block]] = {
        "headline": [Line(headline(history), "strong"), Line(" · ".join(facts), "quiet"), *map(note, history.notes)]
    }
    parts["rows"] = (block for number in range(len(history.series)) for block in _series(history, number, metric))
    return parts


def history_picture(history: History) -> Figure:
    """Draw the trend of each series, of the newest ones if there are many."""
    metric, shown = METRICS[history.metric], history.series[:MOST_DRAWN]
    charts = ((Heading(series.name), _trend(series, metric)) for series in shown)
    more = len(history.series) - len(shown)
    head = headline(history) + (f" {more} more series are not drawn." if more else "")
    figure = draw_picture(chain.from_iterable(charts), head)
    assert figure is not None, "a history has at least one series"
    return figure


def _series(history: History, number: int, metric: Metric) -> Iterator[Block]:
    series = history.series[number]
    yield Heading(_series_title(history, number), definition="series-of-a-history")
    yield _trend(series, metric)
    yield from map(Line, _series_lines(series))
    for change in series.changes:
        yield Line(_change_sentence(change, series, metric), "bad" if change.worse else "good")
        summary, *commits = _commit_lines(change) or ("",)
        if commits:
            yield Details(summary, tuple(listing(commits)))
    yield _rows(series, metric, EVERY_ROW)


def _trend(series: Series, metric: Metric) -> Plot:
    """Return the rows with their ranges, the levels between changes, and the rows that each change may have been."""
    rows, changes = series.rows, series.changes
    factor, unit = axis_unit(metric.unit, max(row.high for row in rows))
    starts = [0, *(change.row for change in changes), len(rows)]
    traces = [
        line(
            [start - 0.4, end - 0.6],
            [factor * rows[start].level] * 2,
            (),
            "ink-soft",
            look={"width": 2},
            hoverinfo="skip",
        )
        for start, end in pairwise(starts)
    ]
    figures = column_format(metric.unit, [row.high for row in rows])
    texts = [
        f"{figures.value(row.value)} {figures.unit} ({counted(row.runs, 'run')})\n"
        f"{_row_name(row)}, {day(row.date_unix_s)}\n{row.subject or ''}"
        for row in rows
    ]
    ends = {
        "array": [factor * (row.high - row.value) for row in rows],
        "arrayminus": [factor * (row.value - row.low) for row in rows],
    }
    error = {"type": "data", "symmetric": False, **ends, "color": "--ink-soft", "thickness": 1, "width": 0}
    values = [factor * row.value for row in rows]
    traces.append(points(list(range(len(rows))), values, texts, "arm-1", error_y=error))
    shapes, annotations = [], []
    for change in changes:
        color = "high" if change.worse else "good"
        shapes += [
            band(change.earliest - 1, change.latest, f"{color}-soft"),
            upright(change.row - 0.5, color, width=1.5),
        ]
        place = {"x": change.row - 0.5, "yref": "paper", "y": 1, "yanchor": "bottom", "showarrow": False}
        text = change_text(change.estimate, metric).partition(" (")[0].partition(",")[0]
        annotations.append({**place, "text": text, "font": {"color": f"--{color}", "size": 12}})
    ticks = [f"{(row.commit or NOT_AVAILABLE)[:TICK_CHARACTERS]}\n{day(row.date_unix_s)[5:]}" for row in rows]
    look = {"tickangle": 0, "showgrid": False, "zeroline": False, "range": [-0.7, len(rows) - 0.3], "most": 10}
    better = "higher is better" if metric.higher_is_better else "lower is better"
    title = f"{metric.title}{f' ({unit})' if unit else ''}, {better}"
    found = ", ".join(
        f"{each['text']} at {short_commit(change.after)}" for each, change in zip(annotations, changes, strict=True)
    )
    outcome = f"Changes: {found}." if changes else "No change point."
    return Plot(
        f"{metric.title} of each commit on {series.name}. {outcome} The table has the figures.",
        tuple(traces),
        {
            "margin": {"l": 56, "r": 12, "t": 24, "b": 48},
            "shapes": shapes,
            "annotations": annotations,
            "xaxis": {"tickvals": list(range(len(rows))), "ticktext": ticks, **look},
            "yaxis": {"title": title, "measured": True, "zeroline": False},
        },
        height=300,
    )


def _rows(series: Series, metric: Metric, most: int) -> Table:
    """Return the newest rows, one per commit, the newest first."""
    figures = column_format(metric.unit, [row.high for row in series.rows])
    unit = f" ({figures.unit})" if figures.unit else ""
    changes = {change.row: _brief_change(change, metric) for change in series.changes}
    rows: list[TableRow] = []
    for number, row in enumerate(series.rows):
        values = (Cell(figures.value(value), value) for value in (row.value, row.low, row.high, row.level))
        name, date = _row_name(row), day(row.date_unix_s)
        rows.append((number + 1, name, row.subject or "", date, row.runs, *values, changes.get(number, "")))
    newest = f", the newest {most} of {len(rows)}" if len(rows) > most else ""
    return table(
        ("row", "commit", "message", "date", "runs", "value", "minimum", "maximum", "level", "change"),
        rows[::-1][:most],
        f"{_capital(metric.title)}{unit} of each commit{newest}",
        "count code text text count figure figure figure figure figure",
        definitions={"level": "level", "change": "change-point"},
        extra=("row", "message"),
    )


def gate_blocks(gate: HistoryGate) -> Iterator[Block]:
    """Yield the blocks of the outcome of gates."""
    against = f"the baseline {gate.baseline}" if gate.baseline is not None else "the history"
    name = short_commit(gate.commit) if gate.commit is not None else "the new runs"
    yield Line(f"{gate.outcome.value.capitalize()}: {name} against {against}.", "strong")
    yield from listing(_gate_lines(gate), indent=2)
    if gate.outcome is GateOutcome.INCONCLUSIVE:
        yield Line(NEXT_STEP, label="Next   ", label_style="strong")
    yield gate_table(gate.gates)
    yield from listing(gate.notes)


def headline(history: History) -> str:
    """Return the result in a sentence or two."""
    metric = METRICS[history.metric]
    title = metric.title if history.quality is None else f"{metric.title} ({history.quality})"
    worse, better = (
        sum(change.worse is side and change.confirmed is not False for one in history.series for change in one.changes)
        for side in (True, False)
    )
    found = ", ".join(
        f"{count} change{'' if count == 1 else 's'} for the {kind}"
        for count, kind in ((worse, "worse"), (better, "better"))
        if count
    )
    if any(change.confirmed is None for series in history.series for change in series.changes):
        found += ", not confirmed,"
    rows = sum(len(series.rows) for series in history.series)
    scope = f"{rows} row{'' if rows == 1 else 's'}"
    if len(history.series) > 1:
        scope += f" in {len(history.series)} series"
    return f"History of the {title}: {found or 'no change point'} in {scope}."


def _gate_lines(gate: HistoryGate) -> list[str]:
    lines = []
    for figure in gate.metrics:
        metric = METRICS[figure.metric]
        figures = column_format(metric.unit, [figure.value, figure.level])
        unit = f" {figures.unit}" if figures.unit else ""
        rows = f"{figure.rows} row{'' if figure.rows == 1 else 's'}"
        if figure.rows > 1:
            rows += f", {short_commit(figure.first)} to {short_commit(figure.last)}"
        lines.append(
            f"{_capital(metric.title)}: {figures.value(figure.value)}{unit}, the level of the history is "
            f"{figures.value(figure.level)}{unit} ({rows}): {change_text(figure.estimate, metric)}."
        )
    runs = f"{gate.runs} run{'' if gate.runs == 1 else 's'}"
    lines.append(f"{runs} on {gate.series}" if gate.series else runs)
    return lines


def _change_lines(series: Series, metric: Metric) -> Iterator[Line]:
    """Yield the changes, each with the commits that may have caused it, and the way to confirm the newest."""
    for change in series.changes:
        yield Line(_change_sentence(change, series, metric))
        yield from (Line(f"  {line}") for line in _commit_lines(change))
    if series.changes and series.changes[-1].confirmed is None:
        newest = series.changes[-1]
        yield Line(
            f"Confirm it: run {short_commit(newest.before)} again and add the run, or compare both with lightning-perf "
            f"gate --base {short_commit(newest.before)} --head {short_commit(newest.after)} -- COMMAND. Without that, "
            "a history cannot tell a change of the code from one of the machine at the same time."
        )


def _change_sentence(change: LevelChange, series: Series, metric: Metric) -> str:
    """Return one change point in a sentence or two."""
    mark = "Worse" if change.worse else "Better"
    if change.confirmed is None:
        mark = f"Possibly {mark.lower()}"
    elif not change.confirmed:
        mark = "The machine changed, because earlier commits that ran again are at the new level"
    at = f"{short_commit(change.after)} ({day(series.rows[change.row].date_unix_s)})"
    text = f"{mark}: the {metric.title} changed by {change_text(change.estimate, metric)} at {at}."
    if change.earliest == change.latest:
        return f"{text} The row before, {short_commit(change.before)}, had the old level."
    first, last = series.rows[change.earliest], series.rows[change.latest]
    return f"{text} It may have been any row from {short_commit(first.commit)} to {short_commit(last.commit)}."


def change_text(estimate: Estimate, metric: Metric) -> str:
    """Return a change with its interval."""
    show = format_points if metric.scale is Scale.DIFFERENCE else format_change
    if estimate.low is None or estimate.high is None:
        return f"{show(estimate.value)}, without an interval ({estimate.reason or 'unknown noise'})"
    level = f"{100 * estimate.confidence:.3g} %"
    return f"{show(estimate.value)} ({level} interval {show(estimate.low)} to {show(estimate.high)})"


def _commit_lines(change: LevelChange) -> tuple[str, ...]:
    """Return the commits that may have caused a change, the newest ones if there are many."""
    if change.commit_count is None:
        return ()
    shown = change.commits[-SHOWN_COMMITS:]
    hidden = change.commit_count - len(shown)
    lines = [f"Commits in question: {change.commit_count}"]
    lines += [f"… {hidden} earlier"] if hidden else []
    return (*lines, *(f"{short_commit(commit.commit)} {commit.subject or ''}".rstrip() for commit in shown))


def _row_name(row: Row) -> str:
    return short_commit(row.commit) + (f" [{', '.join(row.baselines)}]" if row.baselines else "")


def _brief_change(change: LevelChange, metric: Metric) -> Cell:
    show = format_points if metric.scale is Scale.DIFFERENCE else format_change
    text = f"{'worse' if change.worse else 'better'} {show(change.estimate.value)}"
    return Cell(text, change.estimate.value, bool(change.worse), "bad" if change.worse else "good")


def _series_title(history: History, number: int) -> str:
    series = history.series[number]
    return series.name if len(history.series) == 1 else f"Series {number + 1}: {series.name}"


def _series_lines(series: Series) -> list[str]:
    lines = []
    if series.differs:
        parts = [
            f"{one.fact} ({', '.join(one.candidate)}, there {', '.join(one.baseline)})" for one in series.differs[:3]
        ]
        more = len(series.differs) - len(parts)
        parts += [f"{more} more facts"] if more else []
        lines.append(f"A series of its own, because it differs from series 1 in {', '.join(parts)}.")
    if series.noise is not None:
        lines.append(f"Rows vary by {format_share(series.noise)} around their level.")
    if series.note:
        lines.append(series.note)
    return lines


def _chart(series: Series, metric: Metric) -> Chart:
    rows = series.rows
    return Chart(
        metric.title,
        metric.unit,
        tuple(row.value for row in rows),
        tuple(row.level for row in rows),
        tuple(change.row for change in series.changes),
        (day(rows[0].date_unix_s), day(rows[-1].date_unix_s)),
    )


def short_commit(commit: str | None) -> str:
    """Return the first characters of a commit; uncommitted changes stay visible as a plus sign."""
    if commit is None:
        return NOT_AVAILABLE
    base, plus, _ = commit.partition("+")
    return base[:HASH_CHARACTERS] + plus


def day(unix_s: float) -> str:
    """Return a date in UTC."""
    return f"{datetime.fromtimestamp(unix_s, timezone.utc):%Y-%m-%d}"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
