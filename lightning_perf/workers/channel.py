"""The pipe between a supervisor and its worker process: typed messages, and the worker's side of it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import lru_cache
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar, Union, overload

import msgspec

from lightning_perf.workers.exit_status import kill_group


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
