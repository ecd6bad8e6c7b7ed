"""The lines of a run record: what a run writes while it lasts.

Each line is a whole JSON object written in one go, so that a killed run loses nothing but the line it was writing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import TypeAlias

import msgspec

from lightning_perf.compare.append import append_whole

__all__ = [
    "FOLDER_VARIABLE",
    "PLACE_VARIABLE",
    "RECORD_NAME",
    "VERSION",
    "EpochEnded",
    "FactValue",
    "FactsAdded",
    "HealthSeen",
    "Line",
    "Outcome",
    "Place",
    "RunEnded",
    "RunStarted",
    "append_line",
    "numbers_only",
]

VERSION = 1
RECORD_NAME = "run.jsonl"

PLACE_VARIABLE = "LIGHTNING_PERF_PLACE"
"""Environment variable by which a study tells a run its place, as JSON."""

FOLDER_VARIABLE = "LIGHTNING_PERF_DIR"
"""Environment variable by which a study tells a run where to leave its files."""

FactValue: TypeAlias = str | int | float | bool | None


class Outcome(str, Enum):
    """How a run ended."""

    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"


class Place(msgspec.Struct, frozen=True):
    """Where a run stands in a study.

    Attributes:
        study: Id of the study.
        arm: The setting.
        block: Number of the block; 0 is the warm-up.
        position: Place in the order of the block, from 0.
        attempt: How often the block had been begun anew before, after a run of it had failed.
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
    """Facts that were only known later, as the hash of the first batch."""

    facts: dict[str, FactValue]


class EpochEnded(msgspec.Struct, frozen=True, tag="epoch"):
    """An epoch with its validation: training time since the start of the fit, and the metrics then known."""

    epoch: int
    train_time_s: float
    steps: int
    metrics: dict[str, float | None]


class HealthSeen(msgspec.Struct, frozen=True, tag="health"):
    """Something seen on the device that makes the run's times invalid, or, when not `invalid`, is worth a word."""

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


Line: TypeAlias = RunStarted | FactsAdded | EpochEnded | HealthSeen | RunEnded

_encoder = msgspec.json.Encoder()


def append_line(path: Path, line: Line) -> None:
    r"""Append one line to a record, in one write that reaches the disk.

    Args:
        path: The record's file; made when it does not exist.
        line: What to append.

    Raises:
        OSError: It cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     append_line(Path(folder, "run.jsonl"), HealthSeen("throttled", 1.5))
        ...     Path(folder, "run.jsonl").read_bytes()
        b'{"type":"health","problem":"throttled","train_time_s":1.5,"invalid":true}\n'
    """
    append_whole(path, _encoder.encode(line) + b"\n")


def numbers_only(metrics: Mapping[str, object]) -> dict[str, float | None]:
    """The entries that are numbers, as floats; None for nan and infinities, which JSON does not have.

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
