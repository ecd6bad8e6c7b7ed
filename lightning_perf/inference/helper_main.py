"""The other side of `Helper`: what every helper process does around its task."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from lightning_perf.inference.errors import InferenceError, VariantError
from lightning_perf.inference.messages import Failed, Reply, Request
from lightning_perf.inference.runtimes.faults import reason_of

__all__ = ["Channel", "run_helper"]

O = TypeVar("O", bound=msgspec.Struct)  # noqa: E741


class Channel:
    """Requests from the measuring process, and replies to it."""

    def __init__(self) -> None:
        # Libraries print to standard output, also from C++: what they print must not be taken for a reply.
        self._replies = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)

    def reply(self, reply: Reply) -> None:
        """Send a reply."""
        self._replies.write(msgspec.json.encode(reply) + b"\n")

    def requests(self) -> Iterator[Request]:
        """The requests, until the measuring process ends or closes its side."""
        decoder: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
        for line in sys.stdin.buffer:
            yield decoder.decode(line)


def run_helper(order: type[O], task: Callable[[O, Channel], None]) -> None:
    """Carry out the order in the process's argument.

    Whatever goes wrong becomes a reply: libraries that build and run models raise errors of any type.

    Args:
        order: Type of the order.
        task: What to do with it.
    """
    channel = Channel()
    try:
        task(msgspec.json.decode(sys.argv[1], type=order), channel)
    except (VariantError, InferenceError) as error:
        channel.reply(Failed(str(error)))
    except Exception as error:
        traceback.print_exc()
        channel.reply(Failed(reason_of(error)))
