"""Reads a trace file into a `Trace`, at about the speed of decoding it. Memory grows with the columns, not the text."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from lightning_perf.errors import TraceError
from lightning_perf.trace.assembly import Assembly
from lightning_perf.trace.column_builders import InexactTimeError
from lightning_perf.trace.description import Problems, read_metadata
from lightning_perf.trace.tables import build_tables
from lightning_perf.trace.tensors import read_tensors
from lightning_perf.trace.text.bytestream import ByteStream
from lightning_perf.trace.text.pieces import EventText
from lightning_perf.trace.text.salvage import Salvage
from lightning_perf.trace.trace import Trace

CACHED_BYTES = 4 << 20
"""Files of this size and more may be in the cache of columns."""

PARALLEL_BYTES = 256 << 20
PARALLEL_GZIP_BYTES = 16 << 20
"""Files of this size and more are worth worker processes, which take a few tenths of a second to start."""


def read_trace(path: str | os.PathLike[str], *, processes: int = 1) -> Trace:
    """Read a trace file that ``torch.profiler`` exported.

    It reads files of every Kineto version, from NVIDIA and AMD devices or without a device. Damaged files are read as
    far as possible, and `Trace.problems` counts their faults. Nothing in a file is executed, and no path in it is
    followed.

    Args:
        path: A Chrome-trace JSON file, plain or gzipped (known by its content, not by its name).
        processes: Worker processes that share the decoding of a large file. The result is the same.

    Returns:
        The trace as columns.

    Raises:
        TraceError: The file is missing, empty, in another format, holds no event of a PyTorch recording, or
            decompresses to more than 200 times its size.

    Example:
        >>> trace = read_trace("tests/traces/two_steps.json")
        >>> trace.steps.number.tolist()
        [1, 2]
    """
    path = Path(path)
    if not _may_be_cached(path):
        return _decoded(path, processes)
    from lightning_perf.trace.column_cache import find_entry, load, store

    entry = find_entry(path)
    trace = load(entry) if entry is not None else None
    if trace is None:
        trace = _decoded(path, processes)
        if entry is not None:
            store(entry, trace)
            trace = load(entry) or trace  # the system can drop columns of a file from memory when it is short
    return trace


def _may_be_cached(path: Path) -> bool:
    try:
        return path.stat().st_size >= CACHED_BYTES
    except (OSError, ValueError):
        return False  # reading it will raise the error


def _decoded(path: Path, processes: int) -> Trace:
    try:
        return _read(path, processes, exact=False)
    except InexactTimeError:
        # Microseconds since 1970. The first event usually shows it.
        return _read(path, processes, exact=True)


def _read(path: Path, processes: int, *, exact: bool) -> Trace:
    stream = ByteStream(path)
    text = EventText(path, stream.chunks())
    assembly, salvage = Assembly(exact), Salvage()
    if processes > 1 and stream.size_bytes >= (PARALLEL_GZIP_BYTES if stream.is_gzip else PARALLEL_BYTES):
        from lightning_perf.trace.parallel import NotParallelError, decode_in_processes

        try:
            decode_in_processes(text, assembly, salvage, path, processes, plain=not stream.is_gzip, exact=exact)
        except NotParallelError:
            return _read(path, 1, exact=exact)
    else:
        with _collector_off():
            for piece in text.pieces():
                assembly.add(salvage.decode(piece, text.whole_events, text.event_start, exact=exact))
    metadata = read_metadata(text.header, text.trailer)
    unread = assembly.unread()  # the tables take the rows out of it
    tables, bad_durations = build_tables(assembly, metadata.base_time_ns)
    trace = Trace(
        sources=(str(path),),
        names=assembly.names.strings(),
        threads=assembly.threads.values_by_code(),
        type_lists=assembly.type_lists.strings(),
        shape_lists=assembly.shape_lists.strings(),
        stride_lists=assembly.stride_lists.strings(),
        value_lists=assembly.value_lists.strings(),
        **tables,
        metadata=metadata,
        problems=Problems(
            truncated=stream.truncated or text.truncated or metadata.device_stopped is True,
            repaired_events=salvage.repaired,
            dropped_events=salvage.dropped,
            bad_durations=bad_durations,
            **unread,
        ),
    )
    if not any(len(table) for table in (*trace.tables(), trace.memory)):
        raise TraceError(
            path,
            "holds no event of a PyTorch recording"
            + (" (it is cut off)" if trace.problems.truncated else "")
            + (f"; {salvage.dropped} could not be read" if salvage.dropped else ""),
            # torch.profiler writes its own version and the devices, even if it recorded nothing.
            "Record at least one whole step: the profiler's schedule may have ended before its active steps"
            if b'"schemaVersion"' in text.header + text.trailer
            else "Give a trace that torch.profiler exported (export_chrome_trace): this is a file of another tool",
        )
    tensors = read_tensors(text.header, text.trailer)
    return replace(trace, tensors=(replace(tensors, begin_ns=trace.begin_ns),)) if tensors is not None else trace


@contextmanager
def _collector_off() -> Iterator[None]:
    """Turn the cyclic garbage collector off: it would traverse all events again and again and find nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
