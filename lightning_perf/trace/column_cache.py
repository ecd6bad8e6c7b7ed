"""The cache of columns: a large trace file that was decoded once is not decoded again.

An entry is one file: a mark, a digest of its description, the description as JSON with a checksum of each column, and
the columns, which are mapped into memory. Its name is a digest of the decoder and of the trace file: its size, the time
of its last change, and a checksum of each of its blocks. So an entry is used only for unchanged content.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from lightning_perf.run_files.atomic import atomic_file
from lightning_perf.run_files.user_cache import (
    CACHE_VARIABLE,
    OFF,
    SPARE_BYTES,
    bound_folder,
    cache_root,
    is_own_folder,
)
from lightning_perf.trace.on_disk import map_file, release_columns
from lightning_perf.trace.text.bytestream import GZIP, crc32
from lightning_perf.trace.trace import Trace

LARGE_BYTES = 64 << 20
LARGE_GZIP_BYTES = 4 << 20
"""Files of this size and more are kept. They take 0.3 s and more to decode."""

MOST_BYTES = 4 << 30
"""Maximum size of all entries. Beyond it, the least recently used ones are removed."""

SETTLED_S = 2.0
"""A file that changed more recently is not kept: a second change could have the same time."""

_MARK = b"lightning_perf columns\n\0"
_HEAD_BYTES = len(_MARK) + 32 + 8
_BLOCK_BYTES = 1 << 18
_ALIGNED_BYTES = 64
_FAULTS = (OSError, ValueError, TypeError, msgspec.MsgspecError)
"""The errors of an entry that is missing or damaged, or cannot be written."""


class Entry(Struct, frozen=True):
    """The place in the cache for the columns of a trace file.

    Attributes:
        path: The file of the entry, which may not exist.
        trace_path: The trace file.
        state: Size and times of the trace file when it was read to name the entry.
    """

    path: Path
    trace_path: Path
    state: tuple[int, ...]


def find_entry(path: Path) -> Entry | None:
    """Return the place for a trace file; None if the file is small or not settled, or if the cache is off."""
    if os.environ.get(CACHE_VARIABLE) == OFF:
        return None
    try:
        if not path.is_file():
            return None
        with path.open("rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            large = LARGE_GZIP_BYTES if file.read(2) == GZIP else LARGE_BYTES
            if status.st_size < large or status.st_mtime > time.time() - SETTLED_S:
                return None
            file.seek(0)
            key = hashlib.sha256(decoder_version())
            key.update(f"{status.st_size} {status.st_mtime_ns} ".encode())
            block = bytearray(_BLOCK_BYTES)
            view = memoryview(block)
            while size := file.readinto(block):
                key.update(crc32(view[:size]).to_bytes(4, "little"))
        return Entry(cache_root() / "columns" / key.hexdigest()[:40], path, _state(status))
    except _FAULTS:
        return None


@cache
def decoder_version() -> bytes:
    """Return a digest of the code that makes columns. Code that cannot be read raises an `OSError`."""
    digest = hashlib.sha256(f"{msgspec.__version__} {np.__version__} {sys.byteorder}".encode())
    sources = sorted(Path(__file__).parent.glob("*.py"))
    if not sources:
        raise FileNotFoundError(__file__)
    for path in sources:
        digest.update(path.read_bytes())
    return digest.digest()


def load(entry: Entry) -> Trace | None:
    """Return the columns of an entry; None without one. A damaged entry is removed."""
    if not is_own_folder(entry.path.parent):
        return None
    try:
        with entry.path.open("rb") as file:
            mapping = map_file(file)
    except _FAULTS:
        return None
    try:
        trace = _decoded(mapping)
        with suppress(OSError):
            os.utime(entry.path)
    except _FAULTS:
        with suppress(OSError):
            entry.path.unlink()
        return None
    return replace(trace, sources=(str(entry.trace_path),))


def store(entry: Entry, trace: Trace) -> None:
    """Keep the columns of a trace if there is room, and the trace file has not changed while it was read."""
    folder = entry.path.parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_own_folder(folder) or _state(entry.trace_path.stat()) != entry.state:
            return
        parts = _encoded(trace)
        size = sum(map(len, parts))
        if size > min(MOST_BYTES, shutil.disk_usage(folder).free - SPARE_BYTES):
            return
        with atomic_file(entry.path, mode=0o600, durable=False) as file:  # the digest shows an incomplete entry
            for part in parts:
                file.write(part)
                release_columns()
        bound_folder(folder, MOST_BYTES)
    except _FAULTS:
        return  # the next reader decodes the file, too


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class _Column(msgspec.Struct, array_like=True):
    """Where a column is, from the end of the description on. One stored number may stand for all rows."""

    dtype: str
    begin: int
    stored: int
    rows: int
    checksum: int


def _encoded(trace: Trace) -> list[memoryview]:
    """Return the parts of an entry."""
    columns: list[memoryview] = []
    size = 0

    def column(value: object) -> _Column:
        nonlocal size
        if not isinstance(value, np.ndarray) or value.ndim != 1:
            raise TypeError(f"not a column: {type(value)}")
        stored = np.ascontiguousarray(value if value.strides[0] else value[:1])
        data = stored.view(np.uint8).data
        described = _Column(value.dtype.str, size, len(stored), len(value), crc32(data))
        release_columns()
        columns.extend((data, memoryview(bytes(-len(data) % _ALIGNED_BYTES))))
        size += len(data) + len(columns[-1])
        return described

    header = msgspec.json.encode(replace(trace, sources=()), enc_hook=column)
    header += b" " * (-(_HEAD_BYTES + len(header)) % _ALIGNED_BYTES)
    head = _MARK + hashlib.sha256(header).digest() + len(header).to_bytes(8, "little")
    return [memoryview(head), memoryview(header), *columns]


def _decoded(mapping: mmap.mmap) -> Trace:
    """Return the trace of an entry. Raise one of `_FAULTS` if a part is missing or damaged."""
    content = memoryview(mapping)
    begin = _HEAD_BYTES + int.from_bytes(content[_HEAD_BYTES - 8 : _HEAD_BYTES], "little")
    header = content[_HEAD_BYTES:begin]
    if content[: _HEAD_BYTES - 8] != _MARK + hashlib.sha256(header).digest():
        raise ValueError("damaged")

    def column(_: type, value: Any) -> NDArray[Any]:
        described = msgspec.convert(value, _Column)
        dtype, at = np.dtype(described.dtype), begin + described.begin
        data = content[at : at + described.stored * dtype.itemsize]
        if crc32(data) != described.checksum:
            raise ValueError("damaged")
        release_columns()  # an analysis reads only some of them again
        numbers = np.frombuffer(data, dtype) if len(data) else np.empty(0, dtype)
        return numbers if described.stored == described.rows else np.broadcast_to(numbers, described.rows)

    return msgspec.json.decode(header, type=Trace, dec_hook=column)
