"""The run record: what one training run leaves, as a file of lines that are only ever appended.

Each line is a whole JSON object written in one go, so that a killed run loses nothing but the line it was writing. A
record without its last line, `RunEnded`, is that of a run that was interrupted.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TypeAlias

import msgspec

from lightning_perf.analysis.amp_gain import AmpGain
from lightning_perf.analysis.json_lines import read_json_lines
from lightning_perf.analysis.step_times import StepTimes, read_samples, summarize_step_times
from lightning_perf.compare.errors import CompareError
from lightning_perf.report.document import SCHEMA_VERSION
from lightning_perf.trace.errors import TraceError

__all__ = [
    "FOLDER_VARIABLE",
    "PLACE_VARIABLE",
    "RECORD_NAME",
    "Epoch",
    "EpochEnded",
    "FactValue",
    "FactsAdded",
    "HealthSeen",
    "Outcome",
    "Place",
    "RunEnded",
    "RunRecord",
    "RunStarted",
    "append_line",
    "find_records",
    "numbers_only",
    "read_record",
]

VERSION = 1
RECORD_NAME = "run.jsonl"
STEPS_NAME = "steps.rank0.jsonl"
REPORT_NAME = "report.json"

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


class _ReportRank(msgspec.Struct, frozen=True):
    amp_gain: AmpGain | None = None


class _Report(msgspec.Struct, frozen=True):
    """What a record takes from a report."""

    schema_version: int
    lead: int | None
    ranks: list[_ReportRank]


Line: TypeAlias = RunStarted | FactsAdded | EpochEnded | HealthSeen | RunEnded


@dataclass(frozen=True)
class Epoch:
    """One epoch of a run.

    Attributes:
        epoch: Its number, from 0.
        train_time_s: Training time from the start of the fit to the end of this epoch, its validation included.
        steps: Optimizer steps since the start of training.
        metrics: Metrics known at its end; None for nan.
    """

    epoch: int
    train_time_s: float
    steps: int
    metrics: Mapping[str, float | None]


@dataclass(frozen=True)
class RunRecord:
    """What one training run left.

    Attributes:
        run_id: Unique name of the run.
        path: The record's file.
        started_unix_s: When it started.
        place: Its place in a study; None outside one.
        facts: The fingerprint: everything that has to agree in a fair comparison.
        notes: What need not agree: host, load.
        epochs: The epochs in order.
        outcome: How it ended.
        error: What ended it, when it failed.
        train_time_s: Training time; None when interrupted.
        peak_device_bytes: Most device memory allocated at once, or None.
        peak_host_bytes: Most resident memory of the process, or None.
        problems: Why its times are invalid: throttling, foreign processes on the device.
        remarks: What was seen of the device and does not make them invalid, as that it was at its power limit.
        steps: Step times, or None when they are missing.
        steps_problem: Why they cannot be read, when they are there.
        predicted_speedup: Least and most speed-up of a step that mixed precision is predicted to bring, by the run's
            report; None when the run was not profiled or had no device to profile.
    """

    run_id: str
    path: Path
    started_unix_s: float
    place: Place | None
    facts: Mapping[str, FactValue]
    notes: Mapping[str, FactValue]
    epochs: tuple[Epoch, ...]
    outcome: Outcome
    error: str | None
    train_time_s: float | None
    peak_device_bytes: int | None
    peak_host_bytes: int | None
    problems: tuple[str, ...]
    remarks: tuple[str, ...]
    steps: StepTimes | None = field(repr=False)
    steps_problem: str | None = None
    predicted_speedup: tuple[float, float] | None = None


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


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
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, _encoder.encode(line) + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_record(path: str | Path) -> RunRecord:
    """Read the record of one run.

    Args:
        path: A ``run.jsonl`` file. Its step samples are read from ``steps.rank0.jsonl`` beside it, and the prediction
            from ``report.json``.

    Returns:
        The record.

    Raises:
        CompareError: The file cannot be read or is no record.
    """
    path = Path(path)
    lines = _lines(path)
    if not lines or not isinstance(lines[0], RunStarted):
        raise CompareError(f"{path}: does not begin with the start of a run. Leave it out of the comparison.")
    started = lines[0]
    if started.version > VERSION:
        raise CompareError(
            f"{path}: has version {started.version} of the record, newer than this lightning_perf reads."
        )
    facts = dict(started.facts)
    ended: RunEnded | None = None
    epochs: list[Epoch] = []
    health: list[HealthSeen] = []
    for line in lines[1:]:
        if isinstance(line, FactsAdded):
            facts |= line.facts
        elif isinstance(line, EpochEnded):
            epochs.append(Epoch(line.epoch, line.train_time_s, line.steps, line.metrics))
        elif isinstance(line, HealthSeen):
            health.append(line)
        elif isinstance(line, RunEnded):
            ended = line
    steps, steps_problem = _step_times(path.with_name(STEPS_NAME))
    return RunRecord(
        run_id=started.run_id,
        path=path,
        started_unix_s=started.started_unix_s,
        place=started.place,
        facts=facts,
        notes=started.notes,
        epochs=tuple(epochs),
        outcome=ended.outcome if ended else Outcome.INTERRUPTED,
        error=ended.error if ended else None,
        train_time_s=ended.train_time_s if ended else None,
        peak_device_bytes=ended.peak_device_bytes if ended else None,
        peak_host_bytes=ended.peak_host_bytes if ended else None,
        problems=tuple(dict.fromkeys(seen.problem for seen in health if seen.invalid)),
        remarks=tuple(dict.fromkeys(seen.problem for seen in health if not seen.invalid)),
        steps=steps,
        steps_problem=steps_problem,
        predicted_speedup=_predicted_speedup(path.with_name(REPORT_NAME)),
    )


def find_records(path: str | Path) -> tuple[RunRecord, ...]:
    """Read all records in a folder and below it.

    Args:
        path: A folder, or a single ``run.jsonl``.

    Returns:
        The records by start time.

    Raises:
        CompareError: There is none, or one cannot be read.
    """
    path = Path(path)
    files = [path] if path.is_file() else sorted(path.rglob(RECORD_NAME)) if path.is_dir() else []
    if not path.exists():
        raise CompareError(f"{path}: does not exist. Give the log directory of runs with PerfCallback.")
    if not files:
        raise CompareError(f"{path}: holds no run record ({RECORD_NAME}). Runs with PerfCallback leave one.")
    return tuple(sorted((read_record(file) for file in files), key=lambda record: record.started_unix_s))


def _lines(path: Path) -> tuple[Line, ...]:
    try:
        return read_json_lines(path, _decoder.decode, what="line of a run record")
    except TraceError as error:
        raise CompareError(str(error)) from error


def _step_times(path: Path) -> tuple[StepTimes | None, str | None]:
    """The step times, and why there are none although there is a file."""
    if not path.exists():
        return None, None
    try:
        samples = read_samples(path)
    except TraceError as error:
        return None, str(error)
    return (summarize_step_times(samples) if samples else None), None


def _predicted_speedup(path: Path) -> tuple[float, float] | None:
    """The prediction of a report; None where there is none, or a report that another version wrote."""
    try:
        report = msgspec.json.decode(path.read_bytes(), type=_Report)
    except (OSError, msgspec.DecodeError):
        return None
    if report.schema_version != SCHEMA_VERSION or report.lead is None or not 0 <= report.lead < len(report.ranks):
        return None
    gain = report.ranks[report.lead].amp_gain
    return gain.speedup if gain is not None and gain.step_ns > gain.most_saving_ns else None


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
