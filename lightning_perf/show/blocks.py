"""The blocks of a document: its text, tables and charts as values, without a format.

A document gives its blocks in order. `lightning_perf.show.console` and `lightning_perf.show.markup` write them, and
know no document. Names and paths in blocks are raw: each format makes them safe. A no-break space in a text keeps two
words on one line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from msgspec import Struct
from msgspec.structs import replace

from lightning_perf.units import (
    NOT_AVAILABLE,
    counted,
    format_bandwidth,
    format_bytes,
    format_count,
    format_duration,
    format_flops,
    format_milliseconds,
    format_ratio,
    format_share,
)

Style: TypeAlias = Literal["plain", "strong", "quiet", "good", "warning", "bad", "command"]
Kind: TypeAlias = Literal[
    "name", "code", "text", "figure",
    "bandwidth", "bytes", "count", "duration", "flops", "milliseconds", "ratio", "share",
]  # fmt: skip


class _Plain(Struct, frozen=True, omit_defaults=True):
    """A part of a block. Its JSON leaves out the fields that have their default."""


class _Block(_Plain, frozen=True, tag_field="block", tag=str.lower):
    """A block. Its JSON has the name of its kind as ``block``."""


class Span(_Plain, frozen=True):
    """A part of a text with a style of its own, or with a link: an address, or on pages ``#`` with a state of the page.

    An outcome is set apart on pages.
    """

    text: str
    style: Style = "plain"
    link: str | None = None
    outcome: bool = False


class Line(_Block, frozen=True):
    """A paragraph.

    Attributes:
        text: Its text, or the parts of its text.
        style: Style of the parts that have none.
        label: A word before it, e.g. "Note". Spaces at its end align the text with that of other lines.
        gap: Columns of the terminal between the label and the text.
        copied: Whether it is a path or a command to copy, which must not be wrapped.
        range: Shares of a whole, from 0 to 1, that pages draw next to the text.
    """

    text: str | tuple[str | Span, ...] = ""
    style: Style = "plain"
    label: str = ""
    label_style: Style = "plain"
    gap: int = 2
    copied: bool = False
    range: tuple[float, float] | None = None

    @property
    def spans(self) -> tuple[Span, ...]:
        """The parts of the text, each with its style."""
        parts = (self.text,) if isinstance(self.text, str) else self.text
        spans = (part if isinstance(part, Span) else Span(part) for part in parts)
        return tuple(replace(span, style=self.style) if span.style == "plain" else span for span in spans)


class Listing(_Block, frozen=True):
    """Lines of a list.

    Attributes:
        indent: Columns of the terminal before each line.
        marker: Text before each line on the terminal.
    """

    lines: tuple[Line, ...]
    indent: int = 0
    marker: str = ""


class Heading(_Block, frozen=True):
    """The title of the blocks that follow, with a remark and, on pages, a definition. Level 4 is a part of level 3."""

    text: str
    level: int = 3
    definition: str = ""
    aside: str = ""

    @property
    def line(self) -> str:
        """The title and its remark in one line."""
        return f"{self.text}: {self.aside}" if self.aside else self.text


class Column(_Plain, frozen=True):
    """A column of a table.

    Attributes:
        kind: The kind of its values: names, names in code, text, or figures of a quantity.
        definition: Its definition in docs/definitions.md, for pages.
        extra: Width of a page in pixels from which it has the column unless the reader chooses otherwise; 0 if all
            formats have it.
    """

    head: str
    kind: Kind = "figure"
    definition: str = ""
    extra: int = 0

    @property
    def has_figures(self) -> bool:
        """Whether its values are figures, which are aligned at their right."""
        return self.kind not in ("name", "code", "text")


class Cell(_Plain, frozen=True):
    """A cell of a table.

    Attributes:
        text: The value as text.
        value: The value, by which pages sort and colour.
        troubled: Whether the value needs attention.
        style: Style of the text.
        detail: Text that follows, dimmed.
        bar: Length of a bar that shows the value, from 0 to 1. The console draws those of shares.
        color: The category that gives it its colour on pages.
        link: The state of the page that it leads to, as ``#view=timeline``.
        short: Shorter form of a name, which pages show until the reader opens it.
    """

    text: str
    value: float | None = None
    troubled: bool = False
    style: Style = "plain"
    detail: str = ""
    bar: float | None = None
    color: str = ""
    link: str = ""
    short: str = ""


class Table(_Block, frozen=True):
    """A table.

    Attributes:
        columns: Its columns. The first one has names.
        rows: Rows with a cell for each column.
        definition: Definition of its title in docs/definitions.md, for pages.
        parents: The row above each row of a tree, or `None`; empty for other tables.
        details: Blocks that pages unfold below each row; empty if no row has any.
        lane: The lane of the timeline in which pages can mark the names.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    definition: str = ""
    parents: tuple[int | None, ...] = ()
    details: tuple[tuple[Block, ...], ...] = ()
    lane: str = ""

    def brief(self) -> Table:
        """Return the table without the columns that only pages have."""
        kept = [place for place, column in enumerate(self.columns) if not column.extra]
        columns = tuple(self.columns[place] for place in kept)
        return replace(self, columns=columns, rows=tuple(tuple(row[place] for place in kept) for row in self.rows))


class Code(_Block, frozen=True):
    """Lines to copy, of Python or another language."""

    lines: tuple[str, ...]
    language: str = "py"


class Chart(_Block, frozen=True):
    """Points in order, with the level around them.

    Attributes:
        title: Title of the vertical axis, without a unit.
        unit: Unit of the values, as in `lightning_perf.units.column_format`.
        breaks: Numbers of the points at which a new level begins.
        ends: Labels of the first and the last point.
    """

    title: str
    unit: str
    values: tuple[float, ...]
    levels: tuple[float, ...]
    breaks: tuple[int, ...]
    ends: tuple[str, str]


class Figure(_Plain, frozen=True):
    """A key figure, with a remark below it."""

    label: str
    text: str
    note: str = ""
    definition: str = ""


class Figures(_Block, frozen=True):
    """Key figures. Those without a value are left out."""

    figures: tuple[Figure, ...]

    @property
    def line(self) -> Line:
        """The figures in one paragraph, for formats without tiles."""
        texts = []
        for figure in self.figures:
            if figure.text != NOT_AVAILABLE:
                text = f"{figure.label} {figure.text}".replace(" ", "\u00a0")
                texts.append(f"{text} ({figure.note})" if figure.note else text)
        return Line(" · ".join(texts))


class Part(_Plain, frozen=True):
    """A part of a bar, with its figure and the name of its colour."""

    label: str
    value: float
    text: str
    color: str
    definition: str = ""


class Bar(_Block, frozen=True):
    """A bar of parts of a total, by default their sum, with a legend if it has one.

    Attributes:
        alone: Whether no table has its figures. Other formats than pages draw only such bars, as tables.
    """

    title: str
    parts: tuple[Part, ...]
    total: float | None = None
    legend: bool = True
    alone: bool = False

    @property
    def table(self) -> Table:
        """The parts as rows; none if another table has them."""
        total = self.total or sum(part.value for part in self.parts)
        rows = ((part.label, Cell(part.text, part.value, bar=part.value / total)) for part in self.parts if self.alone)
        return table(("", ""), rows, kinds="name share")


class Plot(_Block, frozen=True):
    """A chart of pages and pictures: traces and layout of Plotly (https://plotly.com/javascript/reference).

    Texts are plain, and a colour is the name of one in the style sheet, as ``--input``. An axis can have three more
    members. With ``measured``, a note says if it leaves out 0. ``names`` is the number of lines of a name at a tick.
    ``most`` is the number of labels that fit. A trace without a text at each point can have the units of both axes, as
    ``units``. Pictures write the ``text`` of a point at the end of its row.

    Attributes:
        title: Its description for those who cannot see it.
        legend: Labels and names of colours above it.
    """

    title: str
    data: tuple[Mapping[str, Any], ...]
    layout: Mapping[str, Any]
    height: int = 260
    legend: tuple[tuple[str, str], ...] = ()


class Card(_Block, frozen=True):
    """A finding or the like on a page: a title with a mark, and blocks that are folded away if there is a summary."""

    title: str
    mark: str
    style: Style
    blocks: tuple[Block, ...]
    aside: str = ""
    summary: str = ""


class Details(_Block, frozen=True):
    """Blocks that Markdown folds away below a summary."""

    summary: str
    blocks: tuple[Block, ...]


class Context(_Block, frozen=True):
    """Title and origin, for readers who did not run the command. The console leaves them out."""

    blocks: tuple[Block, ...]


EVERY_ROW = sys.maxsize
"""The number of rows for a page, which shows all rows of a long table."""

WIDE = 1100
CHOSEN = 9999
"""Widths of a page in pixels: one with room for more columns, and one that no page has."""

Block: TypeAlias = "Line | Listing | Heading | Table | Code | Chart | Details | Context | Figures | Bar | Plot | Card"

Parts: TypeAlias = "Mapping[str, Iterable[Block]]"
"""The blocks of each part of a page. A view places the parts, next to its charts."""

TableRow: TypeAlias = Sequence[str | float | Cell | None]

FORMATS: dict[Kind, Callable[[float | None], str]] = {
    "bandwidth": format_bandwidth,
    "bytes": format_bytes,
    "count": format_count,
    "duration": format_duration,
    "flops": format_flops,
    "milliseconds": format_milliseconds,
    "ratio": format_ratio,
    "share": format_share,
}

KINDS: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}


def table(
    heads: Sequence[str],
    rows: Iterable[TableRow],
    title: str = "",
    kinds: str = "",
    *,
    definition: str = "",
    definitions: Mapping[str, str] | None = None,
    extra: Collection[str] = (),
) -> Table:
    """Return a table with a cell per value: a number in the format of its column, `None` as missing, text unchanged.

    Kinds are separated by spaces, and those beyond the last head are ignored. Without them, the first column has names,
    and the others have figures as text. `definitions` and `extra` name columns by their heads. Extra columns
    need a wide page.

    Example:
        >>> made = table(("phase", "time", "share"), [("forward", 1.5e6, None)], kinds="name duration share")
        >>> [cell.text for cell in made.rows[0]], made.rows[0][1].value
        (['forward', '1.50 ms', '–'], 1500000.0)
    """
    names = kinds.split() or ["name", *["figure" for _ in heads[1:]]]
    defined = definitions or {}
    columns = tuple(
        Column(head, KINDS[name], defined.get(head, ""), WIDE if head in extra else 0)
        for head, name in zip(heads, names, strict=False)
    )
    cells = (tuple(_cell(value, column.kind) for value, column in zip(row, columns, strict=True)) for row in rows)
    return Table(columns, tuple(cells), title, definition)


def _cell(value: str | float | Cell | None, kind: Kind) -> Cell:
    if isinstance(value, Cell):
        return value
    return Cell(value) if isinstance(value, str) else Cell(FORMATS.get(kind, format_count)(value), value)


class Field(NamedTuple):
    """A column of `tabulate`.

    Attributes:
        value: The attribute of a row that has the value, or a function that returns it.
        definition: As for `Column`, and so is `extra`.
        per: Numbers are divided by this.
        most: The number, after that, with the longest bar; 0 for none.
    """

    head: str
    kind: Kind
    value: str | Callable[[Any], str | float | Cell | None]
    definition: str = ""
    extra: int = 0
    per: float = 1
    most: float = 0.0

    def cell(self, row: object) -> Cell:
        """Return the cell of a row."""
        value = getattr(row, self.value) if isinstance(self.value, str) else self.value(row)
        if isinstance(value, (int, float)) and self.per != 1:
            value /= self.per
        cell = _cell(value, self.kind)
        return replace(cell, bar=(cell.value or 0.0) / self.most) if self.most else cell


def tabulate(rows: Iterable[object], fields: Iterable[Field], title: str = "", definition: str = "") -> Table:
    """Return a table with a row for each object."""
    shown = tuple(fields)
    columns = tuple(Column(field.head, field.kind, field.definition, field.extra) for field in shown)
    return Table(columns, tuple(tuple(field.cell(row) for field in shown) for row in rows), title, definition)


def listing(
    lines: Iterable[str | Line], style: Style = "plain", *, indent: int = 0, marker: str = ""
) -> Iterator[Block]:
    """Yield a list of lines; nothing without lines."""
    found = tuple(line if isinstance(line, Line) else Line(line, style) for line in lines)
    if found:
        yield Listing(found, indent, marker)


def as_text(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield the blocks of a text: tables without extra columns, figures in a line, and no charts that pages draw."""
    title: Heading | None = None
    for block in blocks:
        if title is not None and not isinstance(block, Plot):
            yield title
        title = block if isinstance(block, Heading) and block.level == 4 else None
        if isinstance(block, Figures):
            yield block.line
        elif isinstance(block, (Bar, Table)):
            found = block.table if isinstance(block, Bar) else block.brief()
            yield from [found] if found.rows else []
        elif title is None and not isinstance(block, Plot):
            yield block


def note(text: str) -> Line:
    """Return a remark to read before you trust the figures."""
    return Line(text, label="Note", label_style="warning")


def rest(number: int, noun: str, hint: str = " (--top N shows more)") -> Iterator[Block]:
    """Yield the line below a table that was cut; nothing if it has all rows."""
    if number > 0:
        more = counted(number, f"more {noun}") if noun else f"{number:,} more"
        yield Line(f"… and {more}{hint}", "quiet")
