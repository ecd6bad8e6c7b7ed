"""The pipe between a supervisor and its worker process: messages, the worker's side, and how it ended."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any, TypeVar, Union, overload

import msgspec

LOG_BYTES = 4000
CRASHES = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS")
"""Signals for a fault of the program itself. All others come from outside."""


def describe_exit(code: int | None) -> str:
    """Describe how a process ended, as the end of a sentence with the process as its subject.

    Example:
        >>> describe_exit(3)
        'ended with exit code 3'
        >>> describe_exit(-signal.SIGSEGV)
        'crashed with SIGSEGV'
        >>> describe_exit(-signal.SIGKILL)
        'was killed by SIGKILL (out of memory?)'
    """
    if code is None:
        return "closed its connection"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if name in CRASHES:
        return f"crashed with {name}"
    # The kernel sends SIGKILL when memory runs out, and reports that only in its own log.
    return f"was killed by {name}{' (out of memory?)' if name == 'SIGKILL' else ''}"


def last_lines(log: IO[bytes], count: int = 3) -> str:
    """Return the last lines of a log that are not blank, joined by ``|``."""
    log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_BYTES))
    lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-count:])


def kill_group(process: int) -> None:
    """Kill the processes of a group, even if the process that leads it has ended already."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base class of messages. Each message carries the name of its class."""


class Stop(Message, frozen=True):
    """The supervisor asks the worker process to end."""


class Failure(Message, frozen=True):
    """An error ended the worker process."""

    error: str
    reason: str


M = TypeVar("M", bound=Message)

encode = msgspec.msgpack.encode


def decode(data: bytes, *kinds: type[Message]) -> Message:
    """Decode a message of one of several classes. Raise a `msgspec.DecodeError` if it is of none of them."""
    return _decoder(kinds).decode(data)


@lru_cache
def _decoder(kinds: tuple[type[Message], ...]) -> msgspec.msgpack.Decoder[Message]:
    return msgspec.msgpack.Decoder(Union[kinds])  # noqa: UP007  (their number varies)


class StopRequestedError(Exception):
    """The supervisor asks the worker process to end."""


class Channel:
    """Connects a worker process to its supervisor.

    If the supervisor ends, the worker process and all processes that it started are killed at once.

    Attributes:
        describe: Turns an error into text for the supervisor. Replace it to word the errors of your libraries.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self.describe: Callable[[BaseException], str] = _describe
        self._connection = Connection(descriptor)
        self._messages: SimpleQueue[bytes] = SimpleQueue()
        Thread(target=self._read, name="supervisor", daemon=True).start()

    def send(self, message: Message) -> None:
        """Send a message."""
        self._connection.send_bytes(encode(message))

    @overload
    def receive(self, kind: type[M], /) -> M: ...

    @overload
    def receive(self, *kinds: type[Message]) -> Any: ...

    def receive(self, *kinds: type[Message]) -> Any:
        """Wait for the next message."""
        message = decode(self._messages.get(), *kinds, Stop)
        if isinstance(message, Stop):
            raise StopRequestedError
        return message

    def _read(self) -> None:
        try:
            while True:
                self._messages.put(self._connection.recv_bytes())
        except (EOFError, OSError):
            kill_group(os.getpid())
            os._exit(1)  # this process leads no group


def serve(target: str, descriptor: int) -> None:
    """Run a function as a worker process."""
    channel = Channel(descriptor)
    module, _, name = target.partition(":")
    try:
        getattr(importlib.import_module(module), name)(channel)
    except StopRequestedError:
        return
    except (Exception, SystemExit) as error:
        channel.send(Failure(type(error).__name__, channel.describe(error)))
        raise


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")
