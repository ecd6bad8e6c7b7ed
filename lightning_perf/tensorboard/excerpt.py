"""The part of a report that the page receives: everything except long tables, which it reads page by page."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from lightning_perf.page.html import cut_long_tables
from lightning_perf.saved_json import decode_json

TableName = Literal["operators", "kernels"]
TABLES: tuple[TableName, ...] = ("operators", "kernels")

MOST_ROWS = 1000
ROWS_OF_ALL_RANKS = 4000
"""A table is cut to 1,000 rows, or to fewer if there are many ranks, so that all ranks have about 4,000 together."""


class Rows(msgspec.Struct, frozen=True):
    """A page of a table.

    Attributes:
        total: Number of rows of the whole table that pass the filter.
    """

    rows: list[dict[str, Any]]
    total: int
    offset: int


def excerpt_report(report: bytes) -> bytes:
    """Cut the long tables of a report, as JSON."""
    return cut_long_tables(report, ROWS_OF_ALL_RANKS, MOST_ROWS)


class _Section(msgspec.Struct):
    rows: list[dict[str, Any]]


class _Rank(msgspec.Struct):
    operators: _Section | None = None
    kernels: _Section | None = None


class ReportTables(msgspec.Struct):
    """The long tables of a report, by rank."""

    ranks: list[_Rank]


def read_tables(report: Path) -> ReportTables:
    """Read the long tables of a whole report."""
    tables: ReportTables = decode_json(report.read_bytes(), ReportTables)
    return tables


def read_rows(
    tables: ReportTables,
    rank: int,
    table: TableName,
    *,
    offset: int = 0,
    limit: int = 100,
    sort: str | None = None,
    descending: bool = True,
    wanted: str = "",
) -> Rows:
    """Return a page of a table, or raise a `KeyError` if the rank, the table or the field to sort by does not exist.

    By default rows have the order of the report. Rows without a value come last. All words that are wanted must occur
    in the texts of a row, in upper or lower case.
    """
    ranks = tables.ranks
    if not 0 <= rank < len(ranks):
        raise KeyError(f"rank {rank}")
    section: _Section | None = getattr(ranks[rank], table)
    if section is None:
        raise KeyError(table)
    rows = section.rows
    words = wanted.casefold().split()
    if words:
        rows = [row for row in rows if _holds("\n".join(_text(value) for value in row.values()).casefold(), words)]
    if sort is not None:
        if any(sort not in row for row in rows):
            raise KeyError(sort)
        valued = [row for row in rows if row[sort] is not None]
        without = [row for row in rows if row[sort] is None]
        rows = sorted(valued, key=lambda row: _order(row[sort]), reverse=descending) + without
    return Rows(rows[offset : offset + limit], len(rows), offset)


def _holds(text: str, words: list[str]) -> bool:
    return all(word in text for word in words)


def _text(value: Any) -> str:
    """Return the texts in a value: a string, or the strings in a list of objects."""
    if isinstance(value, list):
        return ", ".join(_text(member) for item in value if isinstance(item, dict) for member in item.values())
    return value if isinstance(value, str) else ""


def _order(value: Any) -> tuple[bool, float, str]:
    if isinstance(value, (int, float)):
        return False, value, ""
    return True, 0.0, _text(value).casefold()
