"""A path ─► the trace files of one run, with their ranks and in time order."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from lightning_perf.trace.bytestream import ByteStream
from lightning_perf.trace.errors import TraceError
from lightning_perf.trace.metadata import read_metadata
from lightning_perf.trace.pieces import EventText

__all__ = ["TraceFile", "find_traces"]

_RANK = re.compile(r"(?:^|[^a-z])rank[-_]?(\d{1,9})(?!\d)", re.IGNORECASE)
_TIME = re.compile(r"\.(\d{12,20})(?=\.)")
_ENDINGS = (".json", ".json.gz")
_ACTION = "Name a trace that torch.profiler exported, or the folder that holds one run's traces"


@dataclass(frozen=True)
class TraceFile:
    """One trace file of a run.

    Attributes:
        path: Where it is.
        rank: The rank that recorded it: as the file states it (``distributedInfo``), else as its name does
            (``rank3.…``), else by the order of the names.
        window: Position among the rank's files in time, from 0.
    """

    path: Path
    rank: int
    window: int


def find_traces(path: str | os.PathLike[str]) -> tuple[TraceFile, ...]:
    """Find the trace files of a run.

    Args:
        path: A trace file, or a folder that holds one run's traces (``rank0.1700000000.pt.trace.json.gz``,
            ``worker0.123.pt.trace.json``, or any other ``.json`` and ``.json.gz`` that hold trace events). When a
            folder has none itself, the one folder below it that has some is taken.

    Returns:
        The files by rank, then by time.

    Raises:
        TraceError: If the path does not exist, holds no trace, or holds several runs.
    """
    path = Path(path)
    if path.is_file():
        rank, _ = _rank(path)
        return (TraceFile(path, 0 if rank is None else rank, 0),)
    if not path.is_dir():
        raise TraceError(path, "does not exist", "Check the path")
    found = _traces_in(path)
    if not found:
        below = {folder: files for folder in _folders_below(path) if (files := _traces_in(folder))}
        if len(below) > 1:
            some = ", ".join(str(folder.relative_to(path)) for folder in list(below)[:5])
            raise TraceError(path, f"holds the traces of several runs ({some}, …)", "Name one of these folders")
        found = next(iter(below.values()), [])
    if not found:
        raise TraceError(path, "holds no trace files", _ACTION)
    return _ordered(found)


def _folders_below(path: Path) -> list[Path]:
    return sorted(Path(folder) for folder, _, _ in os.walk(path) if Path(folder) != path)


def _traces_in(folder: Path) -> list[tuple[Path, int | None]]:
    """The files that hold trace events, with the rank they state; of a file and its gzipped copy only one."""
    found: dict[str, tuple[Path, int | None]] = {}
    try:
        candidates = sorted(p for p in folder.iterdir() if p.name.endswith(_ENDINGS) and not p.name.startswith("."))
    except OSError as fault:
        raise TraceError(folder, f"cannot be read ({fault})", "Check the folder's permissions") from fault
    for candidate in candidates:
        rank, is_trace = _rank(candidate)
        if is_trace:
            found.setdefault(candidate.name.removesuffix(".gz"), (candidate, rank))
    return list(found.values())


def _rank(path: Path) -> tuple[int | None, bool]:
    """The rank that a file states or its name does, and whether the file holds trace events."""
    named = _RANK.search(path.name)
    by_name = int(named.group(1)) if named else None
    try:
        stream = ByteStream(path)
        text = EventText(path, stream.chunks())
    except TraceError:
        return by_name, False
    stated = read_metadata(text.header, b"{}").rank
    return (by_name if stated is None else stated), text.looks_like_events


def _ordered(found: list[tuple[Path, int | None]]) -> tuple[TraceFile, ...]:
    # Without a rank the part of the name before the time tells the workers apart.
    workers = sorted({_worker(path) for path, rank in found if rank is None})
    first_free = max((rank for _, rank in found if rank is not None), default=-1) + 1
    by_rank: dict[int, list[Path]] = {}
    for path, rank in found:
        by_rank.setdefault(first_free + workers.index(_worker(path)) if rank is None else rank, []).append(path)
    return tuple(
        TraceFile(path, rank, window)
        for rank in sorted(by_rank)
        for window, path in enumerate(sorted(by_rank[rank], key=lambda p: (_time(p), p.name)))
    )


def _worker(path: Path) -> str:
    return _TIME.split(path.name)[0]


def _time(path: Path) -> int:
    found = _TIME.search(path.name)
    return int(found.group(1)) if found else 0
