"""Blocks as text on a terminal: in colour there, as plain text anywhere else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, Any, cast

from msgspec import Struct
from rich import box
from rich.bar import Bar
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.style import Style
from rich.table import Table as Grid
from rich.text import Text

from lightning_perf.show.blocks import (
    Block,
    Cell,
    Chart,
    Code,
    Column,
    Context,
    Details,
    Heading,
    Line,
    Listing,
    Span,
    Table,
    as_text,
)
from lightning_perf.show.terminal_text import UNBREAKABLE, ascii_fallback, plain, prose, shorten
from lightning_perf.units import column_format

STYLES = {
    "plain": "",
    "strong": "bold",
    "quiet": "dim",
    "good": "green",
    "warning": "yellow",
    "bad": "bold red",
    "command": "cyan",
}
"""The styles of blocks. Sixteen colours are enough."""

NAMES = ("name", "code")

BAR_WIDTH = 16

BARS_FROM = 76
"""From this number of columns on, a terminal has room for bars next to names and figures."""

LEAST_NAME = 12
"""Columns that a name keeps in a table on a narrow terminal."""

PADDING = 2
"""Columns between two columns of a table with a title, and a margin."""

_TRAILING = re.compile(r" +$", re.MULTILINE)


def print_blocks(blocks: Iterable[Block], *, file: IO[str] | None = None, width: int | None = None) -> None:
    """Print blocks to a file, standard output by default, in the width of the terminal or another one."""
    _print(blocks, ReportConsole(file=file, width=width, highlight=False, emoji=False, markup=False))


class ReportConsole(Console):
    """A console with a reader that may close the pipe, or a stream that cannot encode Unicode."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, with spaces for the blanks at which lines must not break."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text.replace(UNBREAKABLE, " "), style, control)

    @property
    def file(self) -> IO[str]:
        """Return the stream that it prints to, which replaces characters that cannot be shown there."""
        return cast(IO[str], _LegibleStream(super().file))

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def on_broken_pipe(self) -> None:
        """Leave the error to the caller. rich would end the process, which may be a training."""
        raise


@dataclass(frozen=True)
class _LegibleStream:
    """A stream that replaces characters outside its encoding and, except on a terminal, strips trailing blanks."""

    stream: IO[str]

    def write(self, text: str) -> int:
        if not self.stream.isatty():
            text = _TRAILING.sub("", text)
        return self.stream.write(ascii_fallback(text, getattr(self.stream, "encoding", None)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _print(blocks: Iterable[Block], console: Console) -> None:
    before: Block | None = None
    for block in _flat(blocks):
        if isinstance(block, Heading):
            if not (isinstance(before, Table) and before.title):  # its frame ends with an empty line
                console.print()
            console.print(plain(block.line, "bold"))
        elif isinstance(block, Line):
            console.print(_line(block), soft_wrap=block.copied)
        elif isinstance(block, Listing):
            for line in block.lines:
                item = _hanging(block.marker, "", _text(line), 1) if block.marker else _line(line)
                console.print(Padding(item, (0, 0, 0, block.indent)))
        elif isinstance(block, Table):
            if block.title:
                if before is not None and before != Line() and not isinstance(before, (Table, Heading, Chart)):
                    console.print()
                _print_framed(block, console)
            else:
                console.print(_compact(block, console.width))
        elif isinstance(block, Code):
            for text in block.lines:
                console.print(plain(f"  {text}"), soft_wrap=True)
        elif isinstance(block, Chart):
            console.print()
            for text in draw_chart(block, console.width):
                console.print(Text(text, no_wrap=True, overflow="crop"))
            console.print()
        before = block


def _flat(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield the blocks that a terminal shows: nothing is folded there, and the context is known."""
    for block in as_text(blocks):
        if isinstance(block, Details):
            yield from _flat(block.blocks)
        elif not isinstance(block, Context):
            yield block


def _line(line: Line) -> RenderableType:
    return _hanging(line.label, STYLES[line.label_style], _text(line), line.gap) if line.label else _text(line)


def _text(line: Line) -> Text:
    return Text.assemble(*(_span(span, plain if line.copied else prose) for span in line.spans))


def _span(span: Span, made: Callable[[str, str], Text]) -> Text:
    text = made(span.text, STYLES[span.style])
    if span.link is not None:
        text.stylize(Style(link=span.link))
    return text


def _hanging(label: str, style: str, text: Text, gap: int) -> RenderableType:
    """Return a label and its text. Further lines of the text begin below its first line, not below the label."""
    grid = Grid.grid(padding=(0, gap))
    grid.add_column(style=style, no_wrap=True)
    grid.add_column(overflow="fold")  # otherwise rich cuts a line with wide characters that ends in a blank
    grid.add_row(plain(label), text)
    return grid


def _print_framed(table: Table, console: Console) -> None:
    """Print a table below its title."""
    cells = zip(*([prose(_indented(cell.text)) for cell in row] for row in table.rows), strict=True)
    columns = [[plain(column.head), *texts] for column, texts in zip(table.columns, cells, strict=True)]
    console.print(plain(table.title, "bold"))  # the title of a grid would wrap to its width
    for part in _fitting(columns, console):
        grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
        for texts, width in part:
            grid.add_column(texts[0], justify="right" if grid.columns else "left", overflow="fold", width=width)
        for row in zip(*(texts[1:] for texts, _ in part), strict=True):
            grid.add_row(*row)
        console.print(grid)


def _indented(text: str) -> str:
    """Return text that does not wrap between its indentation and its first word."""
    start = text.lstrip(" ")
    return UNBREAKABLE * (len(text) - len(start)) + start


def _fitting(columns: Sequence[list[Text]], console: Console) -> list[list[tuple[list[Text], int | None]]]:
    """Return columns with widths that break no word, in several tables if they are too wide for one.

    Each table begins with the first column. Two columns are not split further, and rich breaks their words.
    """
    measures = [[Measurement.get(console, console.options, text) for text in texts] for texts in columns]
    widths = [max(measure.minimum for measure in of) for of in measures]
    available = console.width - PADDING * len(columns)
    if sum(widths) > available:
        middle = 1 + len(columns) // 2
        halves = (columns[:middle], [columns[0], *columns[middle:]]) if len(columns) > 2 else ()
        return [part for half in halves for part in _fitting(half, console)] or [[(texts, None) for texts in columns]]
    whole = [max(measure.maximum for measure in of) for of in measures]
    for _ in range(min(available, sum(whole)) - sum(widths)):
        widths[max(range(len(widths)), key=lambda number: whole[number] - widths[number])] += 1  # that lacks most
    return [list(zip(columns, widths, strict=True))]


def _compact(table: Table, width: int) -> Grid:
    """Return a table without a frame. On a narrow terminal, names are shortened; if that is too little, heads wrap."""
    headed = any(column.head for column in table.columns)
    bars = width >= BARS_FROM
    texts = [max((len(row[place].text) for row in table.rows), default=0) for place in range(len(table.columns))]
    least = [
        LEAST_NAME if column.kind in NAMES else max(len(column.head), text)
        for column, text in zip(table.columns, texts, strict=True)
    ]
    fits = sum(least) + 2 * (len(least) - 1) <= width
    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_header=headed)
    barred = [
        bars and column.kind == "share" and any(row[place].bar is not None for row in table.rows)
        for place, column in enumerate(table.columns)
    ]
    for column, text, has_bars in zip(table.columns, texts, barred, strict=True):
        if column.kind in NAMES:
            grid.add_column(column.head, min_width=LEAST_NAME)
        elif column.has_figures:
            wrapped = max(text, *map(len, column.head.split()), 0)
            grid.add_column(column.head, justify="right", no_wrap=fits, width=None if fits else wrapped)
        else:
            grid.add_column(column.head)
        if has_bars:
            grid.add_column("", width=BAR_WIDTH)
    for row in table.rows:
        cells: list[RenderableType] = []
        for cell, column, has_bars in zip(row, table.columns, barred, strict=True):
            cells.append(_cell(cell, column))
            if has_bars:
                cells.append(Bar(1.0, 0.0, cell.bar or 0.0, width=BAR_WIDTH, color="cyan"))
        grid.add_row(*cells)
    return grid


def _cell(cell: Cell, column: Column) -> RenderableType:
    text = plain(cell.text, "yellow" if cell.troubled else STYLES[cell.style])
    if cell.detail:
        text.append_text(plain(cell.detail, "dim"))
    return _Name(text) if column.kind in NAMES else text


class _Name(Struct, frozen=True):
    """A name in a table: one line, cut in the middle to the available width."""

    text: Text

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        least = min(self.text.cell_len, LEAST_NAME)
        return Measurement(least, self.text.cell_len).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.text.cell_len <= options.max_width:
            yield self.text
        else:
            short = shorten(self.text.plain, options.max_width)
            yield Text(short, self.text.style, no_wrap=True, overflow="ellipsis")


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
