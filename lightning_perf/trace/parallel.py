"""Decodes one large trace file in several processes, with the same result as in one.

This process cuts the text into pieces, which is quick, and hands out blocks of them. The worker processes decode the
blocks and return their rows, which are joined here in the order of the file. They read a plain file themselves. Text of
a compressed one is sent to them.
"""

from __future__ import annotations

import gc
import os
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from lightning_perf.trace.assembly import Assembly, AssemblyPart
from lightning_perf.trace.column_builders import InexactTimeError
from lightning_perf.trace.text.pieces import EventText, is_cut_short
from lightning_perf.trace.text.salvage import Salvage
from lightning_perf.workers.channel import Channel, Message
from lightning_perf.workers.process import WorkerError, WorkerProcess, wait_for_messages

BLOCK_BYTES = 8 << 20
"""Minimum length of the text of a block, except for the last ones."""

_QUEUED = 2
"""Blocks that a worker process has at once, so that it does not wait for the next one."""

_AHEAD = 8
"""Finished blocks per worker process that may wait for an earlier one."""


class NotParallelError(Exception):
    """The file has to be decoded in one process, because a worker process or a cut between events failed."""


class Open(Message, frozen=True):
    """Tells a worker process the file."""

    path: str
    exact: bool


class Block(Message, frozen=True):
    """Asks a worker process to decode pieces.

    Attributes:
        places: Begin and length of each piece, in the file or in `text`.
        text: The pieces of a compressed file.
        ended: Whether the last piece is the last of the file.
    """

    places: list[tuple[int, int]]
    text: bytes | None
    event_start: bytes
    ended: bool


class Rows(Message, frozen=True):
    """The rows of a block.

    Attributes:
        part: None if the times have to be read as decimals.
    """

    part: AssemblyPart | None
    repaired: int
    dropped: int


class CutShort(Message, frozen=True):
    """A piece of the block ends inside an event."""


def main(channel: Channel) -> None:
    """Decode blocks until the supervisor asks to stop."""
    gc.disable()
    opened = channel.receive(Open)
    with Path(opened.path).open("rb", buffering=0) as file:
        while True:
            block = channel.receive(Block)
            try:
                channel.send(_decoded(block, file.fileno(), opened.exact))
            except NotParallelError:
                channel.send(CutShort())


def _decoded(block: Block, file: int, exact: bool) -> Rows:
    assembly, salvage = Assembly(exact), Salvage()

    def refuse(piece: bytes) -> bytes:
        if not block.ended and is_cut_short(piece):
            raise NotParallelError  # the rest of the event is in the next piece
        return piece

    try:
        for begin, size in block.places:
            piece = os.pread(file, size, begin) if block.text is None else block.text[begin : begin + size]
            assembly.add(salvage.decode(piece, refuse, block.event_start, exact=exact))
    except InexactTimeError:
        return Rows(None, 0, 0)
    return Rows(assembly.part(), salvage.repaired, salvage.dropped)


def decode_in_processes(
    text: EventText, assembly: Assembly, salvage: Salvage, path: Path, processes: int, *, plain: bool, exact: bool
) -> None:
    """Decode all pieces of a text in so many worker processes.

    Raises:
        InexactTimeError: The file's times have to be read as decimals.
        NotParallelError: One process has to read the file again, from its beginning.
    """
    try:
        with ExitStack() as stack:
            workers = [
                stack.enter_context(WorkerProcess(f"{__name__}:main", Open(str(path.absolute()), exact)))
                for _ in range(processes)
            ]
            for rows in _in_order(workers, _blocks(text, plain=plain)):
                if rows.part is None:
                    raise InexactTimeError
                assembly.extend(rows.part)
                salvage.repaired += rows.repaired
                salvage.dropped += rows.dropped
    except WorkerError as error:
        raise NotParallelError from error


def _in_order(workers: list[WorkerProcess], blocks: Iterator[Block]) -> Iterator[Rows]:
    """Let worker processes decode blocks, and yield the rows of each in the order of the file."""
    running: dict[WorkerProcess, deque[int]] = {worker: deque() for worker in workers}
    free = deque(workers * _QUEUED)
    finished: dict[int, Rows] = {}
    sent = joined = 0
    while True:
        while free and len(finished) < _AHEAD * len(workers) and (block := next(blocks, None)) is not None:
            worker = free.popleft()
            worker.send(block)
            running[worker].append(sent)
            sent += 1
        if joined == sent:
            return
        for worker in wait_for_messages([worker for worker in workers if running[worker]]):
            rows = worker.receive(Rows, CutShort)
            if isinstance(rows, CutShort):
                raise NotParallelError
            finished[running[worker].popleft()] = rows
            free.append(worker)
        while joined in finished:
            yield finished.pop(joined)
            joined += 1


def _blocks(text: EventText, *, plain: bool) -> Iterator[Block]:
    places: list[tuple[int, int]] = []
    pieces: list[bytes] = []
    size = 0

    def block(*, ended: bool = False) -> Block:
        nonlocal size
        done = Block(places.copy(), None if plain else b"".join(pieces), event_start, ended)
        places.clear()
        pieces.clear()
        size = 0
        return done

    event_start = text.event_start
    for piece in text.pieces():
        # Damaged pieces are split where an event begins, and the last one is whole in any case.
        if places and (text.event_start != event_start or text.ended):
            yield block()
        event_start = text.event_start
        places.append((text.piece_begin if plain else size, len(piece)))
        if not plain:
            pieces.append(piece)
        size += len(piece)
        if size >= BLOCK_BYTES:
            yield block(ended=text.ended)
    if places:
        yield block(ended=text.ended)
