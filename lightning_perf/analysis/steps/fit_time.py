"""Summaries of a whole fit: the groups of its account with their shares, and the growth of its memory."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from lightning_perf.run_files.fit.account import AccountEntry, AccountFacts, FitAccount, GcTotals, Group, LoaderStart
from lightning_perf.run_files.fit.memory_growth import GrowthRecord, TensorGroup, WorkerGrowth
from lightning_perf.trace.columns import Float64Array, Int64Array


class FitPart(Struct, frozen=True):
    """One entry of the account of a fit.

    Attributes:
        name: Its name, e.g. ``fetch``; empty for the only part of a group.
        time_ns: Its time, without work nested in it that has an entry of its own.
        share: Share of the wall time of the fit, 0 to 1.
        count: How often it ran; 0 for the remainder of a group.
        early_ns: Time per call in the first half of the fit; None if unknown.
        later_ns: Time per call after it.
    """

    name: str
    time_ns: int
    share: float
    count: int
    early_ns: float | None = None
    later_ns: float | None = None


class FitGroup(Struct, frozen=True):
    """A group of entries, e.g. validation.

    Attributes:
        group: Its name.
        time_ns: Time of all its parts.
        share: Share of the wall time of the fit, 0 to 1.
        parts: The parts, the longest first.
    """

    group: str
    time_ns: int
    share: float
    parts: tuple[FitPart, ...]

    def part(self, name: str) -> FitPart:
        """Return a part; one of zero if the group has none of this name."""
        return next((part for part in self.parts if part.name == name), FitPart(name, 0, 0.0, 0))


class FitTime(Struct, frozen=True):
    """Where the time of a whole fit went. The groups do not overlap, and they add up to the wall time exactly.

    Attributes:
        rank: The process that measured it.
        end: Where the account ends: ``returned`` when ``Trainer.fit`` returned, ``report`` when the report was made,
            ``exception`` when the Trainer announced an error.
        wall_ns: Time from the first moment that a callback can see inside ``Trainer.fit`` to the end of the account,
            without the report.
        report_ns: Time of the report until the end of the account. It comes after the training.
        before_ns: Time from the start of the process to the start of the account; None if it is unknown.
        first_step_ns: Time from the start of the account to the end of the first optimizer step; None without one.
        compile_ns: Time that ``torch.compile`` took in the first step; None if nothing was compiled.
        steps: Optimizer steps.
        samples_per_second: Samples of this process per second of the whole fit; None if they were not counted.
        epochs: Epochs of training that were started.
        validations: Runs of the validation loop, without the sanity check.
        groups: The groups that took time, in the order of `lightning_perf.run_files.fit.account.Group`.
        starts: Starts of data loaders with worker processes.
        facts: Settings of the Trainer that explain entries.
        tokens_per_second: Tokens of this process per second of the whole fit, padding included; None if the batches
            hold no token sequences.
        collections: Python's garbage collections in the steps, by generation; empty if they were not measured.
        core_wait_ns: Time from the first step to the last in which the training thread was ready to run and had no
            core; None if it is unknown.
    """

    rank: int
    end: Literal["returned", "report", "exception"]
    wall_ns: int
    before_ns: int | None
    first_step_ns: int | None
    compile_ns: int | None
    steps: int
    samples_per_second: float | None
    epochs: int
    validations: int
    groups: tuple[FitGroup, ...]
    starts: tuple[LoaderStart, ...]
    facts: AccountFacts
    tokens_per_second: float | None = None
    collections: tuple[GcTotals, ...] = ()
    report_ns: int = 0
    core_wait_ns: int | None = None

    def group(self, name: Group) -> FitGroup:
        """Return a group; one of zero if it took no time."""
        return next((group for group in self.groups if group.group == name), FitGroup(name, 0, 0.0, ()))


def _halves_ns(entry: AccountEntry) -> tuple[float | None, float | None]:
    later = entry.count - entry.early_count
    if not entry.early_count or later <= 0:
        return None, None
    return entry.early_ns / entry.early_count, (entry.time_ns - entry.early_ns) / later


def summarize_account(account: FitAccount) -> FitTime:
    """Summarize the account of a fit."""
    fit_ns = account.fit_ns or 1
    groups = []
    for name in get_args(Group):
        parts = [
            FitPart(entry.name, entry.time_ns, entry.time_ns / fit_ns, entry.count, *_halves_ns(entry))
            for entry in account.entries
            if entry.group == name and entry != account.entry("own cost", "report")
        ]
        time_ns = sum(part.time_ns for part in parts)
        if time_ns:
            parts.sort(key=lambda part: (-part.time_ns, part.name))
            groups.append(FitGroup(name, time_ns, time_ns / fit_ns, tuple(parts)))
    same: dict[str, Any] = {
        name: getattr(account, name) for name in FitTime.__struct_fields__ if hasattr(account, name)
    }
    same["wall_ns"] = account.fit_ns
    return FitTime(first_step_ns=account.first_step_end_ns, groups=tuple(groups), **same)


BLOCKS = 32
"""The run is divided into so many blocks at most. Each counts with its lower quartile, which load hardly moves."""

LEAST_STEPS = 32
"""Steps that are needed to see growth."""

QUARTERS = 4

STEADY = 0.25
"""Growth rises from each quarter of the run to the next by at least this share of the mean rise. A change at one place,
such as larger images from some step on, does not."""

LEAST_GROWTH = 0.25
"""Share of the first steps by which the last ones have to be longer, at the lower end of the interval."""

Z_95 = 1.959964
"""Quantile of the normal distribution for an interval of 95 %."""


class StepGrowth(Struct, frozen=True):
    """Steps that take longer and longer.

    Attributes:
        first_ns: Step time at the start of the run, by the fitted line.
        last_ns: Step time at its end.
        slope_ns: Growth per step (Theil-Sen).
        slope_low_ns: Lower end of its 95 % interval.
        slope_high_ns: Upper end.
        wait_share: Share of the growth in waits for data, 0 to 1.
        excess_ns: Mean time of a step beyond the first steps.
    """

    first_ns: int
    last_ns: int
    slope_ns: float
    slope_low_ns: float
    slope_high_ns: float
    wait_share: float
    excess_ns: int

    @property
    def growth(self) -> float:
        """Time of the last steps over that of the first, minus 1."""
        return self.last_ns / self.first_ns - 1


def find_growth(number: Int64Array, step_ns: Int64Array, wait_ns: Int64Array, amount: Int64Array) -> StepGrowth | None:
    """Find out whether the steps of a run get longer and longer.

    Steps that grow with their tokens or samples (`amount`, -1 where unknown) are no problem.
    """
    if len(number) < LEAST_STEPS or not step_ns.all():
        return None
    if (amount > 0).all() and not _grows(number, step_ns / amount):
        return None
    found = _grows(number, step_ns.astype(np.float64))
    if found is None:
        return None
    at, level, slope, low, high = found
    first = max(float(np.median(level - slope * (at - number[0]))), 1.0)
    waits = _levels(wait_ns.astype(np.float64))
    waited = _theil_sen(at, waits)[0] / slope
    return StepGrowth(
        first_ns=round(first),
        last_ns=round(first + slope * float(number[-1] - number[0])),
        slope_ns=slope,
        slope_low_ns=low,
        slope_high_ns=high,
        wait_share=min(1.0, max(0.0, waited)),
        excess_ns=max(0, round(float(step_ns.mean()) - first)),
    )


def _grows(number: Int64Array, value: Float64Array) -> tuple[Float64Array, Float64Array, float, float, float] | None:
    """Return the places and levels of blocks, and the slope with its interval; None if the values do not grow."""
    at = _levels(number.astype(np.float64))
    level = _levels(value)
    slope, low, high = _theil_sen(at, level)
    least = LEAST_GROWTH * float(np.median(level[: len(level) // QUARTERS]))
    if not _rises_steadily(_quarters(level)) or low * float(at[-1] - at[0]) < least:
        return None
    return at, level, slope, low, high


def _levels(value: Float64Array) -> Float64Array:
    return np.array([float(np.percentile(part, 25)) for part in np.array_split(value, min(BLOCKS, len(value) // 4))])


def _quarters(value: Float64Array) -> Float64Array:
    return np.array([float(np.median(part)) for part in np.array_split(value, QUARTERS)])


def _rises_steadily(medians: Float64Array) -> bool:
    rises = np.diff(medians)
    return bool((rises >= STEADY * rises.mean()).all())


def _theil_sen(x: Float64Array, y: Float64Array) -> tuple[float, float, float]:
    """Return the median slope of all pairs, with its 95 % interval (Sen, JASA 1968)."""
    one, other = np.triu_indices(len(x), 1)
    slopes = np.sort((y[other] - y[one]) / (x[other] - x[one]))
    n, pairs = len(x), len(slopes)
    reach = Z_95 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low, high = round((pairs - reach) / 2), round((pairs + reach) / 2)
    return float(np.median(slopes)), float(slopes[max(low, 0)]), float(slopes[min(high, pairs - 1)])


MIN_SAMPLES = 16

MIN_BYTES = 16 * 2**20
MIN_SHARE = 0.02
"""Least growth over the samples, in bytes and as a share of the first level."""

SHOWN = 8
"""Groups of tensors that are listed."""


class MemoryGrowth(Struct, frozen=True):
    """The memory of a fit at the ends of steps.

    Attributes:
        rank: The process that measured it.
        source: ``allocator`` of the GPU, or ``process`` for the resident memory of the process.
        first_step: Step of the first sample.
        last_step: Step of the last sample.
        bytes_per_step: Growth per step, from the medians of the first and the last quarter of the samples.
        grows: Whether the memory grows steadily, by enough to matter.
        counted_steps: Steps between the first and the last count of tensors; 0 without two counts.
        tensors: The tensors that were added between them, by kind, the most bytes first.
        items: How many more items one list, dictionary or set had then: the one with the most memory in them.
        item_bytes: The memory of these items.
        batch_lengths: Different numbers of tokens that steps had; ``None`` if batches hold no token sequences.
        worker: The memory of a worker process of the loader; ``None`` without workers.
    """

    rank: int
    source: Literal["allocator", "process"]
    first_step: int
    last_step: int
    bytes_per_step: float
    grows: bool
    counted_steps: int
    tensors: tuple[TensorGroup, ...]
    items: int = 0
    item_bytes: int = 0
    batch_lengths: int | None = None
    worker: WorkerGrowth | None = None


def summarize_growth(record: GrowthRecord, tokens: Int64Array | None = None) -> MemoryGrowth | None:
    """Find out whether the memory of a fit grows steadily. Tokens of a step are -1 where unknown."""
    if len(record.samples) < MIN_SAMPLES:
        return None
    steps = np.array([sample.step for sample in record.samples], dtype=np.int64)
    level = np.array([sample.bytes for sample in record.samples], dtype=np.float64)
    medians, middles = _quarters(level), _quarters(steps.astype(np.float64))
    per_step = float(medians[-1] - medians[0]) / float(middles[-1] - middles[0])
    whole = per_step * float(steps[-1] - steps[0])
    grows = _rises_steadily(medians) and whole >= max(MIN_BYTES, MIN_SHARE * float(medians[0]))
    counted, tensors = _tensors(record)
    return MemoryGrowth(
        rank=record.rank,
        source=record.source,
        first_step=int(steps[0]),
        last_step=int(steps[-1]),
        bytes_per_step=per_step,
        grows=grows,
        counted_steps=counted,
        tensors=tensors,
        items=record.censuses[-1].items if record.censuses else 0,
        item_bytes=record.censuses[-1].item_bytes if record.censuses else 0,
        batch_lengths=len(np.unique(tokens)) if tokens is not None and len(tokens) and (tokens > 0).all() else None,
        worker=record.worker,
    )


def _tensors(record: GrowthRecord) -> tuple[int, tuple[TensorGroup, ...]]:
    if len(record.censuses) < 2:
        return 0, ()
    first, last = record.censuses[0], record.censuses[-1]
    before = {(group.kind, group.device, group.has_graph): group for group in first.groups}
    none = TensorGroup("", "", False, 0, 0)
    grown = [(group, before.get((group.kind, group.device, group.has_graph), none)) for group in last.groups]
    found = [
        replace(group, count=group.count - old.count, bytes=max(group.bytes - old.bytes, 0))
        for group, old in grown
        if group.count > old.count
    ]
    found.sort(key=lambda row: (-row.bytes, -row.count, row.kind))
    return last.step - first.step, tuple(found[:SHOWN])
