"""Markdown from the parts that the console prints, e.g. for a pull request: each part is converted on its own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from rich.console import Console, ConsoleRenderable, Group, RenderableType
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from lightning_perf.tables import escape
from lightning_perf.terminal_text import UNBREAKABLE, Label

__all__ = ["parts_to_markdown"]

NARROW = 72
"""Columns of a page on which tables have no bars. Markdown has no bars either."""


def parts_to_markdown(parts: Iterable[RenderableType], *, unfolded: Collection[str] | None = None) -> str:
    """Return parts of a document as GitHub-flavoured Markdown.

    Args:
        parts: The parts, as the console prints them.
        unfolded: Titles of sections that are always shown. The first other section, and all after it, are folded away.
            None folds nothing.
    """
    blocks: list[str] = []
    folded = False
    for part in parts:
        title = _title(part)
        if title is None:
            blocks += _blocks(part)
            continue
        if not folded and unfolded is not None and title not in unfolded:
            folded = True
            blocks.append("<details><summary>Figures</summary>")
        blocks.append(f"### {escape(title)}")
    if folded:
        blocks.append("</details>")
    return "\n\n".join(blocks) + "\n"


def _title(part: RenderableType) -> str | None:
    """Return the title of the section that begins with this part; None for any other part."""
    is_title = isinstance(part, Text) and part.plain.startswith("\n") and part.style == "bold"
    return part.plain.strip() if is_title and isinstance(part, Text) else None


def _blocks(part: RenderableType) -> Iterator[str]:
    if isinstance(part, Group):
        for child in part.renderables:
            yield from _blocks(child)
    elif isinstance(part, Padding):
        yield from _blocks(part.renderable)
    elif isinstance(part, Table):
        yield from _table(part)
    elif isinstance(part, (str, Text)):
        text = part if isinstance(part, Text) else Text(part)
        lines = [_linked(line) for line in text.split("\n") if line.plain.strip()]
        if lines:
            yield lines[0] if len(lines) == 1 else "\n".join(f"- {line}" for line in lines)
    elif isinstance(part, ConsoleRenderable):  # a part that lays itself out by the width of the page
        console = Console(width=NARROW)
        for laid_out in part.__rich_console__(console, console.options):
            if not isinstance(laid_out, (str, Text, Table, Group)):
                raise TypeError(f"{type(laid_out).__name__} cannot be written as Markdown")
            yield from _blocks(laid_out)


def _table(table: Table) -> Iterator[str]:
    """Convert a table. One without a header, which puts text behind labels, becomes paragraphs."""
    rows = list(zip(*(column.cells for column in table.columns), strict=True))
    if not table.show_header:
        for label, text in rows:
            yield f"**{escape(_text(label))}** {_linked(text) if isinstance(text, Text) else escape(_text(text))}"
        return
    if rows:
        heads = [column.header for column in table.columns]
        marks = ["---:" if column.justify == "right" else "---" for column in table.columns]
        yield "\n".join([_row(heads), f"|{'|'.join(marks)}|", *map(_row, rows)])


def _row(cells: Sequence[RenderableType]) -> str:
    return f"| {' | '.join(escape(' '.join(_text(cell).split())) for cell in cells)} |"


def _text(cell: RenderableType) -> str:
    if isinstance(cell, Label):
        cell = cell.text
    return (cell.plain if isinstance(cell, Text) else str(cell)).replace(UNBREAKABLE, " ")


def _linked(text: Text) -> str:
    """Text as Markdown, with its links as links."""
    parts, end = [], 0
    for span in sorted(text.spans):
        if isinstance(span.style, Style) and span.style.link:
            before, linked = text[end : span.start], text[span.start : span.end]
            parts += [escape(_text(before)), f"[{escape(_text(linked))}]({span.style.link})"]
            end = span.end
    return "".join([*parts, escape(_text(text[end:]))])
