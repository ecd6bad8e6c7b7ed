"""Read the record of one training run from its ``run.jsonl``.

A record without its last line, `RunEnded`, belongs to a run that was interrupted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from msgspec import Struct, field

from lightning_perf.analysis.steps.step_times import StepTimes, summarize_step_times
from lightning_perf.errors import CompareError, TraceError
from lightning_perf.lazy_imports import install_command
from lightning_perf.report.document import read_predicted_speedup
from lightning_perf.run_files.fit.account import FitAccount, account_paths, read_account
from lightning_perf.run_files.run_record import (
    RECORD_NAME,
    RUN_RECORD,
    VERSION,
    EpochEnded,
    FactsAdded,
    FactValue,
    HealthSeen,
    Line,
    Outcome,
    Place,
    RunEnded,
    RunStarted,
    without_addresses,
)
from lightning_perf.run_files.steps import STEPS

GIVEN_UP = "its block was given up"
"""The problem of a run that is left out because another run of its block failed."""

PROGRESS_RUNS = 1000

CRASHED_AT_START = "it crashed at its start, and left an empty record"


class RunRecord(Struct, frozen=True):
    """The record of one training run: its fingerprint, epochs, times, memory and outcome.

    Attributes:
        run_id: Unique name of the run.
        path: The record's file.
        started_unix_s: When it started.
        outcome: How it ended.
        error: The error that ended it, if it failed.
        place: Its place in a study; None outside a study.
        facts: The fingerprint: everything that must agree in a fair comparison.
        notes: Observations that need not agree, such as the load.
        epochs: The epochs in order, each with the metrics that were logged by its end; None for nan.
        train_time_s: Training time; None if the run was interrupted.
        peak_device_bytes: Peak allocated device memory, or None.
        peak_host_bytes: Peak resident memory of the process, or None.
        problems: Reasons why its times are invalid, such as throttling or other processes on the device.
        remarks: Observations of the device that do not invalidate the times, e.g. that it was at its power limit.
        steps: Step times, or None if they are missing.
        steps_problem: Why the step times cannot be read, if their file exists.
        fit_samples_per_second: Samples per second of the whole fit, or None without an account of the fit.
        first_step_s: Time from the start of the fit to the end of its first optimizer step, or None.
        step_p25_ns: 25th percentile of the step times of a run on a processor; None on accelerators.
        other_cpu_share: Share of the usable processors' time that other processes took during training, or None.
        cpu_throttled_share: Share of the training during which a CPU quota held the run back, or None.
        predicted_speedup: Smallest and largest step speed-up that the run's report predicts for mixed precision. None
            if the run was not profiled or had no device to profile.
    """

    run_id: str
    path: Path
    started_unix_s: float
    outcome: Outcome
    error: str | None
    place: Place | None = None
    facts: Mapping[str, FactValue] = field(default_factory=dict)
    notes: Mapping[str, FactValue] = field(default_factory=dict)
    epochs: tuple[EpochEnded, ...] = ()
    train_time_s: float | None = None
    peak_device_bytes: int | None = None
    peak_host_bytes: int | None = None
    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    steps: StepTimes | None = None
    steps_problem: str | None = None
    predicted_speedup: tuple[float, float] | None = None
    other_cpu_share: float | None = None
    cpu_throttled_share: float | None = None
    step_p25_ns: float | None = None
    fit_samples_per_second: float | None = None
    first_step_s: float | None = None

    @property
    def identity(self) -> tuple[object, ...]:
        """The run ID and the content: a copied folder has the same."""
        total_ns = self.steps.total_ns if self.steps is not None else None
        facts = repr(sorted(self.facts.items()))
        return self.run_id, self.started_unix_s, self.train_time_s, total_ns, facts, repr(self.epochs)


def read_record(path: str | Path) -> RunRecord:
    """Read the record of one run."""
    path, lines = Path(path), list[Line]()
    try:
        for line in RUN_RECORD.iterate(path):
            lines.append(line)  # a damaged line keeps those before it
    except TraceError as error:
        if lines or isinstance(error.__cause__, OSError):
            raise CompareError(str(error)) from error
    if not lines or not isinstance(lines[0], RunStarted):
        raise CompareError(
            f"{path}: not a run record, because its first line is not the start of a run. "
            "Leave this file out of the comparison."
        )
    started = lines[0]
    if started.version > VERSION:
        raise CompareError(
            f"{path}: record version {started.version} is newer than version {VERSION}, the newest that this "
            f"lightning-perf reads. Upgrade with: {install_command()}"
        )
    facts = dict(started.facts)
    for line in lines:
        facts |= line.facts if isinstance(line, FactsAdded) else {}
    ended = next((line for line in reversed(lines) if isinstance(line, RunEnded)), None)
    health = [line for line in lines if isinstance(line, HealthSeen)]
    account = _account(path.parent)
    steps, step_p25_ns, steps_problem = _step_times(STEPS.path(path.parent, 0))
    return RunRecord(
        run_id=started.run_id,
        path=path,
        started_unix_s=started.started_unix_s,
        place=started.place,
        facts=without_addresses(facts),
        notes=started.notes,
        epochs=tuple(line for line in lines if isinstance(line, EpochEnded)),
        outcome=ended.outcome if ended else Outcome.INTERRUPTED,
        error=ended.error if ended else None,
        train_time_s=ended.train_time_s if ended else None,
        peak_device_bytes=ended.peak_device_bytes if ended else None,
        peak_host_bytes=ended.peak_host_bytes if ended else None,
        problems=tuple(dict.fromkeys(seen.problem for seen in health if seen.invalid)),
        remarks=tuple(dict.fromkeys(seen.problem for seen in health if not seen.invalid)),
        steps=steps,
        steps_problem=steps_problem,
        step_p25_ns=step_p25_ns,
        predicted_speedup=read_predicted_speedup(path.parent),
        other_cpu_share=ended.other_cpu_share if ended else None,
        cpu_throttled_share=ended.cpu_throttled_share if ended else None,
        fit_samples_per_second=account.samples_per_second if account else None,
        first_step_s=account.first_step_end_ns / 1e9 if account and account.first_step_end_ns is not None else None,
    )


def _account(folder: Path) -> FitAccount | None:
    """Return the account of a fit on rank 0. Without a readable one, the metrics of the whole fit are missing."""
    try:
        return next((read_account(path) for path in account_paths(folder)[:1]), None)
    except TraceError:
        return None


def find_records(path: str | Path, progress: Callable[[str], None] | None = None) -> tuple[RunRecord, ...]:
    """Read all run records in a folder and its subfolders.

    A file without a single complete line is the record of a run that failed: it crashed, or the disk was full, at its
    start.

    Args:
        path: A folder, or a single ``run.jsonl``.
        progress: Gets a line for every `PROGRESS_RUNS` runs.

    Returns:
        The records by start time.

    Raises:
        CompareError: The folder holds no record, or a record cannot be read.
    """
    path = Path(path)
    if path.is_file():
        return (read_record(path),)
    if not path.is_dir():
        raise CompareError(f"{path}: no such folder. Give the log directory of runs with PerfCallback.")
    files = sorted(path.rglob(RECORD_NAME))
    if not files:
        raise CompareError(
            f"{path}: no run record ({RECORD_NAME}) in it or below it. Runs with PerfCallback write one."
        )
    records = []
    for number, file in enumerate(files):
        if progress is not None and number and not number % PROGRESS_RUNS:
            progress(f"read {number:,} of {len(files):,} runs in {path}")
        records.append(read_record(file) if _has_begun(file) else _crashed_at_start(file))
    if all(record.error == CRASHED_AT_START for record in records):
        raise CompareError(
            f"{path}: every {RECORD_NAME} is empty or truncated: the runs crashed at startup. "
            "Read their output, fix the cause and run them again."
        )
    return tuple(sorted(records, key=lambda record: record.started_unix_s))


def _crashed_at_start(path: Path) -> RunRecord:
    where = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    return RunRecord(
        run_id=f"no-record-{where}",
        path=path,
        started_unix_s=path.stat().st_mtime,
        outcome=Outcome.FAILED,
        error=CRASHED_AT_START,
    )


def _has_begun(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return stream.readline().endswith(b"\n")
    except OSError:
        return True  # reading the record reports the error


def _step_times(path: Path) -> tuple[StepTimes | None, float | None, str | None]:
    """Return the step times and their 25th percentile, or the reason why an existing file cannot be read."""
    if not path.exists():
        return None, None, None
    try:
        samples = STEPS.read(path)
    except TraceError as error:
        return None, None, str(error)
    if not samples:
        return None, None, None
    times = summarize_step_times(samples)
    if times.device_mean_ns is not None:
        return times, None, None
    counted = samples[times.warmup_steps :]
    kept_ns = counted.step_ns if times.only_profiled else counted.step_ns[~counted.profiled]
    return times, float(np.percentile(kept_ns, 25)), None
