"""Blocks as text on a terminal: in colour there, as plain text anywhere else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, Any, TypeAlias, cast

from msgspec import Struct
from rich import box
from rich.bar import Bar
from rich.cells import cell_len
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
                console.print(_compact(block, bars=console.width >= BARS_FROM))
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
    grid.add_column()
    grid.add_row(plain(label), text)
    return grid


def _print_framed(table: Table, console: Console) -> None:
    """Print a table below its title. Too wide a table is folded."""
    heads = tuple(plain(column.head).plain for column in table.columns)
    rows = [tuple(prose(cell.text).plain for cell in row) for row in table.rows]
    for number, part in enumerate(fit([heads, *rows], console.width, PADDING)):
        title = None if number else plain(table.title)
        grid = Grid(
            title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False,
            padding=(0, 0, 0, 1),
        )  # fmt: skip
        for place, head in enumerate(part[0]):
            grid.add_column(Text(head), justify="right" if place else "left", overflow="fold")
        for row in part[1:]:
            grid.add_row(*map(Text, row))
        console.print(grid)


def _compact(table: Table, *, bars: bool) -> Grid:
    """Return a table without a frame. On a narrow terminal, names are shortened."""
    headed = any(column.head for column in table.columns)
    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_header=headed)
    barred = [
        bars and column.kind == "share" and any(row[place].bar is not None for row in table.rows)
        for place, column in enumerate(table.columns)
    ]
    for column, has_bars in zip(table.columns, barred, strict=True):
        if column.kind in NAMES:
            grid.add_column(column.head, min_width=LEAST_NAME)
        else:
            right = column.has_figures
            grid.add_column(column.head, justify="right" if right else "left", no_wrap=right)
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


Rows: TypeAlias = list[tuple[str, ...]]
"""Rows of equal length. The first one has the heads."""

_WORD = re.compile(r"\s*(\S+(?: (?:%|pt)(?=\W|$)\S*)?)")
"""A word, or a figure with its unit, which stay on one line."""


def fold(text: str, width: int) -> str:
    r"""Break a cell into lines of at most this width, or of its longest word, figures kept with their units.

    Example:
        >>> fold("−53.1 % to +44.7 %", 12)
        '−53.1 % to\n+44.7 %'
    """
    indent = text[: len(text) - len(text.lstrip())]
    lines = [""]
    for word in _WORD.findall(text):
        longer = f"{lines[-1]} {word}" if lines[-1] else f"{indent if len(lines) == 1 else ''}{word}"
        if cell_len(longer) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    return "\n".join(lines)


def column_widths(columns: Sequence[Sequence[str]], available: int) -> tuple[int, ...] | None:
    """Divide the width of a line among columns; None if not even the longest words fit.

    Example:
        >>> column_widths([["step time, fp32"], ["12.5", "9.25"]], 14)
        (10, 4)
        >>> column_widths([["step time, fp32"], ["12.5", "9.25"]], 8) is None
        True
    """
    whole = [max(map(cell_len, cells)) for cells in columns]
    widths = [max(map(_least_width, cells)) for cells in columns]
    if sum(widths) > available:
        return None
    for _ in range(min(available, sum(whole)) - sum(widths)):
        # To the column that lacks most.
        neediest = max(range(len(widths)), key=lambda number: whole[number] - widths[number])
        widths[neediest] += 1
    return tuple(widths)


def fit(rows: Rows, width: int, padding: int) -> list[Rows]:
    """Make a table fit: break cells into lines and, if necessary, the columns into several tables below each other.

    Each table begins with the first column. A table of two columns is not split further.
    """
    columns = list(zip(*rows, strict=True))
    widths = column_widths(columns, width - padding * len(columns))
    if widths is not None:
        folded = [[fold(cell, room) for cell in cells] for cells, room in zip(columns, widths, strict=True)]
        return [list(zip(*folded, strict=True))]
    if len(columns) <= 2:
        return [rows]
    middle = 1 + len(columns) // 2
    halves = (columns[:middle], [columns[0], *columns[middle:]])
    return [part for half in halves for part in fit(list(zip(*half, strict=True)), width, padding)]


def _least_width(cell: str) -> int:
    words: list[str] = _WORD.findall(cell)
    indent = len(cell) - len(cell.lstrip())
    return max((cell_len(word) for word in words), default=0) + (indent if len(words) == 1 else 0)
