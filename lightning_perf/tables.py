"""Tables of text that the console and Markdown both show: columns, rows, and how they fit a terminal.

A table too wide for the terminal first breaks lines between words. Then its columns continue in further tables below.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table as RichTable
from rich.text import Text

from lightning_perf.terminal_text import plain

__all__ = ["Table", "column_widths", "escape", "fit", "fold", "markdown_table", "print_table"]

PADDING = 2
"""Columns of the terminal between two columns of a table, and a margin."""

_WORD = re.compile(r"\s*(\S+(?: (?:%|pt)(?=\W|$)\S*)?)")
"""A word, or a figure with its unit, which stay on one line."""

_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|#~$&])")


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: Its title.
        columns: Column heads. The first column is text, the others figures.
        rows: Rows with as many cells as heads.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def print_table(table: Table, console: Console) -> None:
    """Print a table; print nothing if it has no rows."""
    if not table.rows:
        return
    safe = [tuple(plain(cell).plain for cell in row) for row in (table.columns, *table.rows)]
    parts = fit(Table(table.title, safe[0], tuple(safe[1:])), console.width, PADDING)
    for number, part in enumerate(parts):
        grid = RichTable(
            title=None if number else plain(part.title),
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            padding=(0, 0, 0, 1),
        )
        for place, head in enumerate(part.columns):
            justify: JustifyMethod = "right" if place else "left"
            grid.add_column(Text(head), justify=justify, overflow="fold")
        for row in part.rows:
            grid.add_row(*map(Text, row))
        console.print(grid)


def markdown_table(table: Table) -> str:
    """Return a table in GitHub-flavoured Markdown, its cells escaped; empty if it has no rows."""
    if not table.rows:
        return ""
    lines = ["| " + " | ".join(escape(head) for head in table.columns) + " |"]
    lines.append("|---" + "|---:" * (len(table.columns) - 1) + "|")
    lines += ["| " + " | ".join(escape(cell) for cell in row) + " |" for row in table.rows]
    return "\n".join(lines)


def escape(text: str) -> str:
    """Escape text so that no markup in it has an effect."""
    return _MARKDOWN.sub(r"\\\1", plain(text).plain)


def fold(text: str, width: int) -> str:
    r"""Break a cell into lines of at most this width, between words, figures kept with their units.

    Args:
        text: The cell. Leading spaces stay.
        width: Cells of the terminal, at least its longest word.

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
    """Divide the width of a line among columns.

    Args:
        columns: The cells of each column, with its head.
        available: Cells of the terminal for the text of all columns.

    Returns:
        A width for each column, at least its longest word; None if not even the words fit.

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


def fit(table: Table, width: int, padding: int) -> list[Table]:
    """Make a table fit: break cells into lines and, if necessary, the columns into several tables below each other.

    Args:
        table: The table, its cells without control characters.
        width: Cells of the terminal.
        padding: Cells between two columns.

    Returns:
        The tables. Each begins with the first column. A table of two columns is not split further.
    """
    columns = list(zip(table.columns, *table.rows, strict=True))
    widths = column_widths(columns, width - padding * len(columns))
    if widths is not None:
        folded = [[fold(cell, room) for cell in cells] for cells, room in zip(columns, widths, strict=True)]
        heads, *rows = zip(*folded, strict=True)
        return [Table(table.title, heads, tuple(rows))]
    if len(columns) <= 2:
        return [table]
    middle = 1 + len(columns) // 2
    return [
        part
        for columns in (range(1, middle), range(middle, len(table.columns)))
        for part in fit(_some_columns(table, columns), width, padding)
    ]


def _some_columns(table: Table, columns: range) -> Table:
    kept = (0, *columns)
    rows = tuple(tuple(row[number] for number in kept) for row in table.rows)
    return Table(table.title, tuple(table.columns[number] for number in kept), rows)


def _least_width(cell: str) -> int:
    words: list[str] = _WORD.findall(cell)
    indent = len(cell) - len(cell.lstrip())
    return max((cell_len(word) for word in words), default=0) + (indent if len(words) == 1 else 0)
