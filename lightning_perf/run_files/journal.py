"""``blocks/block001.jsonl``: the journal of a block of a study, with the starts and ends of its runs."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

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

    `gap_s` are the seconds since the last of them ended.
    """

    gap_s: float


Entry: TypeAlias = RunBegan | RunOver | Lost | BlockOver | Again | Stale


class CodeSeen(NamedTuple):
    """The code that a finished run ran, and when the run started."""

    arm: str
    revision: str
    began_unix_s: float


@dataclass
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

    attempt: int = 0
    failures: int = 0
    finished: set[str] = field(default_factory=set)
    open_run: RunBegan | None = None
    begun: int = 0
    device: str | None = None
    seconds: list[float] = field(default_factory=list)
    code: list[CodeSeen] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    over: bool = False
    done: bool = False
    problem: str | None = None
    failure: str | None = None
    failed: set[str] = field(default_factory=set)
    finished_unix_s: float | None = None
    stale_attempts: set[int] = field(default_factory=set)
    _cut_off: bool = False
    """Whether the open run has no end, and no entry says why."""

    def add(self, entry: Entry) -> None:
        """Take in the next entry of the journal."""
        if isinstance(entry, RunBegan):
            if self.open_run is not None and self._cut_off:
                self.events.append(f"the run of {self.open_run.arm} was cut off and started again.")
            self.attempt, self.device, self.begun = entry.attempt, entry.device, self.begun + 1
            self.open_run, self._cut_off = entry, True
        elif isinstance(entry, RunOver):
            began_unix_s = self.open_run.unix_s if self.open_run is not None else 0.0
            self.open_run = None
            if entry.problem is None:
                self._add_finished(entry, began_unix_s)
            else:
                self.failed |= set() if entry.invalid else {entry.arm}
                self.problem = f"the run of {entry.arm} failed ({entry.problem})"
                self.events.append(f"{self.problem}. The whole block is repeated.")
                self.failures += 1
                self._start_attempt(entry.attempt + 1)
        elif isinstance(entry, Lost):
            self.events.append(f"{entry.problem}. It resumed with the missing runs.")
            self._cut_off = False
        elif isinstance(entry, Stale):
            gap = format_duration(entry.gap_s * 1e9)
            self.events.append(f"its finished runs were {gap} old when it was resumed; the whole block is repeated.")
            self.stale_attempts.add(self.attempt)
            self.open_run = None
            self._start_attempt(self.attempt + 1)
        elif isinstance(entry, Again):
            self.events.append("had been given up and was tried again.")
            self.over, self.done, self.failure, self.failures = False, False, None, 0
        else:
            self.over, self.done, self.failure = True, entry.done, entry.problem

    def _add_finished(self, run: RunOver, began_unix_s: float) -> None:
        self.finished.add(run.arm)
        self.finished_unix_s = began_unix_s + run.seconds if began_unix_s else None
        self.seconds.append(run.seconds)
        if run.revision is not None:
            self.code.append(CodeSeen(run.arm, run.revision, began_unix_s))

    def _start_attempt(self, attempt: int) -> None:
        self.attempt, self.finished, self.finished_unix_s = attempt, set(), None


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
    """Read the state of a block. Without a journal it has not begun; incomplete lines do not count."""
    state = BlockState()
    with suppress(FileNotFoundError):
        path = journal_path(folder, block, device)
        for entry in _ENTRIES.decode(path.read_bytes(), path):
            state.add(entry)
    return state
