"""The journal of a block: what was begun, what ended and how, in lines that are only ever appended."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec

__all__ = ["BlockOver", "BlockState", "Lost", "RunBegan", "RunOver", "append", "read_block"]


class RunBegan(msgspec.Struct, frozen=True, tag="run began"):
    """A run was started."""

    arm: str
    attempt: int
    folder: str
    device: str
    unix_s: float = 0.0


class RunOver(msgspec.Struct, frozen=True, tag="run over"):
    """A run ended; `problem` tells why it does not count."""

    arm: str
    attempt: int
    seconds: float
    problem: str | None = None


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """Whoever was carrying out the block vanished, or was stopped."""

    problem: str


class BlockOver(msgspec.Struct, frozen=True, tag="block over"):
    """The block is done, or given up."""

    done: bool
    problem: str | None = None


Entry: TypeAlias = RunBegan | RunOver | Lost | BlockOver


@dataclass(frozen=True)
class BlockState:
    """What the journal of a block says.

    Attributes:
        attempt: The attempt it is in, from 0.
        finished: Arms that have a finished run in this attempt.
        open_run: A run that was begun and of which no end is recorded.
        begun: Runs begun in all attempts.
        seconds: How long each finished run took, in all attempts.
        events: What went wrong, in words, in order.
        over: Whether the block needs nothing more.
        done: Whether all its runs are finished.
        failure: Why it was given up, or None.
    """

    attempt: int
    finished: frozenset[str]
    open_run: RunBegan | None
    begun: int
    seconds: tuple[float, ...]
    events: tuple[str, ...]
    over: bool
    done: bool
    failure: str | None


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Entry] = msgspec.json.Decoder(Entry)


def journal_path(folder: Path, block: int) -> Path:
    """The journal of a block below the study's folder."""
    return folder / "blocks" / f"block{block:03}.jsonl"


def append(folder: Path, block: int, entry: Entry) -> None:
    """Append an entry, in one write that reaches the disk.

    Args:
        folder: The study's folder.
        block: Number of the block.
        entry: What happened.
    """
    if isinstance(entry, RunBegan):
        entry = msgspec.structs.replace(entry, unix_s=time.time())
    path = journal_path(folder, block)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        # Begins with a newline: the line before it may be torn.
        os.write(descriptor, b"\n" + _encoder.encode(entry) + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_block(folder: Path, block: int) -> BlockState:
    """Read the state of a block.

    Args:
        folder: The study's folder.
        block: Number of the block.

    Returns:
        Its state; a block without a journal has not begun. A torn last line was never written.
    """
    attempt, begun, told = 0, 0, False
    finished: set[str] = set()
    open_run: RunBegan | None = None
    seconds: list[float] = []
    events: list[str] = []
    over: BlockOver | None = None
    for entry in _entries(journal_path(folder, block)):
        if isinstance(entry, RunBegan):
            if open_run is not None and not told:
                events.append(f"the run of {open_run.arm} was cut off and run anew.")
            attempt, open_run, begun, told = entry.attempt, entry, begun + 1, False
        elif isinstance(entry, RunOver):
            open_run = None
            if entry.problem is None:
                finished.add(entry.arm)
                seconds.append(entry.seconds)
            else:
                events.append(f"the run of {entry.arm} failed ({entry.problem}); the whole block is repeated.")
                attempt, finished = entry.attempt + 1, set()
        elif isinstance(entry, Lost):
            events.append(f"{entry.problem}; resumed with the runs that were missing.")
            told = True
        else:
            over = entry
    return BlockState(
        attempt=attempt,
        finished=frozenset(finished),
        open_run=open_run,
        begun=begun,
        seconds=tuple(seconds),
        events=tuple(events),
        over=over is not None,
        done=over is not None and over.done,
        failure=over.problem if over is not None else None,
    )


def _entries(path: Path) -> list[Entry]:
    try:
        texts = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    return [entry for text in texts if (entry := _entry(text)) is not None]


def _entry(text: bytes) -> Entry | None:
    try:
        return _decoder.decode(text)
    except msgspec.DecodeError:  # empty, or torn by the death of its writer
        return None
