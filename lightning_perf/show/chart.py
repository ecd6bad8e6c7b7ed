"""A chart as lines of characters."""

from __future__ import annotations

from itertools import pairwise

from lightning_perf.show.blocks import Chart
from lightning_perf.units import column_format

HEIGHT = 9
MOST_COLUMNS = 110


def draw_chart(chart: Chart, width: int) -> list[str]:
    """Return the lines of a chart with an axis on its left, at most as wide as the terminal."""
    low, high = min(chart.values), max(chart.values)
    figures = column_format(chart.unit, [low, high])
    room = high - low or abs(high) or 1.0
    labels = [figures.value(high - room * line / (HEIGHT - 1)) for line in range(HEIGHT)]
    margin = max(map(len, labels))
    available = min(width, MOST_COLUMNS) - margin - 1
    last = len(chart.values) - 1
    # The same distance between all points; more points than columns share columns.
    columns = last * min(6, (available - 1) // last) + 1
    columns = columns if columns > 1 else available
    grid = [[" "] * columns for _ in range(HEIGHT)]

    def column(number: int) -> int:
        return round(number * (columns - 1) / last)

    def line(value: float) -> int:
        return min(HEIGHT - 1, max(0, round((high - value) / room * (HEIGHT - 1))))

    for start, end in pairwise([0, *chart.breaks, len(chart.values)]):
        for place in range(column(start), column(end - 1) + 1):
            grid[line(chart.levels[start])][place] = "─"
    for start in chart.breaks:
        place = (column(start - 1) + column(start)) // 2
        for row in grid:
            row[place] = "│"
    for number, value in enumerate(chart.values):
        grid[line(value)][column(number)] = "•"
    lines = [f"{label:>{margin}} {''.join(cells).rstrip()}" for label, cells in zip(labels, grid, strict=True)]
    first, end_label = chart.ends
    gap = max(1, columns - len(first) - len(end_label))
    head = f"{chart.title}{f' ({figures.unit})' if figures.unit else ''}"
    return [head, *lines, f"{'':>{margin}} {first}{' ' * gap}{end_label}"]
