"""The worker process: it makes documents, and compares finished reports.

A report can take a second to read and a gigabyte of memory. In TensorBoard's own process that would block all tabs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from lightning_perf.tensorboard.jobs import Answer, Damaged, DiffQuery, Done, Failed, Job, Task, Working
from lightning_perf.workers.channel import Channel
from lightning_perf.workers.memory_limit import limit_memory

ANALYSIS_NICENESS, QUERY_NICENESS = 10, 5
"""Both are lower than the priority of training. A reader waits for a comparison."""


def main(channel: Channel) -> None:
    """Do a job at low priority and with limited memory."""
    job: Job = channel.receive(Task, DiffQuery)
    os.nice(ANALYSIS_NICENESS if isinstance(job, Task) else QUERY_NICENESS)
    limit = limit_memory()
    try:
        answer = work(job, channel.send)
    except MemoryError:
        noun, command = ("analysis", "analyze PATH") if isinstance(job, Task) else ("comparison", "diff A B")
        need = f"The {noun} needs more than {limit / 1e9:.1f} GB, three quarters of the memory that was free."
        answer = Failed(f"{need} Free some memory, or run `lightning-perf {command}` on a larger machine.", 500)
    channel.send(answer)


def work(job: Job, on_progress: Callable[[Working], None]) -> Answer:
    """Do a job."""
    if isinstance(job, Task):
        from lightning_perf.tensorboard.documents import make_document

        return make_document(job, on_progress)
    return _answer_diff(job)


def _answer_diff(query: DiffQuery) -> Answer:
    from lightning_perf.documents import page_json
    from lightning_perf.errors import ReportError, TraceError
    from lightning_perf.report.document import PerfReport
    from lightning_perf.tensorboard.cache import is_intact

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
