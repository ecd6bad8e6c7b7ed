"""The worker process that answers queries about finished reports: rows of long tables, and diffs.

A report can take a second to read and a gigabyte of memory. In TensorBoard's own process that would block all tabs.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from lightning_perf.tensorboard.excerpt import ReportTables, excerpt_diff, read_rows, read_tables
from lightning_perf.tensorboard.task import Answered, Damaged, DiffQuery, Query, Refused, Reply, TableQuery
from lightning_perf.workers.channel import Channel
from lightning_perf.workers.memory_limit import limit_memory

__all__ = ["QueryAnswerer", "main"]

NICENESS = 5
"""Lower than the priority of training, higher than that of an analysis, because a reader waits for the answer."""


def main(channel: Channel) -> None:
    """Answer queries at low priority and with limited memory, until the server stops this process."""
    os.nice(NICENESS)
    limit = limit_memory()
    answerer = QueryAnswerer()
    while True:
        query = channel.receive(TableQuery, DiffQuery)
        try:
            answer = answerer.answer(query)
        except MemoryError:
            text = f"The answer needs more than {limit / 1e9:.1f} GB, three quarters of the memory that was free."
            channel.send(Refused(500, f"{text} Free some memory, or use `lightning-perf diff` on a larger machine."))
            return  # the next query gets a fresh process
        channel.send(answer)


class QueryAnswerer:
    """Answers queries. It keeps the tables of one report, because queries about a report come one after another."""

    def __init__(self) -> None:
        self._path: str | None = None
        self._tables: ReportTables | None = None

    def answer(self, query: Query) -> Reply:
        """Answer a query."""
        return self._table(query) if isinstance(query, TableQuery) else self._diff(query)

    def _table(self, query: TableQuery) -> Reply:
        try:
            tables = self._tables_of(query.report)
        except (msgspec.DecodeError, OSError):
            return Damaged(query.report)
        try:
            rows = read_rows(
                tables,
                query.rank,
                query.table,
                offset=query.offset,
                limit=query.limit,
                sort=query.sort,
                descending=query.descending,
                wanted=query.wanted,
            )
        except KeyError as error:
            return Refused(404, f"The report has no {error.args[0]} in that table.")
        return Answered(msgspec.json.encode(rows))

    def _tables_of(self, path: str) -> ReportTables:
        if self._tables is None or self._path != path:
            self._tables = None  # before the next one is read, so that memory holds one of them
            self._tables, self._path = read_tables(Path(path)), path
        return self._tables

    def _diff(self, query: DiffQuery) -> Reply:
        from lightning_perf.errors import TraceError
        from lightning_perf.report.document import PerfReport, ReportError
        from lightning_perf.tensorboard.cache import is_intact

        self._tables = None
        reports = []
        for path in (query.before, query.after):
            try:
                data = Path(path).read_bytes()
            except OSError:
                return Damaged(path)
            try:
                reports.append(PerfReport.from_json(data))
            except (ReportError, ValueError) as error:
                return Refused(422, str(error)) if is_intact(data, "report") else Damaged(path)
        before, after = reports
        try:
            compared = before.diff(after).to_json(indent=None).encode()
        except (TraceError, ReportError, ValueError) as error:
            return Refused(422, str(error))
        return Answered(excerpt_diff(compared))
