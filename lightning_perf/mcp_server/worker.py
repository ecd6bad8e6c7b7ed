"""The worker process that answers one call of a tool, with limited memory and confined to the folders of the server."""

from __future__ import annotations

from pathlib import Path

import msgspec

from lightning_perf.mcp_server.confinement import confine_process
from lightning_perf.mcp_server.tools import TOOLS, Result, error_result
from lightning_perf.workers.channel import Channel, Message
from lightning_perf.workers.memory_limit import limit_memory

LARGEST_BYTES = 32 << 20
"""Largest document that an answer keeps. That of a run of eight ranks has about 3 MB."""


class Call(Message, frozen=True):
    """A call of a tool.

    Attributes:
        arguments: Its arguments as JSON, already checked.
        folders: The folders of the server, resolved.
        memory_bytes: Memory that the call may use, unless it runs the user's code.
    """

    tool: str
    arguments: bytes
    folders: tuple[str, ...]
    memory_bytes: int


class Returned(Message, frozen=True):
    """The result of a call.

    Attributes:
        result: JSON, with the members ``outcome`` and ``message``.
    """

    result: bytes


def main(channel: Channel) -> None:
    """Answer one call."""
    call = channel.receive(Call)
    tool = TOOLS[call.tool]
    folders = [Path(folder) for folder in call.folders]
    limit = None
    if not tool.runs_code:
        limit = limit_memory(most_bytes=call.memory_bytes)
        confine_process(folders)
    try:
        arguments = msgspec.json.decode(call.arguments, type=tool.arguments)
        result = _encode(tool.answer(folders, **msgspec.structs.asdict(arguments)))
    except MemoryError:
        size = f"{limit / 1e9:.1f} GB of " if limit is not None else ""
        action = "Start the server with a larger --memory, or run the command of the same name in a terminal."
        result = msgspec.json.encode(error_result(f"It needs more than the {size}memory that a call may use. {action}"))
    except Exception as error:  # every failure is an answer
        result = msgspec.json.encode(error_result(_describe(error)))
    channel.send(Returned(result))


def _encode(result: Result) -> bytes:
    data = msgspec.json.encode(result)
    if len(data) <= LARGEST_BYTES:
        return data
    omitted = (
        f"The document has more than {LARGEST_BYTES >> 20} MB and was left out. Print it with --json in a terminal."
    )
    return msgspec.json.encode({**result, "document": omitted})


def _describe(error: Exception) -> str:
    ours = type(error).__module__.partition(".")[0] == __name__.partition(".")[0]
    return str(error) if ours else f"{type(error).__name__}: {error}"
