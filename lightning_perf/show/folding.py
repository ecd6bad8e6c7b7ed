"""Fits rows of text to the width of a terminal.

A table too wide for the terminal first breaks lines between words. Then its columns continue in further tables below.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

from rich.cells import cell_len

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
