"""The ranks over the whole fit, by their step logs: which one is late, how often, since when, and in which phase.

In data-parallel training all ranks end a step together, because the average of the gradients waits for the last rank.
So whole steps are equally long, and a rank's own work shows how late it is: its step without the phases that wait.
Only times between two meetings of the ranks are compared, so their clocks need not agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Literal, TypeAlias

import numpy as np
from msgspec import Struct

from lightning_perf.run_files.fit.account import FitAccount
from lightning_perf.run_files.steps import UNKNOWN, WARMUP_STEPS, StepSamples
from lightning_perf.trace.columns import BoolArray, Float64Array, Int64Array

LEAST_STEPS = 20
"""Steps that all ranks must have logged."""

LATE_SHARE = 0.05
"""A rank is late in a step if its own work takes longer than the others' median, by this share of the median step."""

LEAST_LATE = 10
"""Steps in which a rank must be late to be called a straggler."""

SIGMAS = 3.3
"""A straggler is late in more than half of the steps with a late rank, by so many standard deviations of chance."""

GAPS = 3
"""A stretch begins or ends with the fit if only so many usual gaps between late steps lie between."""

MOST = 2 / 3
"""Share of the steps, or of the steps with a late rank, in which one rank must be late to be called a straggler."""

LEAST_CORRELATION = 0.5
"""Correlation of own work with the size of the batch from which the batches explain the waits."""

Phase: TypeAlias = Literal["input", "compute", "other"]
PHASES: tuple[Phase, ...] = ("input", "compute", "other")

Unit: TypeAlias = Literal["tokens", "samples"]
UNITS: tuple[Unit, ...] = ("tokens", "samples")


class RankInFit(Struct, frozen=True):
    """One rank, over the steps that all ranks logged.

    Attributes:
        rank: The rank.
        last_step: The last step in its log.
        input_ns: Its mean wait for the next batch. On a GPU, as far as the device had to wait.
        compute_ns: Its mean time of transfer, forward pass and optimizer. None if the log does not hold it.
        other_ns: Its mean time of the rest: callbacks, logging, checkpoints and the loop. None if not known.
        wait_ns: Mean time for which it waited for the last rank.
        late_share: Share of the steps in which it was late.
        late_ns: Median of its delay in those steps; None without any.
    """

    rank: int
    last_step: int
    input_ns: float
    compute_ns: float | None
    other_ns: float | None
    wait_ns: float
    late_share: float
    late_ns: float | None


class LateRank(Struct, frozen=True):
    """A rank that was late again and again.

    Attributes:
        rank: The rank.
        others: Further ranks that were late like this one.
        since: The first step of the stretch; None if it lasts from the start.
        until: The last step of the stretch; None if it lasts until the end.
        share: Share of the steps of the stretch in which it was late.
        late_ns: Median of its delay in those steps.
        phase: The phase with most of the delay.
        place: The part of the account in which it exceeds the others most, e.g. a callback; empty if not known.
        place_ns: That excess per step.
        saving_ns: Time per step of the fit by which these ranks were later than all others.
    """

    rank: int
    others: tuple[int, ...]
    since: int | None
    until: int | None
    share: float
    late_ns: float
    phase: Phase
    place: str
    place_ns: float
    saving_ns: float


class UnevenBatches(Struct, frozen=True):
    """Waits between ranks that the sizes of their batches explain.

    Attributes:
        unit: ``tokens`` or ``samples``.
        correlation: Of the size of a rank's batch with its own work, each compared with the other ranks.
        largest: The largest batch of a step divided by the mean of the ranks, as the mean over the steps.
        wait_ns: Longest minus mean work of a step, as far as the sizes predict it.
        rank: The rank with the largest batches on average.
        rank_ns: Its mean work minus that of all ranks, as far as the sizes predict it.
    """

    unit: Unit
    correlation: float
    largest: float
    wait_ns: float
    rank: int
    rank_ns: float


class RanksOverFit(Struct, frozen=True):
    """The comparison of the ranks over the whole fit, by their step logs.

    Attributes:
        ranks: Each rank with a log.
        steps: Steps compared: those that all ranks logged, without the profiler and the first steps.
        step_ns: Mean time of those.
        whole_work: Whether all of a rank's own work is known. Otherwise only its waits for batches are compared.
        wait_ns: Longest minus mean own work of a step, as the mean over the steps.
        core_wait_ns: Time per step for which each training thread at least was ready to run and had no core. Delays
            below that are the machine's, and no rank is named for them. None if not all accounts hold it.
        straggler: The rank that was late again and again; None if no rank was, or changing ones.
        uneven: The batches, if their sizes explain why ranks are late.
    """

    ranks: tuple[RankInFit, ...]
    steps: int
    step_ns: float
    whole_work: bool
    wait_ns: float
    core_wait_ns: float | None = None
    straggler: LateRank | None = None
    uneven: UnevenBatches | None = None


class _Joined(Struct, frozen=True):
    """The logs of some ranks, with a row per common step and a column per rank."""

    numbers: tuple[int, ...]
    step: Int64Array
    step_ns: Float64Array
    phases_ns: Float64Array
    waits_ns: Float64Array
    sizes: Mapping[Unit, Float64Array]
    whole_work: bool


def compare_step_logs(logs: Mapping[int, StepSamples], accounts: Iterable[FitAccount] = ()) -> RanksOverFit | None:
    """Compare the ranks of a fit. None with one rank, or with too few common steps."""
    kept = {rank: log for rank in sorted(logs) if len(log := _usable(logs[rank])) >= LEAST_STEPS}
    joined = _join(kept) if len(kept) > 1 else None
    if joined is None:
        return None
    own_ns = joined.phases_ns.sum(axis=0)
    excess_ns = _excess(own_ns)
    late = excess_ns >= LATE_SHARE * np.median(joined.step_ns)
    longest_ns = own_ns.max(axis=1, keepdims=True)
    ranks = []
    for column, rank in enumerate(joined.numbers):
        input_ns, compute_ns, other_ns = joined.phases_ns[:, :, column].mean(axis=1).tolist()
        delays = excess_ns[late[:, column], column]
        ranks.append(
            RankInFit(
                rank,
                int(logs[rank].step.max()),
                input_ns,
                compute_ns if joined.whole_work else None,
                other_ns if joined.whole_work else None,
                float((longest_ns[:, 0] - own_ns[:, column]).mean()),
                float(late[:, column].mean()),
                float(np.median(delays)) if len(delays) else None,
            )
        )
    accounts = [account for account in accounts if account.rank in kept]
    core_waits_ns = [a.core_wait_ns / a.steps for a in accounts if a.core_wait_ns is not None and a.steps]
    core_wait_ns = min(core_waits_ns) if len(core_waits_ns) == len(kept) else None
    straggler = _straggler(joined, own_ns, excess_ns, late, accounts)
    if straggler is not None and straggler.saving_ns <= (core_wait_ns or 0.0):
        straggler = None
    return RanksOverFit(
        ranks=tuple(ranks),
        steps=len(joined.step),
        step_ns=float(joined.step_ns.mean()),
        whole_work=joined.whole_work,
        wait_ns=float((longest_ns - own_ns).mean()),
        core_wait_ns=core_wait_ns,
        straggler=straggler,
        uneven=_uneven(joined, own_ns),
    )


def _usable(log: StepSamples) -> StepSamples:
    """Return the steps without the profiler and the first ones. Of a step that was repeated, the last time counts."""
    log = log[WARMUP_STEPS:]
    _, backwards = np.unique(log.step[::-1], return_index=True)
    log = log[len(log) - 1 - backwards]
    timed = log.device_ns != UNKNOWN
    kept: BoolArray = ~log.profiled & (timed if timed.any() else ~timed)
    return log[kept]


def _join(logs: Mapping[int, StepSamples]) -> _Joined | None:
    step = reduce(np.intersect1d, [log.step for log in logs.values()])
    if len(step) < LEAST_STEPS:
        return None
    rows = [log[np.searchsorted(log.step, step)] for log in logs.values()]

    def stacked(name: str) -> Float64Array:
        return np.stack([getattr(log, name) for log in rows], axis=1).astype(np.float64)

    step_ns, device_ns, input_ns = stacked("step_ns"), stacked("device_ns"), stacked("data_wait_ns")
    if (device_ns != UNKNOWN).all():
        input_ns = np.clip(step_ns - device_ns, 0, None)
    compute_ns, waits_ns = stacked("compute_ns"), stacked("wait_ns")
    whole_work = bool((compute_ns != UNKNOWN).all() and (waits_ns != UNKNOWN).all())
    other_ns = np.clip(step_ns - input_ns - compute_ns - waits_ns, 0, None)
    rest = (compute_ns, other_ns) if whole_work else (np.zeros_like(step_ns),) * 2
    sizes = {unit: values for unit in UNITS if ((values := stacked(unit)) != UNKNOWN).all()}
    return _Joined(tuple(logs), step, step_ns, np.stack([input_ns, *rest]), waits_ns, sizes, whole_work)


def _excess(own_ns: Float64Array) -> Float64Array:
    """Return by how much the own work of each rank exceeds the median of the others, the upper one of two."""
    place = np.argsort(np.argsort(own_ns, axis=1), axis=1)
    middle = (own_ns.shape[1] - 1) // 2
    # Without the value at a place, the values behind it move up by one.
    excess_ns: Float64Array = own_ns - np.take_along_axis(np.sort(own_ns, axis=1), middle + (place <= middle), axis=1)
    return excess_ns


def _straggler(
    joined: _Joined, own_ns: Float64Array, excess_ns: Float64Array, late: BoolArray, accounts: Sequence[FitAccount]
) -> LateRank | None:
    found = {}
    mine, any_rank = late.sum(axis=0), late.any(axis=1).sum()
    # By chance, a rank is late in no more than half of the steps with a late rank. A stretch is chosen, so all count.
    often = (mine >= LEAST_LATE) & (2 * mine - any_rank >= SIGMAS * any_rank**0.5)
    for column in np.flatnonzero(often).tolist():
        stretch = _stretch(late[:, column])
        if _persists(late[stretch], column):
            found[column] = stretch
    if not found:
        return None
    delay_ns = np.where(late, excess_ns, 0.0).sum(axis=0)
    column = max(found, key=lambda each: delay_ns[each])
    stretch = found[column]
    rows = np.arange(stretch.start, stretch.stop)[late[stretch, column]]
    phases_ns = [np.median(_excess(phase_ns[rows])[:, column]) for phase_ns in joined.phases_ns]
    phase = PHASES[int(np.argmax(phases_ns))]
    rank = joined.numbers[column]
    others = [each for each in range(len(joined.numbers)) if each not in found]
    saved_ns = np.clip(own_ns.max(axis=1) - own_ns[:, others].max(axis=1), 0, None)
    if joined.whole_work:  # the others cannot have waited longer than in the phases that wait
        saved_ns = np.minimum(saved_ns, joined.waits_ns[:, others].max(axis=1))
    place = _place(rank, accounts) if phase == "other" else ("", 0.0)
    return LateRank(
        rank=rank,
        others=tuple(joined.numbers[each] for each in found if each != column),
        since=int(joined.step[stretch.start]) if stretch.start else None,
        until=int(joined.step[stretch.stop - 1]) if stretch.stop < len(joined.step) else None,
        share=len(rows) / (stretch.stop - stretch.start),
        late_ns=float(np.median(excess_ns[rows, column])),
        phase=phase,
        place=place[0],
        place_ns=place[1],
        saving_ns=float(saved_ns.mean()),
    )


def _stretch(late: BoolArray) -> slice:
    """Return the stretch in which a rank is late more often than half of its usual share, by the most steps."""
    total = np.concatenate(([0.0], np.cumsum(late - late.mean() / 2)))
    start = np.maximum.accumulate(np.where(total <= np.minimum.accumulate(total), np.arange(len(total)), 0))
    stop = int(np.argmax(total - total[start]))
    rows = start[stop] + np.flatnonzero(late[start[stop] : stop])
    begin, end = int(rows[0]), int(rows[-1]) + 1
    usual = GAPS * (end - begin) / len(rows)
    return slice(begin if begin > usual else 0, end if len(late) - end > usual else len(late))


def _persists(late: BoolArray, column: int) -> bool:
    """Return whether a rank is late in most steps of a stretch, or has most of its late steps, in every quarter."""
    of_steps, of_late = [], []
    for part in np.array_split(late, 4):
        count = part[:, column].sum()
        of_steps.append(count / len(part))
        of_late.append(count / max(part.any(axis=1).sum(), 1))
    return any(np.mean(shares) >= MOST and min(shares) >= 0.5 for shares in (of_steps, of_late))


def _place(rank: int, accounts: Sequence[FitAccount]) -> tuple[str, float]:
    """Return the entry of a rank's account, outside of the phases of a step, that exceeds the others most."""
    own = next((account for account in accounts if account.rank == rank), None)
    others = [account for account in accounts if account.rank != rank]
    if own is None or not others or not own.steps:
        return "", 0.0
    excess_ns = {
        entry.name: entry.time_ns - float(np.median([other.entry(entry.group, entry.name).time_ns for other in others]))
        for entry in own.entries
        if entry.group in ("callbacks", "logging", "checkpoints")
    }
    name = max(excess_ns, key=lambda each: excess_ns[each], default="")
    return name, excess_ns.get(name, 0.0) / own.steps


def _uneven(joined: _Joined, own_ns: Float64Array) -> UnevenBatches | None:
    """Return how far the sizes of the batches predict the own work of the ranks, if they do."""
    deviation_ns = own_ns - own_ns.mean(axis=1, keepdims=True)
    deviation_ns = np.clip(deviation_ns, *np.percentile(deviation_ns, (1, 99)))  # without pauses of the system
    for unit, size in joined.sizes.items():
        mean = size.mean(axis=1, keepdims=True)
        deviation = size - mean
        scale = np.sqrt((deviation**2).sum() * (deviation_ns**2).sum())
        if not scale:
            continue
        product = (deviation * deviation_ns).sum()
        if product >= LEAST_CORRELATION * scale:
            predicted_ns = deviation * product / (deviation**2).sum()
            largest = float((size.max(axis=1) / np.maximum(mean[:, 0], 1)).mean())
            of_rank_ns = predicted_ns.mean(axis=0)
            rank = joined.numbers[int(of_rank_ns.argmax())]
            wait_ns = float(predicted_ns.max(axis=1).mean())
            return UnevenBatches(unit, float(product / scale), largest, wait_ns, rank, float(of_rank_ns.max()))
    return None
