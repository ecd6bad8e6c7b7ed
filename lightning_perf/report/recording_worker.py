"""`RecordingWorker`: a process that analyses one recording after another.

It is a fresh interpreter that is told what to read on its standard input and answers in JSON, a line each: unlike a
pool of ``multiprocessing`` it never imports the caller's main module again, which in a training script would start
training.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from lightning_perf.report.recording import Recording, analyze_recording, decode_recording, encode_recording

__all__ = ["RecordingWorker", "serve"]

_COMMAND = "from lightning_perf.report.recording_worker import serve; serve()"


class _Task(msgspec.Struct):
    paths: list[str]
    by_shape: bool


class RecordingWorker:
    """Has recordings analysed in a process of its own, which lives as long as the context.

    Args:
        by_shape: Whether operators are told apart by the shapes of their inputs.
    """

    def __init__(self, *, by_shape: bool) -> None:
        self._by_shape = by_shape
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> RecordingWorker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def analyze(self, paths: Sequence[Path]) -> Recording:
        """Read the windows of one process, and analyse them together.

        Args:
            paths: Its files.

        Raises:
            KeyboardInterrupt: The process was interrupted, as this one will have been.
        """
        task = msgspec.json.encode(_Task([str(path) for path in paths], self._by_shape))
        answer = self._ask(task + b"\n")
        if not answer:  # killed, or no interpreter to be had: here it either works or says what is wrong
            if self._end() == -signal.SIGINT:
                raise KeyboardInterrupt
            return analyze_recording(paths, by_shape=self._by_shape)
        return decode_recording(answer)

    def _ask(self, task: bytes) -> bytes:
        if self._process is None:
            self._process = _start()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(task)
            self._process.stdin.flush()
        except OSError:  # it has ended
            return b""
        line = self._process.stdout.readline()
        return line if line.endswith(b"\n") else b""

    def _end(self) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        try:
            process.communicate()  # closes its standard input
        except OSError:  # what was left to write did not arrive
            process.wait()
        return process.returncode


def _start() -> subprocess.Popen[bytes]:
    package_root = str(Path(__file__).parents[2])
    search = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-c", _COMMAND],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": search},
    )


def serve() -> None:
    """Be a worker: carry out the tasks on standard input until it is closed."""
    for line in sys.stdin.buffer:
        task = msgspec.json.decode(line, type=_Task)
        recording = analyze_recording([Path(path) for path in task.paths], by_shape=task.by_shape)
        sys.stdout.buffer.write(encode_recording(recording) + b"\n")
        sys.stdout.buffer.flush()
