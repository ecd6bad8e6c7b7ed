"""Messages between a supervisor and its worker process.

Each one is a MessagePack document. Unlike JSON, MessagePack has bytes and NaN, which a loss may be.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeVar, Union

import msgspec

__all__ = ["Failure", "M", "Message", "Stop", "decode", "encode"]


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base class of messages. Each message carries the name of its class."""


class Stop(Message, frozen=True):
    """The supervisor asks the worker process to end."""


class Failure(Message, frozen=True):
    """An error ended the worker process.

    Attributes:
        error: Name of the error's class.
        reason: What went wrong.
    """

    error: str
    reason: str


M = TypeVar("M", bound=Message)

encode = msgspec.msgpack.encode


def decode(data: bytes, *kinds: type[Message]) -> Message:
    """Decode a message of one of several classes.

    Raises:
        msgspec.DecodeError: It is of none of them.
    """
    return _decoder(kinds).decode(data)


@lru_cache
def _decoder(kinds: tuple[type[Message], ...]) -> msgspec.msgpack.Decoder[Message]:
    return msgspec.msgpack.Decoder(Union[kinds])  # noqa: UP007  (their number varies)
