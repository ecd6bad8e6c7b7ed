"""``blocks/block001.jsonl``: the journal of a block of a study, with the starts and ends of its runs."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec

from lightning_perf.run_files.jsonl import JsonLines
from lightning_perf.units import format_duration

STUDY_NAME = "study.json"
"""The definition of a study, in the folder that holds ``blocks``."""

_UNFIT = re.compile(r"[^A-Za-z0-9._-]")


class RunBegan(msgspec.Struct, frozen=True, tag="run began"):
    """A run was started."""

    arm: str
    attempt: int
    folder: str
    device: str
    unix_s: float = 0.0


class RunOver(msgspec.Struct, frozen=True, tag="run over"):
    """A run ended.

    Attributes:
        arm: The run's arm.
        attempt: The attempt of the block.
        seconds: Its duration.
        problem: The reason why it does not count, or None.
        revision: The code that it ran.
        invalid: Whether it trained to its end and only its times do not count.
    """

    arm: str
    attempt: int
    seconds: float
    problem: str | None = None
    revision: str | None = None
    invalid: bool = False


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """The process that ran the block died or was stopped."""

    problem: str


class BlockOver(msgspec.Struct, frozen=True, tag="block over"):
    """The block is done, or given up."""

    done: bool
    problem: str | None = None


class Again(msgspec.Struct, frozen=True, tag="again"):
    """The study was run again after the block had been given up. The block gets all its attempts again."""


class Stale(msgspec.Struct, frozen=True, tag="stale"):
    """The finished runs of a block that was cut off are too old to be compared with new ones: the block starts again.

    Attributes:
        gap_s: Seconds since the last of them ended.
    """

    gap_s: float


Entry: TypeAlias = RunBegan | RunOver | Lost | BlockOver | Again | Stale


@dataclass(frozen=True)
class CodeSeen:
    """The code that a finished run ran.

    Attributes:
        arm: The run's arm.
        revision: The code's revision.
        began_unix_s: Start of the run.
    """

    arm: str
    revision: str
    began_unix_s: float


@dataclass(frozen=True)
class BlockState:
    """The state of a block, according to its journal.

    Attributes:
        attempt: The attempt it is in, from 0.
        failures: Failed attempts since the block began, or began again after it had been given up.
        finished: Arms that have a finished run in this attempt.
        open_run: A run with a start and no end.
        begun: Runs begun in all attempts.
        device: Device of the last run, or None.
        seconds: Duration of each finished run, in all attempts.
        code: The code of each finished run, in all attempts, where it is known.
        events: The problems so far, in order, for the user.
        over: Whether the block needs nothing more.
        done: Whether all its runs are finished.
        problem: The last problem of a run, or None.
        failure: Why it was given up, or None.
        failed: Arms with a run that did not finish, in all attempts.
        finished_unix_s: When the last finished run of this attempt ended; None without one, or if it is not known.
        stale_attempts: Attempts that were started again because their finished runs were too old.
    """

    attempt: int
    failures: int
    finished: frozenset[str]
    open_run: RunBegan | None
    begun: int
    device: str | None
    seconds: tuple[float, ...]
    code: tuple[CodeSeen, ...]
    events: tuple[str, ...]
    over: bool
    done: bool
    problem: str | None
    failure: str | None
    failed: frozenset[str] = frozenset()
    finished_unix_s: float | None = None
    stale_attempts: frozenset[int] = frozenset()


# The driver of a block may die at any byte, and another one then continues in the same file.
_ENTRIES: JsonLines[Entry] = JsonLines(Entry, "entry of a journal", own_lines=True, durable=True)


def journal_path(folder: Path, block: int, device: str | None = None) -> Path:
    """Return the journal of a block, or that of the warm-up on a further device."""
    name = f"block{block:03}" + (f"@{_UNFIT.sub('_', device)}" if device is not None else "")
    return folder / "blocks" / f"{name}.jsonl"


def device_warm_ups(folder: Path) -> tuple[str, ...]:
    """Return the devices with a warm-up block of their own; the device of the study's first one has none."""
    paths = sorted((folder / "blocks").glob("block000@*.jsonl"))
    return tuple(path.stem.partition("@")[2] for path in paths)


def has_begun(folder: Path) -> bool:
    """Whether any run of a study has begun. Before that, its definition may still change."""
    return any((folder / "blocks").glob("*.jsonl"))


def append(folder: Path, block: int, entry: Entry, device: str | None = None) -> None:
    """Append an entry, in one write that reaches the disk."""
    if isinstance(entry, RunBegan):
        entry = msgspec.structs.replace(entry, unix_s=time.time())
    path = journal_path(folder, block, device)
    path.parent.mkdir(parents=True, exist_ok=True)
    _ENTRIES.append(path, entry)


def read_block(folder: Path, block: int, device: str | None = None) -> BlockState:
    """Read the state of a block.

    Returns:
        Its state. A block without a journal has not begun; incomplete lines do not count.
    """
    attempt, failures, begun, told = 0, 0, 0, False
    finished: set[str] = set()
    failed: set[str] = set()
    open_run: RunBegan | None = None
    last_run: RunBegan | None = None
    seconds: list[float] = []
    code: list[CodeSeen] = []
    events: list[str] = []
    problem: str | None = None
    over: BlockOver | None = None
    finished_unix_s: float | None = None
    stale: set[int] = set()
    for entry in _entries(journal_path(folder, block, device)):
        if isinstance(entry, RunBegan):
            if open_run is not None and not told:
                events.append(f"the run of {open_run.arm} was cut off and started again.")
            attempt, open_run, last_run, begun, told = entry.attempt, entry, entry, begun + 1, False
        elif isinstance(entry, RunOver):
            began_unix_s = open_run.unix_s if open_run is not None else 0.0
            open_run = None
            if entry.problem is None:
                finished.add(entry.arm)
                finished_unix_s = began_unix_s + entry.seconds if began_unix_s else None
                seconds.append(entry.seconds)
                if entry.revision is not None:
                    code.append(CodeSeen(entry.arm, entry.revision, began_unix_s))
            else:
                failed |= set() if entry.invalid else {entry.arm}
                problem = f"the run of {entry.arm} failed ({entry.problem})"
                events.append(f"{problem}. The whole block is repeated.")
                attempt, failures, finished = entry.attempt + 1, failures + 1, set()
        elif isinstance(entry, Lost):
            events.append(f"{entry.problem}. It resumed with the missing runs.")
            told = True
        elif isinstance(entry, Stale):
            gap = format_duration(entry.gap_s * 1e9)
            events.append(f"its finished runs were {gap} old when it was resumed; the whole block is repeated.")
            stale.add(attempt)
            attempt, finished, open_run = attempt + 1, set(), None
        elif isinstance(entry, Again):
            events.append("had been given up and was tried again.")
            over, failures = None, 0
        else:
            over = entry
    return BlockState(
        attempt=attempt,
        failures=failures,
        finished=frozenset(finished),
        open_run=open_run,
        begun=begun,
        device=last_run.device if last_run is not None else None,
        seconds=tuple(seconds),
        code=tuple(code),
        events=tuple(events),
        over=over is not None,
        done=over is not None and over.done,
        problem=problem,
        failure=over.problem if over is not None else None,
        failed=frozenset(failed),
        finished_unix_s=finished_unix_s if finished else None,
        stale_attempts=frozenset(stale),
    )


def _entries(path: Path) -> tuple[Entry, ...]:
    try:
        return _ENTRIES.decode(path.read_bytes(), path)
    except FileNotFoundError:
        return ()
