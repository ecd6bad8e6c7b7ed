"""Large columns are in files that are mapped into memory, so that the system can drop the parts that are not in use."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from typing import Any, BinaryIO, TypeVar
from weakref import WeakSet

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

LARGE_BYTES = 8 << 20
"""Columns of this size and more are on disk."""

_DONTNEED = 4  # MADV_DONTNEED of Linux, macOS and BSD
_MAPPINGS: WeakSet[mmap.mmap] = WeakSet()
_Value = TypeVar("_Value")


def is_large(size: int) -> bool:
    """Return whether a column of this size in bytes is to be on disk."""
    return size >= LARGE_BYTES


def map_file(file: BinaryIO, size: int = 0) -> mmap.mmap:
    """Map a file into memory, of this size or whole, so that `release_columns` can give its memory back."""
    mapping = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    if hasattr(mapping, "madvise"):  # not on Windows
        _MAPPINGS.add(mapping)
    return mapping


def release_columns() -> None:
    """Give back the memory of columns that are in files. They are read again where they are needed."""
    with suppress(RuntimeError):  # another thread has just mapped a file
        for mapping in _MAPPINGS:
            mapping.madvise(_DONTNEED)


class ColumnFile:
    """A file without a name, to which the numbers of a column are appended.

    Attributes:
        size: Bytes that are in it.
        full: Whether it takes no more: there is no folder that can be written, or no room in it.
    """

    def __init__(self) -> None:
        self.size = 0
        self.full = False
        self._file: BinaryIO | None = None

    def append(self, numbers: memoryview) -> bool:
        """Write numbers at the end; return whether there was room for them."""
        data, done = numbers.cast("B"), 0
        try:
            self._file = self._file or _nameless_file()
            self.full = self.full or not _has_room(self._file)
            while done < len(data) and not self.full:
                done += os.pwrite(self._file.fileno(), data[done:], self.size + done)
        except (OSError, AttributeError):  # Windows has no `pwrite`
            self.full = True
        self.size += 0 if self.full else done
        return not self.full

    def numbers(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return all numbers. The array keeps the file."""
        if self._file is None or not self.size:
            return np.empty(0, dtype)
        return np.frombuffer(map_file(self._file, self.size), dtype)

    def __del__(self) -> None:
        """Close the file. It goes when no array keeps it either."""
        if self._file is not None:
            self._file.close()


def on_disk(value: _Value) -> _Value:
    """Return a value with each large array in it, alone or in a table, tuple or dictionary, replaced by one on disk."""
    found: Any = value
    if isinstance(value, np.ndarray):
        large = (
            is_large(value.nbytes) and value.ndim == 1 and value.flags.writeable
        )  # others are on disk, or one number
        file = ColumnFile()
        if large and file.append(np.ascontiguousarray(value).view(np.uint8).data):
            found = file.numbers(value.dtype)
    elif isinstance(value, Struct):
        found = replace(value, **{name: on_disk(getattr(value, name)) for name in value.__struct_fields__})
    elif isinstance(value, tuple):
        found = tuple(map(on_disk, value))
    elif isinstance(value, dict):
        found = {key: on_disk(each) for key, each in value.items()}
    same_type: _Value = found
    return same_type


def _nameless_file() -> BinaryIO:
    """Open a file in the cache folder, which is rarely in memory as ``/tmp`` may be, or else in the temporary one."""
    import tempfile

    from lightning_perf.run_files.user_cache import CACHE_VARIABLE, OFF, cache_root

    if os.environ.get(CACHE_VARIABLE) != OFF:
        folder = cache_root()
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file: BinaryIO = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
            if _has_room(file):
                return file
            file.close()
    return tempfile.TemporaryFile(buffering=0)


def _has_room(file: BinaryIO) -> bool:
    from lightning_perf.run_files.user_cache import SPARE_BYTES

    disk = os.fstatvfs(file.fileno())
    return disk.f_bavail * disk.f_frsize > SPARE_BYTES
