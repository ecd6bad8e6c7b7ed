"""Analyze a memory snapshot in a worker process with limits, because a damaged or hostile file can need any amount.

A pickle of 500 bytes can hold tuples that take years to hash. No other thread of that process runs meanwhile, so the
kernel ends it.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path

from lightning_perf.errors import TraceError
from lightning_perf.memory_snapshot.build import build_report
from lightning_perf.memory_snapshot.document import MemoryReport
from lightning_perf.memory_snapshot.snapshot import read_snapshot
from lightning_perf.units import format_bytes
from lightning_perf.workers.channel import Channel, Message
from lightning_perf.workers.exec_command import die_with
from lightning_perf.workers.limits import MEMORY_SHARE, free_bytes, limit_memory
from lightning_perf.workers.process import WorkerError, WorkerExitError, WorkerProcess

BYTES_PER_BYTE = 24
"""Memory that a snapshot may need per byte of its file. Those of torch need 3 to 6."""

BASE_BYTES = 1 << 30

BASE_S = 15
"""Processor time that any snapshot may need, with the start of the process."""

S_PER_MIB = 3
"""Further processor time per MiB. Snapshots of torch need 0.2 s."""

_DISTRUST = "Record fewer events with max_entries. If somebody sent you the file, do not trust it"


class Analyze(Message, frozen=True):
    """Asks a worker to analyze a snapshot, within seconds of processor time."""

    path: str
    limit_s: int
    supervisor: int


class Analyzed(Message, frozen=True):
    """The report as JSON, or the error: the place, the problem and the fix of a `TraceError`."""

    report: bytes
    error: tuple[str, str, str] | None = None


def analyze_snapshot(path: Path) -> MemoryReport:
    """Analyze a memory snapshot.

    The file is read in a worker process. It may use memory and processor time in proportion to the file's size, and at
    most a share of the free memory.
    """
    if not sys.executable:
        return build_report(read_snapshot(path), path)
    limit_s = BASE_S + S_PER_MIB * (path.stat().st_size >> 20 if path.is_file() else 0)
    task = Analyze(str(path), limit_s, os.getpid())
    try:
        with WorkerProcess("lightning_perf.memory_snapshot.isolated:main", task) as worker:
            answer = worker.receive(Analyzed)
    except WorkerError as error:
        if isinstance(error, WorkerExitError) and error.code == -signal.SIGXCPU:
            raise TraceError(path, f"needs more than {limit_s} s of processor time", _DISTRUST) from error
        raise TraceError(
            path, f"cannot be analyzed ({error})", "Record fewer events with max_entries, or free memory and try again"
        ) from error
    if answer.error is not None:
        raise TraceError(*answer.error)
    return MemoryReport.from_json(answer.report)


def main(channel: Channel) -> None:
    """Analyze one snapshot with limits of memory and time."""
    task = channel.receive(Analyze)
    die_with(task.supervisor)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (task.limit_s, task.limit_s + 5))
    path = Path(task.path)
    allowed = BASE_BYTES + BYTES_PER_BYTE * (path.stat().st_size if path.is_file() else 0)
    limit = limit_memory(share=min(MEMORY_SHARE, allowed / max(1, free_bytes())), least_bytes=BASE_BYTES)
    try:
        report = build_report(read_snapshot(path), path)
        channel.send(Analyzed(report.to_json(indent=None).encode()))
    except TraceError as error:
        channel.send(Analyzed(b"", (error.where, error.problem, error.action)))
    except MemoryError:
        channel.send(Analyzed(b"", (str(path), f"needs more than {format_bytes(limit)} of memory", _DISTRUST)))
