"""How wide the columns of a table are where it does not fit as it is: lines break between words, not within."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

__all__ = ["column_widths"]


def column_widths(columns: Sequence[Sequence[str]], available: int) -> tuple[int, ...] | None:
    """Share the room of a line out among columns.

    Args:
        columns: The cells of each column, its head among them.
        available: Cells of the terminal for the text of all columns.

    Returns:
        A width for each column, no less than its longest word; None when not even the words fit.

    Example:
        >>> column_widths([["step time, fp32"], ["12.5", "9.25"]], 14)
        (10, 4)
        >>> column_widths([["step time, fp32"], ["12.5", "9.25"]], 8) is None
        True
    """
    whole = [max(map(cell_len, cells)) for cells in columns]
    widths = [max(cell_len(word) for cell in cells for word in cell.split() or [""]) for cells in columns]
    if sum(widths) > available:
        return None
    for _ in range(min(available, sum(whole)) - sum(widths)):
        # To the column that lacks most.
        neediest = max(range(len(widths)), key=lambda number: whole[number] - widths[number])
        widths[neediest] += 1
    return tuple(widths)
