"""Made accounts of fits, one for each rule, and their reports."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import lightning_perf
from lightning_perf.analysis.steps.fit_time import FitTime, summarize_account
from lightning_perf.report.document import PerfReport
from lightning_perf.run_files.fit.account import (
    VERSION,
    AccountEntry,
    AccountFacts,
    FitAccount,
    GcTotals,
    LoaderStart,
    write_account,
)
from lightning_perf.run_files.fit.memory_growth import (
    GrowthRecord,
    MemorySample,
    TensorCensus,
    TensorGroup,
    WorkerGrowth,
    write_growth,
)
from lightning_perf.run_files.steps import STEPS, StepSample

S = 1_000_000_000
STEP_S = 0.1
STEPS_MADE = 1001

USUAL = {
    ("set-up", "Trainer and strategy"): (2.0, 0),
    ("first step", "forward"): (0.2, 1),
    ("training steps", "fetch"): (5.0, 1000),
    ("training steps", "forward"): (35.0, 1000),
    ("training steps", "backward"): (60.0, 1000),
    ("epoch boundaries", ""): (0.2, 0),
    ("validation", "compute"): (3.0, 100),
    ("validation", "metrics and loop"): (0.5, 0),
    ("checkpoints", "gather"): (0.1, 10),
    ("checkpoints", "write"): (0.3, 10),
    ("logging", "CSVLogger.log_metrics"): (0.3, 200),
    ("callbacks", "TQDMProgressBar.on_train_batch_end"): (1.0, 1001),
    ("tear-down", ""): (0.3, 0),
}
"""A healthy fit of ten epochs: seconds and calls of each entry."""

FACTS = AccountFacts(
    check_val_every_n_epoch=1, val_check_interval=1.0, log_every_n_steps=50, loggers=("CSVLogger",), device="cpu"
)


def account(
    entries: Mapping[tuple[Any, str], tuple[float, int]] | None = None,
    *,
    starts: tuple[LoaderStart, ...] = (),
    **fields: Any,
) -> FitAccount:
    """The account of a healthy fit, with some entries replaced."""
    merged = {**USUAL, **(entries or {})}
    made = tuple(
        AccountEntry(group, name, round(seconds * S), count) for (group, name), (seconds, count) in merged.items()
    )
    usual = FitAccount(
        version=VERSION,
        rank=0,
        wall_ns=sum(entry.time_ns for entry in made),
        end="returned",
        before_ns=9 * S,
        first_step_end_ns=3 * S,
        compile_ns=None,
        steps=STEPS_MADE,
        batches=STEPS_MADE,
        samples=32 * STEPS_MADE,
        epochs=10,
        validations=10,
        entries=made,
        starts=starts,
        facts=FACTS,
    )
    return replace(usual, **fields)


def fit_time(*args: Any, **kwargs: Any) -> FitTime:
    return summarize_account(account(*args, **kwargs))


def report_of(made: FitAccount, folder: Path) -> PerfReport:
    """Write an account and its step times, and analyze the folder."""
    write_account(folder, made)
    step_ns = round(STEP_S * S)
    STEPS.append(
        STEPS.path(folder, 0), *(StepSample(step, step_ns, step_ns // 20, None, 32, False) for step in range(60))
    )
    return lightning_perf.analyze(folder)


def starts(epochs: int, *, stage: Any = "training", persistent: bool = False, seconds: float = 2.0) -> Any:
    return tuple(
        LoaderStart(stage, epoch, 4, persistent, round(seconds * S), round(0.5 * S)) for epoch in range(epochs)
    )


FAULTS: dict[str, dict[str, Any]] = {
    # Workers that need 2 s in each of ten epochs.
    "worker-restarts": {
        "entries": {
            ("worker start-up", "training"): (20.0, 10),
            ("worker start-up", "training: first batch"): (5.0, 10),
        },
        "starts": starts(10),
    },
    # A validation that takes as long as three quarters of the training.
    "long-validation": {
        "entries": {
            ("validation", "fetch"): (50.0, 5000),
            ("validation", "compute"): (20.0, 5000),
            ("validation", "metrics and loop"): (5.0, 0),
        }
    },
    # Twenty checkpoints of a second each, most of it for the disk.
    "slow-checkpoints": {"entries": {("checkpoints", "gather"): (4.0, 20), ("checkpoints", "write"): (16.0, 20)}},
    # 50 ms per call.
    "slow-logger": {"entries": {("logging", "CSVLogger.log_metrics"): (10.0, 200)}},
    # 30 ms per batch.
    "slow-callback": {"entries": {("callbacks", "ImageLogger.on_train_batch_end"): (30.0, 1001)}},
    # 120 full collections of 100 ms.
    "gc-pauses": {
        "collections": (
            GcTotals(0, 90_000, S, S // 1000, 500_000),
            GcTotals(1, 8000, S, S // 100, 50_000),
            GcTotals(2, 120, 12 * S, S // 4, 6000, 1_200_000),
        )
    },
    # 40 s of compilation.
    "slow-first-step": {"entries": {("first step", "forward"): (45.0, 1)}, "compile_ns": 40 * S},
}
"""A fault of a fit for each of these rules."""


def faulty(rule: str, folder: Path) -> PerfReport:
    """A fit with the fault that a rule finds."""
    return report_of(account(**FAULTS[rule]), folder)


def copying(folder: Path) -> PerfReport:
    """Four workers that read a list of many objects."""
    mib = 2**20
    samples = tuple(MemorySample(step, 800 * mib) for step in range(20, 1001, 20))
    worker = WorkerGrowth(4, 0, 640, 14 * mib, 410 * mib, mib, 400 * mib, "samples: 1,281,167 objects in a list")
    write_growth(folder, GrowthRecord(0, "process", samples, (), worker))
    return report_of(account({}), folder)


def caching(folder: Path) -> PerfReport:
    """A training with batches of many lengths, whose memory grows outside of Python."""
    mib = 2**20
    samples = tuple(MemorySample(step, (800 + step // 4) * mib) for step in range(20, 1001, 20))
    write_growth(folder, GrowthRecord(0, "process", samples, (TensorCensus(100, ()), TensorCensus(900, ()))))
    STEPS.append(STEPS.path(folder, 0), *(StepSample(step, S, 0, None, 16, False, 64 + step) for step in range(60)))
    return lightning_perf.analyze(folder)


def growing(folder: Path) -> PerfReport:
    """A list that keeps a tensor of 1 MiB of each of 1000 steps."""
    mib = 2**20
    counts = [
        TensorCensus(step, (TensorGroup("Tensor float32 [512, 512]", "cpu", False, step, step * mib),))
        for step in (100, 900)
    ]
    samples = tuple(MemorySample(step, (800 + step) * mib) for step in range(20, 1001, 20))
    write_growth(folder, GrowthRecord(0, "process", samples, tuple(counts)))
    return report_of(account({}), folder)
