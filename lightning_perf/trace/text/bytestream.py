"""Reads the bytes of a trace file and decompresses them, up to a limit."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning_perf.errors import TraceError

_inflater: Any = zlib
with suppress(ImportError):
    from isal import isal_zlib

    _inflater = isal_zlib  # two to three times faster, the same results

crc32: Callable[[Any], int] = _inflater.crc32

_FAULTS: tuple[type[Exception], ...] = (zlib.error, _inflater.error)

READ_BYTES = 1 << 18
"""Bytes per read of the file or of the decompressor."""

GZIP = b"\x1f\x8b"
_OTHER_FORMATS = {
    b"PK\x03\x04": "a zip archive",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"\xfd7zXZ\x00": "compressed with xz",
    b"BZh": "compressed with bzip2",
    b"SQLite format 3\x00": "an SQLite database",
    b"\x80\x02": "a Python pickle",
    b"\x80\x04": "a Python pickle",
    b"\x80\x05": "a Python pickle",
}

MAX_EXPANSION = 200
"""A gzip file that grows by more counts as a bomb. Real traces grow 10 to 35 times, deflate can grow 1,032 times."""

EXPANSION_CHECKED_FROM_BYTES = 256 << 20


class ByteStream:
    """Reads a trace file in chunks. The first bytes show whether it is gzip, not the name.

    Attributes:
        truncated: Whether the compressed data ended early or was damaged; known after the last chunk.
        size_bytes: Size of the file.

    Raises:
        TraceError: The path is missing, a folder, empty, unreadable or in another format.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.truncated = False
        if path.is_dir():
            raise TraceError(path, "is a folder, not a trace file", "Pass one of the trace files in it")
        if path.exists() and not path.is_file():
            # Opening a pipe would wait for a writer, and reading a device might never end.
            raise TraceError(path, "is not a regular file", "Pass a .json or .json.gz trace")
        try:
            with path.open("rb") as file:
                magic = file.read(16)
                self.size_bytes = file.seek(0, os.SEEK_END)
        except FileNotFoundError:
            raise TraceError(path, "does not exist", "Check the path") from None
        except (OSError, ValueError) as error:
            raise TraceError(path, f"cannot be read ({error})", "Check the file's permissions") from error
        if not magic:
            raise TraceError(path, "is empty", "Record the trace again: the recording may have been interrupted")
        for prefix, what in _OTHER_FORMATS.items():
            if magic.startswith(prefix):
                action = "Unpack it and pass the .json or .json.gz trace inside"
                if what == "a Python pickle":
                    action = f"If it is a snapshot of torch.cuda.memory, run lightning-perf analyze {path}"
                raise TraceError(path, f"is {what}, not JSON", action)
        self.is_gzip = magic.startswith(GZIP)

    def chunks(self) -> Iterator[bytes]:
        """Yield the file's (decompressed) content in pieces of at most 256 KB."""
        try:
            with self.path.open("rb", buffering=0) as file:
                raw = iter(lambda: file.read(READ_BYTES), b"")
                yield from self._inflate(raw) if self.is_gzip else raw
        except OSError as error:
            raise TraceError(
                self.path, f"cannot be read ({error})", "Check the disk and copy the file again"
            ) from error

    def _inflate(self, raw: Iterator[bytes]) -> Iterator[bytes]:
        total_bytes = 0
        for out in self._unpacked(raw):
            total_bytes += len(out)
            if total_bytes > EXPANSION_CHECKED_FROM_BYTES and total_bytes > MAX_EXPANSION * self.size_bytes:
                raise TraceError(
                    self.path,
                    f"decompresses to more than {total_bytes / 1e6:,.0f} MB from {self.size_bytes / 1e6:,.3f} MB, "
                    f"over {MAX_EXPANSION} times its size, which no real trace does",
                    "Decompress it yourself if you trust it, and analyze the .json",
                )
            yield out

    def _unpacked(self, raw: Iterator[bytes]) -> Iterator[bytes]:
        inflater: Any = _inflater.decompressobj(wbits=31)
        for chunk in raw:
            data = chunk
            while data:
                if inflater.eof:
                    # A further member (files are appended to one another), or padding after the last.
                    data = data.lstrip(b"\0")
                    if not data:
                        break
                    inflater = _inflater.decompressobj(wbits=31)
                try:
                    out = inflater.decompress(data, READ_BYTES)
                except _FAULTS:
                    self.truncated = True
                    return
                if out:
                    yield out
                if inflater.eof:
                    data = inflater.unused_data
                elif len(inflater.unconsumed_tail) == len(data) and not out:
                    break
                else:
                    data = inflater.unconsumed_tail
        yield from self._rest(inflater)

    def _rest(self, inflater: Any) -> Iterator[bytes]:
        while not inflater.eof:
            try:
                out = inflater.decompress(b"", READ_BYTES)
            except _FAULTS:
                out = b""
            if not out:
                self.truncated = True
                return
            yield out
