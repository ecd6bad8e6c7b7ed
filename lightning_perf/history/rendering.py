"""A history and its gate on the console and as Markdown."""

from __future__ import annotations

from datetime import datetime, timezone
from itertools import pairwise
from typing import IO

from rich.text import Text

from lightning_perf.compare.records.metrics import METRICS, Metric, Scale
from lightning_perf.compare.render.tables import judged_table
from lightning_perf.compare.verdicts.gates import GateOutcome
from lightning_perf.history.document import Commit, History, LevelChange, Row, Series
from lightning_perf.history.gate import HistoryGate
from lightning_perf.report.console.render import ReportConsole
from lightning_perf.statistics.values import Estimate
from lightning_perf.tables import Table, escape, markdown_table, print_table
from lightning_perf.terminal_text import plain
from lightning_perf.units import (
    NOT_AVAILABLE,
    column_format,
    format_change,
    format_points,
    format_share,
)

__all__ = [
    "change_sentence",
    "change_text",
    "day",
    "print_gate",
    "print_history",
    "render_gate",
    "render_markdown",
    "short_commit",
]

MOST_ROWS = 30
"""Rows of a series in the terminal and in Markdown: the newest ones. The JSON and the page have all."""

CHART_HEIGHT = 9
CHART_WIDTH = 110
NEXT_STEP = "Compare this commit with the last good one in a study: blocks have less noise than a history."
SHOWN_COMMITS = 8
HASH_CHARACTERS = 12


def print_history(history: History, *, file: IO[str] | None, width: int | None) -> None:
    """Print a history; see `History.print`."""
    console = ReportConsole(file=file, width=width, highlight=False)
    console.print(plain(headline(history), "bold"))
    for number, series in enumerate(history.series):
        console.print()
        console.print(plain(_series_title(history, number), "bold"))
        for line in _series_lines(series):
            console.print(plain(line))
        chart = trend_chart(series, METRICS[history.metric], console.width)
        if chart:
            console.print()
            for line in chart:
                console.print(Text(line, no_wrap=True, overflow="crop"))
        console.print()
        for change in series.changes:
            console.print(plain(change_sentence(change, series, METRICS[history.metric])))
            for line in commit_lines(change):
                console.print(plain(f"  {line}"))
        if series.changes:
            console.print(plain(confirm_sentence(series)))
        print_table(row_table(history, series), console)
    for note in history.notes:
        console.print(plain(note))


def render_markdown(history: History) -> str:
    """Return a history as Markdown; see `History.to_markdown`."""
    parts = [f"**{escape(headline(history))}**"]
    for number, series in enumerate(history.series):
        parts.append(f"### {escape(_series_title(history, number))}")
        lines = [*_series_lines(series)]
        for change in series.changes:
            lines.append(change_sentence(change, series, METRICS[history.metric]))
            lines += commit_lines(change)
        if series.changes:
            lines.append(confirm_sentence(series))
        parts.append("\n".join(f"- {escape(line)}" for line in lines))
        parts.append(markdown_table(row_table(history, series)))
    parts.append("\n".join(f"- {escape(note)}" for note in history.notes))
    return "\n\n".join(part for part in parts if part) + "\n"


def print_gate(gate: HistoryGate, *, file: IO[str] | None, width: int | None) -> None:
    """Print the outcome of gates; see `HistoryGate.print`."""
    console = ReportConsole(file=file, width=width, highlight=False)
    console.print(plain(gate_headline(gate), "bold"))
    for line in _gate_lines(gate):
        console.print(plain(f"  {line}"))
    if gate.outcome is GateOutcome.INCONCLUSIVE:
        console.print(Text("Next     ", style="bold") + plain(NEXT_STEP))
    console.print()
    print_table(judged_table(gate.gates), console)
    for note in gate.notes:
        console.print(plain(note))


def render_gate(gate: HistoryGate) -> str:
    """Return the outcome of gates as Markdown; see `HistoryGate.to_markdown`."""
    parts = [f"**{escape(gate_headline(gate))}**", "\n".join(f"- {escape(line)}" for line in _gate_lines(gate))]
    if gate.outcome is GateOutcome.INCONCLUSIVE:
        parts.append(f"Next: {escape(NEXT_STEP)}")
    parts += [markdown_table(judged_table(gate.gates)), "\n".join(f"- {escape(note)}" for note in gate.notes)]
    return "\n\n".join(part for part in parts if part) + "\n"


def headline(history: History) -> str:
    """Return the result in a sentence or two."""
    metric = METRICS[history.metric]
    title = metric.title if history.quality is None else f"{metric.title} ({history.quality})"
    worse, better = (
        sum(change.worse is side for series in history.series for change in series.changes) for side in (True, False)
    )
    found = ", ".join(
        f"{count} change{'' if count == 1 else 's'} for the {kind}"
        for count, kind in ((worse, "worse"), (better, "better"))
        if count
    )
    rows = sum(len(series.rows) for series in history.series)
    scope = f"{rows} row{'' if rows == 1 else 's'}"
    if len(history.series) > 1:
        scope += f" in {len(history.series)} series"
    return f"History of the {title}: {found or 'no change point'} in {scope}."


def gate_headline(gate: HistoryGate) -> str:
    """Return the outcome of all gates in a sentence."""
    against = f"the baseline {gate.baseline}" if gate.baseline is not None else "the history"
    name = short_commit(gate.commit) if gate.commit is not None else "the new runs"
    return f"{gate.outcome.value.capitalize()}: {name} against {against}."


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


def change_sentence(change: LevelChange, series: Series, metric: Metric) -> str:
    """Return one change point in a sentence or two."""
    mark = "Worse" if change.worse else "Better"
    at = f"{short_commit(change.after)} ({day(series.rows[change.row].date_unix_s)})"
    text = f"{mark}: the {metric.title} changed by {change_text(change.estimate, metric)} at {at}."
    if change.earliest == change.latest:
        return f"{text} The row before, {short_commit(change.before)}, had the old level."
    first, last = series.rows[change.earliest], series.rows[change.latest]
    return f"{text} It may have been any row from {short_commit(first.commit)} to {short_commit(last.commit)}."


def confirm_sentence(series: Series) -> str:
    """Return the advice to measure the commits around the newest change side by side."""
    change = series.changes[-1]
    return (
        f"Confirm it with lightning-perf gate --base {short_commit(change.before)} --head {short_commit(change.after)} "
        "-- COMMAND: a history cannot tell a change of the code from one of the machine at the same time."
    )


def change_text(estimate: Estimate, metric: Metric) -> str:
    """Return a change with its interval."""
    show = format_points if metric.scale is Scale.DIFFERENCE else format_change
    if estimate.low is None or estimate.high is None:
        return f"{show(estimate.value)}, without an interval ({estimate.reason or 'unknown noise'})"
    level = f"{100 * estimate.confidence:.3g} %"
    return f"{show(estimate.value)} ({level} interval {show(estimate.low)} to {show(estimate.high)})"


def commit_lines(change: LevelChange) -> tuple[str, ...]:
    """Return the commits that may have caused a change, the newest ones if there are many."""
    if change.commit_count is None:
        return ()
    shown = change.commits[-SHOWN_COMMITS:]
    hidden = change.commit_count - len(shown)
    lines = [f"Commits in question: {change.commit_count}"]
    lines += [f"… {hidden} earlier"] if hidden else []
    return (*lines, *map(_commit_line, shown))


def _commit_line(commit: Commit) -> str:
    return f"{short_commit(commit.commit)} {commit.subject or ''}".rstrip()


def row_table(history: History, series: Series) -> Table:
    """Return the table with a row per commit, the newest last."""
    metric = METRICS[history.metric]
    figures = column_format(metric.unit, [row.high for row in series.rows])
    unit = f" ({figures.unit})" if figures.unit else ""
    heads = ("commit", "date", "runs", f"{metric.title}{unit}", "min", "max", "level", "change")
    changes = {change.row: change for change in series.changes}
    first = max(0, len(series.rows) - MOST_ROWS)
    rows = [
        (
            _row_name(row),
            day(row.date_unix_s),
            str(row.runs),
            figures.value(row.value),
            figures.value(row.low) if row.runs > 1 else "",
            figures.value(row.high) if row.runs > 1 else "",
            figures.value(row.level),
            _brief_change(changes[number], metric) if number in changes else "",
        )
        for number, row in enumerate(series.rows)
        if number >= first
    ]
    title = f"The newest {MOST_ROWS} of {len(series.rows)} rows" if first else "Rows"
    return Table(title, heads, tuple(rows))


def _row_name(row: Row) -> str:
    names = f" [{', '.join(row.baselines)}]" if row.baselines else ""
    return short_commit(row.commit) + names


def _brief_change(change: LevelChange, metric: Metric) -> str:
    show = format_points if metric.scale is Scale.DIFFERENCE else format_change
    return f"{'worse' if change.worse else 'better'} {show(change.estimate.value)}"


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


def trend_chart(series: Series, metric: Metric, width: int) -> list[str]:
    """Return a chart of the rows for the terminal: a point per row, a line per level, a mark per change.

    Args:
        series: The series.
        metric: Its metric.
        width: Columns of the terminal.

    Returns:
        The lines; none for fewer than two rows.
    """
    rows = series.rows
    if len(rows) < 2:
        return []
    low, high = min(row.value for row in rows), max(row.value for row in rows)
    figures = column_format(metric.unit, [low, high])
    room = high - low or abs(high) or 1.0
    labels = [figures.value(high - room * line / (CHART_HEIGHT - 1)) for line in range(CHART_HEIGHT)]
    margin = max(map(len, labels))
    room_for_rows = min(width, CHART_WIDTH) - margin - 1
    # The same distance between all rows; more rows than columns share columns.
    columns = (len(rows) - 1) * min(6, (room_for_rows - 1) // (len(rows) - 1)) + 1
    columns = columns if columns > 1 else room_for_rows
    grid = [[" "] * columns for _ in range(CHART_HEIGHT)]

    def column(number: int) -> int:
        return round(number * (columns - 1) / (len(rows) - 1))

    def line(value: float) -> int:
        return min(CHART_HEIGHT - 1, max(0, round((high - value) / room * (CHART_HEIGHT - 1))))

    starts = [0, *(change.row for change in series.changes), len(rows)]
    for start, end in pairwise(starts):
        for place in range(column(start), column(end - 1) + 1):
            grid[line(rows[start].level)][place] = "─"
    for change in series.changes:
        place = (column(change.row - 1) + column(change.row)) // 2
        for row_of_grid in grid:
            row_of_grid[place] = "│"
    for number, row in enumerate(rows):
        grid[line(row.value)][column(number)] = "•"
    head = f"{metric.title}{f' ({figures.unit})' if figures.unit else ''}"
    lines = [f"{label:>{margin}} {''.join(cells).rstrip()}" for label, cells in zip(labels, grid, strict=True)]
    first, last = day(rows[0].date_unix_s), day(rows[-1].date_unix_s)
    gap = max(1, columns - len(first) - len(last))
    return [head, *lines, f"{'':>{margin}} {first}{' ' * gap}{last}"]


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
