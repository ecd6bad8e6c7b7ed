"""``run.jsonl``, the run record: the settings of a training, its epochs and metrics, and how it ended.

Each line is written before the run continues, so a killed run loses at most the line that it was writing. If the whole
machine fails, at most the epochs of the last second are lost.
"""

from __future__ import annotations

import math
import os
import re
import time
import uuid
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import TypeAlias

import msgspec

from lightning_perf.run_files.atomic import read_variable
from lightning_perf.run_files.jsonl import JsonLines, OpenFile

VERSION = 1
RECORD_NAME = "run.jsonl"

SYNC_EVERY_S = 1.0
"""Time between two epochs from which on each is on the disk before the run continues."""

PLACE_VARIABLE = "LIGHTNING_PERF_PLACE"
"""Environment variable with the place of a run in a study, as JSON."""

FOLDER_VARIABLE = "LIGHTNING_PERF_DIR"
"""Environment variable with the folder for the files of a run in a study."""

FactValue: TypeAlias = str | int | float | bool | None


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def without_addresses(facts: Mapping[str, FactValue]) -> dict[str, FactValue]:
    """Return facts without the addresses of objects in their text, which differ in every process.

    Example:
        >>> without_addresses({"data.pin_memory": "<built-in method pin_memory of Tensor object at 0x7f1c>"})
        {'data.pin_memory': '<built-in method pin_memory of Tensor object>'}
    """
    return {name: _ADDRESS.sub("", value) if isinstance(value, str) else value for name, value in facts.items()}


class Outcome(str, Enum):
    """How a run ended."""

    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"


class Place(msgspec.Struct, frozen=True):
    """The place of a run in a study.

    Attributes:
        block: Number of the block; 0 is the warm-up.
        position: Place in the order of the block, from 0.
        attempt: Earlier attempts of the block, which ended because a run failed.
        treatment: Facts that the study declares to differ between arms.
    """

    study: str
    arm: str
    block: int
    position: int
    attempt: int = 0
    treatment: tuple[str, ...] = ()


class RunStarted(msgspec.Struct, frozen=True, tag="started"):
    """First line of a record."""

    run_id: str
    started_unix_s: float
    facts: dict[str, FactValue]
    notes: dict[str, FactValue] = {}
    place: Place | None = None
    version: int = VERSION


class FactsAdded(msgspec.Struct, frozen=True, tag="facts"):
    """Facts that become known after the start, such as the hash of the first batch."""

    facts: dict[str, FactValue]


class EpochEnded(msgspec.Struct, frozen=True, tag="epoch"):
    """The end of an epoch and its validation: training time since the start of the fit, and the metrics.

    `higher_is_better` has the directions that torchmetrics knows.
    """

    epoch: int
    train_time_s: float
    steps: int
    metrics: dict[str, float | None]
    higher_is_better: dict[str, bool] = {}


class HealthSeen(msgspec.Struct, frozen=True, tag="health"):
    """An observation of the device: it makes the times of the run invalid, unless `invalid` is False."""

    problem: str
    train_time_s: float
    invalid: bool = True


class RunEnded(msgspec.Struct, frozen=True, tag="ended"):
    """Last line of a record."""

    outcome: Outcome
    train_time_s: float
    error: str | None = None
    peak_device_bytes: int | None = None
    peak_host_bytes: int | None = None
    other_cpu_share: float | None = None
    cpu_throttled_share: float | None = None


Line: TypeAlias = RunStarted | FactsAdded | EpochEnded | HealthSeen | RunEnded

RUN_RECORD: JsonLines[Line] = JsonLines(Line, "line of a run record")


class RunRecorder:
    """Writes the record of one run.

    Only a run in the folder that the study assigned has a place in the study. A further fit of the same process gets
    another folder, and is recorded as a run outside the study. Notes are further facts, which may differ between the
    runs of a comparison.
    """

    def __init__(
        self,
        folder: Path,
        facts: Mapping[str, FactValue],
        notes: Mapping[str, FactValue],
        now_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.path = folder / RECORD_NAME
        self._now_s = now_s
        self._begin_s = now_s()
        self._synced_s = self._begin_s
        self._ended = False
        started = time.time()
        run_id = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(started))}-{uuid.uuid4().hex[:8]}"
        wanted = study_folder()
        place = study_place() if wanted is not None and folder.absolute() == Path(wanted).absolute() else None
        self._file = OpenFile(self.path)
        self._append(RunStarted(run_id, started, without_addresses(facts), dict(notes), place))

    def training_begins(self) -> None:
        """Restart the clock of training time, so that preparations do not count."""
        self._begin_s = self._now_s()

    def add_facts(self, facts: Mapping[str, FactValue]) -> None:
        """Complete the fingerprint."""
        self._append(FactsAdded(without_addresses(facts)))

    def epoch_ends(
        self, epoch: int, steps: int, metrics: Mapping[str, object], higher_is_better: Mapping[str, bool] | None = None
    ) -> None:
        """Record an epoch with its validation. Metrics of the Trainer that are not numbers are left out."""
        directions = dict(higher_is_better or {})
        self._append(EpochEnded(epoch, self._train_time_s(), steps, numbers_only(metrics), directions))

    def health(self, problem: str, *, invalid: bool = True) -> None:
        """Record an observation of the device, and whether it makes the times of the run invalid."""
        self._append(HealthSeen(problem, self._train_time_s(), invalid))

    def ends(
        self,
        outcome: Outcome,
        *,
        error: str | None = None,
        peak_device_bytes: int | None = None,
        other_cpu_share: float | None = None,
        cpu_throttled_share: float | None = None,
    ) -> None:
        """Record the end. A second end is ignored."""
        if self._ended:
            return
        self._ended = True
        self._append(
            RunEnded(
                outcome,
                self._train_time_s(),
                error,
                peak_device_bytes,
                _peak_host_bytes(),
                other_cpu_share,
                cpu_throttled_share,
            )
        )
        self._file.close()

    def _append(self, line: Line) -> None:
        now_s = self._now_s()
        # Only short epochs come more often. The kernel has their lines, which the death of the process does not lose.
        sync = not isinstance(line, EpochEnded) or now_s - self._synced_s >= SYNC_EVERY_S
        self._file.append(RUN_RECORD.encode(line), sync=sync)
        self._synced_s = now_s if sync else self._synced_s

    def _train_time_s(self) -> float:
        return self._now_s() - self._begin_s


def study_place() -> Place | None:
    """Return the place of this process in a study, or None outside a study."""
    return read_variable(PLACE_VARIABLE, Place)


def study_folder() -> str | None:
    """Return the folder that a study assigned to this run, or None outside a study."""
    return os.environ.get(FOLDER_VARIABLE) or None


def numbers_only(metrics: Mapping[str, object]) -> dict[str, float | None]:
    """Return the entries that are numbers, as floats; None for nan and infinities, which JSON lacks.

    Example:
        >>> numbers_only({"val_acc": 0.5, "name": "x", "loss": float("nan")})
        {'val_acc': 0.5, 'loss': None}
    """
    numbers: dict[str, float | None] = {}
    for name, value in metrics.items():
        if isinstance(value, str):
            continue
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, RuntimeError):
            continue
        numbers[name] = number if math.isfinite(number) else None
    return numbers


def _peak_host_bytes() -> int | None:
    try:
        import resource
        import sys
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
