"""Analyze a memory snapshot in a worker process with a memory limit, because a damaged or hostile file can need any."""

from __future__ import annotations

import sys
from pathlib import Path

from lightning_perf.errors import TraceError
from lightning_perf.memory_snapshot.build import build_report
from lightning_perf.memory_snapshot.document import MemoryReport
from lightning_perf.memory_snapshot.snapshot import read_snapshot
from lightning_perf.units import format_bytes
from lightning_perf.workers.channel import Channel, Message
from lightning_perf.workers.memory_limit import MEMORY_SHARE, free_bytes, limit_memory
from lightning_perf.workers.process import WorkerError, WorkerProcess

BYTES_PER_BYTE = 24
"""Memory that a snapshot may need per byte of its file. Those of torch need 3 to 6."""

BASE_BYTES = 1 << 30


class Analyze(Message, frozen=True):
    """Asks a worker to analyze a snapshot."""

    path: str


class Analyzed(Message, frozen=True):
    """The report as JSON, or the error: the place, the problem and the fix of a `TraceError`."""

    report: bytes
    error: tuple[str, str, str] | None = None


def analyze_snapshot(path: Path) -> MemoryReport:
    """Analyze a memory snapshot.

    The file is read in a worker process. It may use a multiple of the file's size, and at most a share of the free
    memory.
    """
    if not sys.executable:
        return build_report(read_snapshot(path), path)
    try:
        with WorkerProcess("lightning_perf.memory_snapshot.isolated:main", Analyze(str(path))) as worker:
            answer = worker.receive(Analyzed)
    except WorkerError as error:
        raise TraceError(
            path, f"cannot be analyzed ({error})", "Record fewer events with max_entries, or free memory and try again"
        ) from error
    if answer.error is not None:
        raise TraceError(*answer.error)
    return MemoryReport.from_json(answer.report)


def main(channel: Channel) -> None:
    """Analyze one snapshot with a limit of memory."""
    path = Path(channel.receive(Analyze).path)
    allowed = BASE_BYTES + BYTES_PER_BYTE * (path.stat().st_size if path.is_file() else 0)
    limit = limit_memory(share=min(MEMORY_SHARE, allowed / max(1, free_bytes())), least_bytes=BASE_BYTES)
    try:
        report = build_report(read_snapshot(path), path)
        channel.send(Analyzed(report.to_json(indent=None).encode()))
    except TraceError as error:
        channel.send(Analyzed(b"", (error.where, error.problem, error.action)))
    except MemoryError:
        action = "Record fewer events with max_entries. If somebody sent you the file, do not trust it"
        channel.send(Analyzed(b"", (str(path), f"needs more than {format_bytes(limit)} of memory", action)))
