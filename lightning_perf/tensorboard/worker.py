"""The worker process: it makes documents, and answers queries about finished reports.

A report can take a second to read and a gigabyte of memory. In TensorBoard's own process that would block all tabs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from lightning_perf.tensorboard.excerpt import ReportTables, read_rows, read_tables
from lightning_perf.tensorboard.jobs import Answer, Damaged, DiffQuery, Done, Failed, Job, TableQuery, Task, Working
from lightning_perf.workers.channel import Channel
from lightning_perf.workers.memory_limit import limit_memory

ANALYSIS_NICENESS, QUERY_NICENESS = 10, 5
"""Both are lower than the priority of training. A reader waits for the answer to a query."""


def main(channel: Channel) -> None:
    """Do jobs at low priority and with limited memory, until the server stops this process."""
    job: Job = channel.receive(Task, TableQuery, DiffQuery)
    os.nice(ANALYSIS_NICENESS if isinstance(job, Task) else QUERY_NICENESS)
    limit = limit_memory()
    while True:
        try:
            answer = work(job, channel.send)
        except MemoryError:
            noun, command, advice = (
                ("analysis", "run `lightning-perf analyze PATH`", "on a machine with more")
                if isinstance(job, Task)
                else ("answer", "use `lightning-perf diff`", "on a larger machine")
            )
            need = f"The {noun} needs more than {limit / 1e9:.1f} GB, three quarters of the memory that was free."
            answer = Failed(f"{need} Free some memory, or {command} {advice}.", 500)
        channel.send(answer)
        job = channel.receive(Task, TableQuery, DiffQuery)


def work(job: Job, on_progress: Callable[[Working], None]) -> Answer:
    """Do a job."""
    if isinstance(job, Task):
        from lightning_perf.tensorboard.documents import make_document

        return make_document(job, on_progress)
    return _answer_table(job) if isinstance(job, TableQuery) else _answer_diff(job)


_tables: dict[tuple[str, int, int], ReportTables] = {}
"""The tables of the last report by its version: queries about a report come one after another."""


def _tables_of(report: str) -> ReportTables:
    status = Path(report).stat()
    version = report, status.st_mtime_ns, status.st_size
    if version not in _tables:
        _tables.clear()  # before the next one is read, so that memory holds one of them
        _tables[version] = read_tables(Path(report))
    return _tables[version]


def _answer_table(query: TableQuery) -> Answer:
    try:
        tables = _tables_of(query.report)
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
        return Failed(f"The report has no {error.args[0]} in that table.", 404)
    return Done(msgspec.json.encode(rows))


def _answer_diff(query: DiffQuery) -> Answer:
    from lightning_perf.documents import page_json
    from lightning_perf.errors import ReportError, TraceError
    from lightning_perf.report.document import PerfReport
    from lightning_perf.tensorboard.cache import is_intact

    _tables.clear()
    reports = []
    for path in (query.before, query.after):
        try:
            data = Path(path).read_bytes()
        except OSError:
            return Damaged(path)
        try:
            reports.append(PerfReport.from_json(data))
        except (ReportError, ValueError) as error:
            return Failed(str(error)) if is_intact(data, "report") else Damaged(path)
    before, after = reports
    try:
        return Done(page_json(before.diff(after)))
    except (TraceError, ReportError, ValueError) as error:
        return Failed(str(error))
