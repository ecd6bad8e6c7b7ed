"""Trace files: their names, writing one, and finding the traces of a run.

`PerfCallback` names them ``rank0.1700000000000000000.pt.trace.json.gz``, by the rank and the time of writing.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lightning_perf.errors import TraceError
from lightning_perf.run_files.atomic import atomic_file
from lightning_perf.run_files.captures import is_capture_folder
from lightning_perf.run_files.numerics.precision import PRECISION_NAME
from lightning_perf.run_files.report import REPORT_NAME

PROFILER_SUFFIXES = (".pt.trace.json", ".pt.trace.json.gz")
"""The ends of the names of traces that ``torch.profiler.tensorboard_trace_handler`` and `PerfCallback` write."""

JSON_SUFFIXES = (".json", ".json.gz")

NO_TRACES = (PRECISION_NAME, REPORT_NAME)
"""JSON files of `PerfCallback` next to its traces, which are not traces."""

GZIP_LEVEL = 1
"""Traces are packed between two steps: speed matters more than a quarter of their size."""

_RANK = re.compile(r"(?:^|[^A-Za-z])rank[-_]?(\d{1,9})(?!\d)")
_STAMPED = re.compile(r"(?P<worker>.+)\.\d{9,}(?:\.pt)?(?:\.trace)?\.json(?:\.gz)?$")


def export_trace(stopped: Any, folder: Path, rank: int, unix_ns: int, **options: Any) -> Path:
    """Write the recording of torch's profiler to a packed trace file, completely or not at all.

    The options are those of its ``export_chrome_trace``.
    """
    name = f"rank{rank}.{unix_ns}"
    path = folder / f"{name}.pt.trace.json.gz"
    plain = folder / f".{name}.partial.json"
    try:
        stopped.export_chrome_trace(str(plain), **options)
        if not plain.exists():
            raise OSError(f"torch could not write to {folder}: its disk may be full")
        # torch itself would pack it at the highest level, which takes ten times as long as everything else here.
        with (
            plain.open("rb") as source,
            atomic_file(path) as target,
            gzip.GzipFile(plain.name, "wb", GZIP_LEVEL, target) as packed,
        ):
            shutil.copyfileobj(source, packed, 1 << 20)
    finally:
        for left in folder.glob(f"{plain.stem}*"):  # torch has a partial file of its own
            left.unlink(missing_ok=True)
    return path


def find_traces(path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """List the trace files that a path names, sorted by name.

    A file counts as a trace, whatever its name. A folder is one run: its ``*.pt.trace.json[.gz]`` files or, without
    such files, its ``*.json[.gz]`` files. A folder without either may hold one folder below it that has some.
    """
    path = Path(path)
    try:
        if path.is_file():
            return (path,)
        if not path.is_dir():
            found = "no such file or folder" if not path.exists() else "this is not a regular file"
            raise TraceError(path, found, "Give a trace (.json or .json.gz) or the folder of one run")
        here = _traces_in(path)
        if here:
            return here
        # os.walk does not follow links, so a link cannot lead out of the folder or around in circles.
        folders = (Path(root) for root, _, _ in os.walk(path))
        # A capture belongs to the run next to it. Its folder counts as a run's folder only if it is passed by name.
        own = (folder for folder in folders if folder != path and not is_capture_folder(folder))
        below = {folder: traces for folder in own if (traces := _traces_in(folder))}
    except OSError as error:
        raise TraceError(path, f"cannot be read ({error.strerror})", "Check its permissions") from error
    profiled = {folder: traces for folder, traces in below.items() if traces[0].name.endswith(PROFILER_SUFFIXES)}
    candidates = profiled or below
    if not candidates:
        raise TraceError(path, "holds no trace (*.json or *.json.gz)", "Pass the folder that the profiler wrote to")
    if len(candidates) > 1:
        ages = [(max(trace.stat().st_mtime for trace in traces), folder) for folder, traces in candidates.items()]
        newest = ", ".join(str(folder) for _, folder in sorted(ages, reverse=True)[:3])
        problem = f"holds the traces of {len(candidates)} runs"
        raise TraceError(path, problem, f"Pass one of their folders, the newest are {newest}")
    return next(iter(candidates.values()))


def group_windows(paths: Iterable[Path]) -> tuple[tuple[Path, ...], ...]:
    """Group the files of a run by the process that recorded them: the files of a group are its windows.

    Files belong together by the rank in their names, or by the worker before the time stamp that the profiler's
    handlers append (``worker.1623143089861.pt.trace.json``). A file with neither in its name is a group of its own.

    Example:
        >>> names = ["rank0.17.pt.trace.json", "rank1.17.pt.trace.json", "rank0.29.pt.trace.json", "a.json"]
        >>> [[path.name for path in group] for group in group_windows(map(Path, names))]
        [['rank0.17.pt.trace.json', 'rank0.29.pt.trace.json'], ['rank1.17.pt.trace.json'], ['a.json']]
    """
    groups: dict[str, list[Path]] = {}
    for path in paths:
        rank = rank_in_name(path.name)
        stamped = _STAMPED.match(path.name)
        key = f"rank {rank}" if rank is not None else stamped.group("worker") if stamped else f"file {path}"
        groups.setdefault(key, []).append(path)
    return tuple(tuple(group) for group in groups.values())


def rank_in_name(name: str) -> int | None:
    """Return the rank in the name of a file, or None.

    Example:
        >>> rank_in_name("rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz"), rank_in_name("frank.json")
        (34, None)
    """
    found = _RANK.search(name)
    return int(found.group(1)) if found else None


def _traces_in(folder: Path) -> tuple[Path, ...]:
    files = sorted(entry for entry in folder.iterdir() if not entry.name.startswith(".") and entry.is_file())
    profiled = tuple(entry for entry in files if entry.name.endswith(PROFILER_SUFFIXES))
    return profiled or tuple(f for f in files if f.name.endswith(JSON_SUFFIXES) and f.name not in NO_TRACES)
