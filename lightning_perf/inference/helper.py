"""`Helper`: a process of its own for what may crash, hang or leave traces: building and running one variant."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import msgspec

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.messages import Failed, Reply, Request

__all__ = ["Helper"]

R = TypeVar("R")

_decoder: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)

_TAIL_LINES = 3
_END_S = 10


class Helper:
    """A Python process that carries out an order and answers requests.

    It is started afresh instead of forked: threads and CUDA do not survive a fork, and a fresh process is what a
    deployment is. Whatever kills it is its reason, and nobody else's.

    Args:
        module: What it runs: a module with `main`.
        order: What it is to do, as its argument.
        log: File for what it prints.
        threads: CPU threads that its libraries may use.
        environment: Variables to set besides.
    """

    def __init__(
        self,
        module: str,
        order: msgspec.Struct,
        log: Path,
        *,
        threads: int,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._log = log
        self._buffer = b""
        # The parent's path: the model's module may lie where only it looks.
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        self._file = log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, msgspec.json.encode(order).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._file,
            bufsize=0,
            env={
                **os.environ,
                "PYTHONPATH": path,
                "OMP_NUM_THREADS": str(threads),
                **(environment or {}),
            },
        )

    def __enter__(self) -> Helper:
        """Nothing to do: it runs already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it; at once when something went wrong."""
        if error is not None:
            self.kill()
        else:
            self.close()

    def ask(self, request: Request, reply: type[R], timeout_s: float) -> R:
        """Send a request and wait for its reply.

        Raises:
            VariantError: It failed, crashed or takes too long; the message says which.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died; receiving tells why
            self._process.stdin.write(msgspec.json.encode(request) + b"\n")
        return self.receive(reply, timeout_s)

    def receive(self, reply: type[R], timeout_s: float) -> R:
        """Wait for the next reply.

        Raises:
            VariantError: It failed, crashed or takes too long; the message says which.
        """
        answer = _decoder.decode(self._line(timeout_s))
        if isinstance(answer, Failed):
            raise VariantError(answer.reason)
        if not isinstance(answer, reply):
            raise AssertionError(f"{type(answer).__name__} came instead of {reply.__name__}")
        return answer

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self.close()

    def close(self) -> None:
        """Let the process end, by force when it does not."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._file.close()

    def _line(self, timeout_s: float) -> bytes:
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self._process.kill()
                    raise VariantError(f"it was stopped after {timeout_s:.0f} s without an answer{self._tail()}")
                data = os.read(self._process.stdout.fileno(), 1 << 16)
                if not data:
                    raise VariantError(f"{_death(self._process.wait())}{self._tail()}")
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _tail(self) -> str:
        try:
            lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        last = [line.strip() for line in lines if line.strip()][-_TAIL_LINES:]
        return f"; its last words: {' | '.join(last)}" if last else ""


def _death(code: int) -> str:
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = " (out of memory?)" if name == "SIGKILL" else ""
        return f"its process crashed with {name}{hint}"
    return f"its process ended with exit code {code}"
