"""What blocks show, as text and as tables."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

from lightning_perf.show.blocks import Block, Context, Details, Table
from lightning_perf.show.console import print_blocks


def console_text(blocks: Iterable[Block], width: int = 400) -> str:
    """Return blocks as the console shows them in a pipe."""
    file = io.StringIO()
    print_blocks(blocks, file=file, width=width)
    return file.getvalue()


def all_blocks(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield blocks and those inside them."""
    for block in blocks:
        if isinstance(block, (Details, Context)):
            yield from all_blocks(block.blocks)
        else:
            yield block


def table_of(blocks: Iterable[Block], head: str) -> Table:
    """Return the only table whose first column has this head, or whose title is this."""
    tables = [block for block in all_blocks(blocks) if isinstance(block, Table)]
    (found,) = (table for table in tables if head in (table.title, table.columns[0].head))
    return found


def texts(table: Table) -> list[tuple[str, ...]]:
    """Return the rows of a table as text."""
    return [tuple(cell.text for cell in row) for row in table.rows]
