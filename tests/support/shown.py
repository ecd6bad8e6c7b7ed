"""What blocks show, as text and as tables."""

import io
from collections.abc import Iterable, Iterator

from lightning_perf.show.blocks import Bar, Block, Card, Context, Details, Plot, Table
from lightning_perf.show.console import print_blocks


def console_text(blocks: Iterable[Block], width: int = 400) -> str:
    """Return blocks as the console shows them in a pipe."""
    file = io.StringIO()
    print_blocks(blocks, file=file, width=width)
    return file.getvalue()


def all_blocks(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield blocks and those inside them."""
    for block in blocks:
        if isinstance(block, (Details, Context, Card)):
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


def page_text(blocks: Iterable[Block]) -> str:
    """Return the words of a part of a page, with those of cards, bars and charts."""
    lines = []
    for block in blocks:
        if isinstance(block, Card):
            lines += [" ".join((block.title, block.mark, block.aside, block.summary)), page_text(block.blocks)]
        elif isinstance(block, Details):
            lines += [block.summary, page_text(block.blocks)]
        elif isinstance(block, Bar):
            lines += [f"{part.label}: {part.text}" for part in block.parts]
        elif isinstance(block, Plot):
            lines.append(block.title)
        else:
            lines.append(console_text([block]))
    return "\n".join(lines)
