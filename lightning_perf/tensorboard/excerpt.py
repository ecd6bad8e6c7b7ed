"""What the page gets of a report: everything but the rows of very long tables, and those page by page."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

__all__ = ["TABLES", "Rows", "TableName", "excerpt_diff", "excerpt_report", "read_rows"]

TableName = Literal["operators", "kernels"]
TABLES: tuple[TableName, ...] = ("operators", "kernels")

MOST_ROWS = 1000
FEWEST_ROWS = 20
ROWS_OF_ALL_RANKS = 4000
"""A table of one rank is cut to 1,000 rows, one of many ranks so that all of them together have some 4,000."""


class Rows(msgspec.Struct, frozen=True):
    """A page of a table.

    Attributes:
        rows: The rows asked for.
        total: Rows of the whole table that pass the filter.
        offset: Rows before these.
    """

    rows: list[dict[str, Any]]
    total: int
    offset: int


def excerpt_report(report: bytes) -> bytes:
    """Cut the long tables of a report.

    Args:
        report: The report as JSON.

    Returns:
        The same document; where tables were cut it has one more member, ``truncated``: for each table the most rows
        that it has in a rank of the report, as ``{"kernels": 5120}``.
    """
    document = msgspec.json.decode(report)
    ranks = document["ranks"]
    most = max(FEWEST_ROWS, min(MOST_ROWS, ROWS_OF_ALL_RANKS // max(len(ranks), 1)))
    truncated: dict[str, int] = {}
    for rank in ranks:
        for name in TABLES:
            if rank[name] is not None and len(rank[name]["rows"]) > most:
                truncated[name] = max(truncated.get(name, 0), len(rank[name]["rows"]))
                rank[name]["rows"] = rank[name]["rows"][:most]
    if not truncated:
        return report
    document["truncated"] = truncated
    return msgspec.json.encode(document)


def excerpt_diff(compared: bytes) -> bytes:
    """Cut the long tables of a diff, in which the greatest changes come first.

    Args:
        compared: The diff as JSON.

    Returns:
        The same document; ``truncated`` tells the number of rows of each table that was cut.
    """
    document = msgspec.json.decode(compared)
    truncated = {}
    for name, table in document["diff"].items():
        if isinstance(table, dict) and len(table.get("rows", ())) > MOST_ROWS:
            truncated[name] = len(table["rows"])
            table["rows"] = table["rows"][:MOST_ROWS]
    return msgspec.json.encode({**document, "truncated": truncated}) if truncated else compared


def read_rows(
    report: Path,
    rank: int,
    table: TableName,
    *,
    offset: int = 0,
    limit: int = 100,
    sort: str | None = None,
    descending: bool = True,
    wanted: str = "",
) -> Rows:
    """Read a page of a table from a whole report.

    Args:
        report: The report's file.
        rank: The rank's place in ``ranks``.
        table: The table.
        offset: Rows to skip.
        limit: Rows to return.
        sort: The member to sort by; the report's own order when not given. Rows without it come last.
        descending: Whether the greatest come first.
        wanted: Words that a row's texts hold, each in any of them, in upper or lower case.

    Raises:
        KeyError: There is no such rank or table, or its rows have no such member.
        msgspec.DecodeError: The file is no report.
    """
    ranks = msgspec.json.decode(report.read_bytes(), type=_Report).ranks
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
    """The texts in a value: a string, or those in the members of a list of objects."""
    if isinstance(value, list):
        return ", ".join(_text(member) for item in value if isinstance(item, dict) for member in item.values())
    return value if isinstance(value, str) else ""


def _order(value: Any) -> tuple[bool, float, str]:
    if isinstance(value, (int, float)):
        return False, value, ""
    return True, 0.0, _text(value).casefold()


class _Section(msgspec.Struct):
    rows: list[dict[str, Any]]


class _Rank(msgspec.Struct):
    operators: _Section | None = None
    kernels: _Section | None = None


class _Report(msgspec.Struct):
    ranks: list[_Rank]
