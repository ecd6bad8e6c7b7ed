"""JSON Lines files: the log of a run, appended to while the run lasts.

A killed run loses at most the line that it was writing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from lightning_perf.errors import TraceError
from lightning_perf.run_files.atomic import replace_file
from lightning_perf.saved_json import decoder

Value = TypeVar("Value")

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A number that a log holds: not negative, and small enough for numpy's int64."""


class JsonLines(Generic[Value]):
    r"""The format of a file that holds one JSON value per line.

    Args:
        what: Name of a value in error messages, e.g. ``step sample``.
        restart: The bytes that every value starts with. A resumed run appends to the line that the killed run left
            incomplete, and the reader then finds the new value by these bytes.
        durable: Return from a write only once the value is on the disk.

    Example:
        >>> values = JsonLines(dict, "value")
        >>> values.encode({"step": 1}, {"step": 2})
        b'{"step":1}\n{"step":2}\n'
        >>> list(values.decode(b'{"step":1}\n{"st', "steps.jsonl"))
        [{'step': 1}]
    """

    def __init__(
        self, kind: Any, what: str, *, restart: bytes | None = None, own_lines: bool = False, durable: bool = False
    ) -> None:
        self._encode = msgspec.json.Encoder().encode
        self._kind = kind
        self._what = what
        self._restart = restart
        self._own_lines = own_lines
        self._durable = durable

    @cached_property
    def _decode(self) -> Callable[[bytes], Value]:
        return decoder(self._kind)  # which takes a millisecond, so a process that reads no such file has none

    def encode(self, *values: Value) -> bytes:
        """Encode values as lines, each with its newline."""
        start = b"\n" if self._own_lines else b""
        return b"".join(start + self._encode(value) + b"\n" for value in values)

    def append(self, path: Path, *values: Value) -> None:
        """Append values to a file; the file is made when it does not exist."""
        append(path, self.encode(*values), durable=self._durable)

    def read(self, path: str | Path) -> tuple[Value, ...]:
        """Read the values of a file, in the order in which they were written.

        Raises:
            TraceError: The file cannot be read, or a line other than the last cannot be decoded.
        """
        return tuple(self.iterate(path))

    def iterate(self, path: str | Path) -> Iterator[Value]:
        """Read the values of a file one after the other, without keeping all of them."""
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise TraceError(
                path, f"cannot be read ({error.strerror})", "Check the path and its permissions"
            ) from error
        return self.decode(content, path)

    def read_on(self, path: Path, position: int) -> tuple[tuple[Value, ...], int]:
        """Read the values that were appended to a file since the last call. An incomplete last line is left for later.

        Args:
            position: The position that the last call returned; 0 at first.
        """
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < position:
                position = 0
            file.seek(position)
            content = file.read()
        complete = content[: content.rfind(b"\n") + 1]
        return tuple(self.decode(complete, path)), position + len(complete)

    def decode(self, content: bytes, path: str | Path) -> Iterator[Value]:
        """Decode the content of a file. Empty lines and an incomplete last line are skipped."""
        lines = content.split(b"\n")
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                value = self._decode_line(line)
            except msgspec.DecodeError as error:
                torn = not isinstance(error, msgspec.ValidationError)  # such a line lacks its end
                if torn and (number == len(lines) or self._own_lines):
                    continue
                raise TraceError(path, f"line {number} is no {self._what} ({error})", "Remove that line") from error
            yield value

    def _decode_line(self, line: bytes) -> Value:
        try:
            return self._decode(line)
        except msgspec.DecodeError:
            begin = line.rfind(self._restart, 1) if self._restart is not None else -1
            if begin > 0:
                with suppress(msgspec.DecodeError):
                    return self._decode(line[begin:])
            raise


class RankLog(JsonLines[Value]):
    """A log that each rank of a run writes for itself: ``STEM.rank0.jsonl``, ``STEM.rank1.jsonl``, ….

    Example:
        >>> RankLog(dict, "steps", "step sample").path(Path("perf"), 3).name
        'steps.rank3.jsonl'
    """

    def __init__(self, kind: Any, stem: str, what: str, *, restart: bytes | None = None) -> None:
        super().__init__(kind, what, restart=restart)
        self._stem = stem

    def path(self, folder: Path, rank: int) -> Path:
        """The file of a rank in the folder of a run."""
        return folder / f"{self._stem}.rank{rank}.jsonl"

    def paths(self, folder: Path) -> list[Path]:
        """The files of all ranks that are in a folder, sorted by name."""
        return sorted(folder.glob(f"{self._stem}.rank*.jsonl"))

    def replace(self, folder: Path, rank: int, *values: Value) -> Path:
        """Write the file of a rank, atomically, and return its path."""
        path = self.path(folder, rank)
        replace_file(path, self.encode(*values))
        return path

    def read_all(self, folder: Path) -> tuple[Value, ...]:
        """Read the values of all ranks, in the order of the files' names; none without a file."""
        return tuple(value for path in self.paths(folder) for value in self.iterate(path))


class LogWriter(Generic[Value]):
    """Appends to one log until a write fails; that is reported once, and nothing is written afterwards.

    `consequence` is the loss to the user, e.g. ``step times are no longer saved``.
    """

    def __init__(
        self, log: JsonLines[Value], path: Path | None, report: Callable[[str, OSError], None], consequence: str
    ) -> None:
        self._log, self._report, self._consequence = log, report, consequence
        self.path = path
        """The file; None when nothing is written, or no longer."""

    def append(self, *values: Value) -> None:
        """Append values."""
        if self.path is None or not values:
            return
        try:
            self._log.append(self.path, *values)
        except OSError as error:
            self.path = None
            self._report(self._consequence, error)


class OpenFile:
    """A file that stays open to append to it. The death of the process loses nothing that `append` has written."""

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
        self._file: int | None = None
        self._file = os.open(path, flags, 0o666)

    def append(self, content: bytes, *, sync: bool = False) -> None:
        """Append, all or nothing: if the disk fills up, the part that was written is removed again.

        With `sync`, it returns only once the content is on the disk.
        """
        if self._file is None:
            raise ValueError("the file is closed")
        begin = os.fstat(self._file).st_size
        written = 0
        try:
            while written < len(content):  # a nearly full disk takes a part, and refuses only the next write
                written += os.write(self._file, content[written:])
        except OSError:
            if os.fstat(self._file).st_size == begin + written:  # no other process has appended since
                with suppress(OSError):
                    os.ftruncate(self._file, begin)
            raise
        if sync:
            os.fsync(self._file)

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    __del__ = close


def append(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Append to a file, all or nothing. It is made when it does not exist."""
    with closing(OpenFile(path)) as file:
        file.append(content, sync=durable)
