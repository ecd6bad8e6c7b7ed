"""The difference of two runs, as means per step: by category, by operator, by kernel."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from lightning_perf.analysis.compilation import CompileReport
from lightning_perf.analysis.kernels.kernel_table import KernelTable
from lightning_perf.analysis.model.memory import Memory, PeakCategory
from lightning_perf.analysis.model.operators import OperatorTable
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.steps.breakdown import Breakdown
from lightning_perf.analysis.steps.fit_time import FitTime
from lightning_perf.units import counted, format_count, format_duration

Verdict = Literal["faster", "slower", "same", "appeared", "vanished", "incomparable"]

SAME_SHARE = 0.01
"""A time that changed by at most this share of itself counts as the same."""


class DiffRow(Struct, frozen=True):
    """One category, operator or kernel in both runs. Times and calls are means per step.

    Attributes:
        name: Its name; None for device work that no operator launched.
        before_ns: Its time before; None if it did not occur.
        after_ns: Its time after; None if it does not occur.
        change_ns: After minus before, with 0 for a missing time. The changes of the rows sum to that of the table.
        ratio: After over before; None if either is missing or zero.
        before_calls: Its calls before; None for a category, or if it did not occur.
        after_calls: Its calls after; None for a category, or if it does not occur.
        verdict: The outcome. ``incomparable`` replaces ``faster``, ``slower`` and ``same`` where the recordings show
            different trainings.
    """

    name: str | None
    before_ns: float | None
    after_ns: float | None
    change_ns: float
    ratio: float | None
    before_calls: float | None
    after_calls: float | None
    verdict: Verdict


class DiffTable(Struct, frozen=True):
    """Rows that sum to a total.

    Attributes:
        before_ns: Sum of the rows before.
        after_ns: Sum of the rows after.
        change_ns: Sum of their changes.
        rows: The rows, the largest change first, in whichever direction.
    """

    before_ns: float
    after_ns: float
    change_ns: float
    rows: tuple[DiffRow, ...]


class Diff(Struct, frozen=True):
    """The changes from one run to another, as means per step over the averaged steps of each.

    Attributes:
        before_steps: Steps averaged before.
        after_steps: Steps averaged after.
        step: Wall time of a step.
        categories: Step time by category. It sums to the wall time.
        operators_host: Host self time by operator; None if either run lacks its operators.
        operators_device: Device self time by operator; None if either run lacks it.
        kernels: Device time by kernel, copies and memsets included; None if neither run has a device.
    """

    before_steps: int
    after_steps: int
    step: DiffRow
    categories: DiffTable
    operators_host: DiffTable | None
    operators_device: DiffTable | None
    kernels: DiffTable | None


class FitDiff(Struct, frozen=True):
    """The changes from one whole fit to another.

    Attributes:
        steps_before: Optimizer steps before.
        steps_after: Optimizer steps after.
        groups: Time of each group of the accounts, in nanoseconds of the fit. It sums to the wall time.
        first_step_before_ns: Time to the end of the first step before; None without one.
        first_step_after_ns: The same after.
        samples_per_second_before: Samples per second of the whole fit before; None if they were not counted.
        samples_per_second_after: The same after.
    """

    steps_before: int
    steps_after: int
    groups: DiffTable
    first_step_before_ns: int | None
    first_step_after_ns: int | None
    samples_per_second_before: float | None
    samples_per_second_after: float | None


class PartDiff(Struct, frozen=True):
    """One part of the memory at the peak in both runs.

    Attributes:
        category: Its name.
        before_bytes: Its size before.
        after_bytes: Its size after.
    """

    category: PeakCategory
    before_bytes: int
    after_bytes: int


class MemoryDiff(Struct, frozen=True):
    """The changes of the memory at the peak of one device.

    Attributes:
        device: Device ordinal; None for the host.
        before_bytes: Sum of the parts before.
        after_bytes: Sum of the parts after.
        parts: The parts, the largest change first.
    """

    device: int | None
    before_bytes: int
    after_bytes: int
    parts: tuple[PartDiff, ...]


_Times = dict[str | None, tuple[float, float | None]]
"""Time and calls per step by name."""


def diff(before: RankAnalysis, after: RankAnalysis, *, comparable: bool = True) -> Diff:
    """Compare two runs by category, operator and kernel.

    A single pair of recordings shows what changed, but does not prove that a setting caused it. For that, repeat the
    runs and compare them statistically. Nothing is called faster, slower or the same unless the runs are comparable, as
    `check_comparable` finds.
    """
    first, second = before.breakdown, after.breakdown
    old, new = before.operators, after.operators
    return Diff(
        before_steps=first.averaged_steps,
        after_steps=second.averaged_steps,
        step=_row("step", (first.wall.mean_ns or 0.0, None), (second.wall.mean_ns or 0.0, None), comparable),
        categories=_table(_categories(first), _categories(second), comparable),
        operators_host=_table(_host(old), _host(new), comparable) if old and new else None,
        operators_device=_table(_device(old), _device(new), comparable)
        if old and new and None not in (old.device_ns, new.device_ns)
        else None,
        kernels=_table(_kernels(before.kernels), _kernels(after.kernels), comparable)
        if before.kernels or after.kernels
        else None,
    )


def diff_steps(before_ns: float | None, after_ns: float | None, *, comparable: bool) -> DiffRow | None:
    """Compare the step times of two runs; None unless both are known."""
    if before_ns is None or after_ns is None:
        return None
    return _row("step", (before_ns, None), (after_ns, None), comparable)


def diff_fits(before: FitTime | None, after: FitTime | None) -> FitDiff | None:
    """Compare the accounts of two whole fits; None unless both have one."""
    if before is None or after is None:
        return None
    return FitDiff(
        steps_before=before.steps,
        steps_after=after.steps,
        groups=_table(_groups(before), _groups(after)),
        first_step_before_ns=before.first_step_ns,
        first_step_after_ns=after.first_step_ns,
        samples_per_second_before=before.samples_per_second,
        samples_per_second_after=after.samples_per_second,
    )


def _groups(fit: FitTime) -> _Times:
    return {group.group: (float(group.time_ns), None) for group in fit.groups}


def diff_memory(before: Memory | None, after: Memory | None) -> tuple[MemoryDiff, ...]:
    """Compare the memory at the peaks of two runs, for each device that both recorded."""
    found = []
    for first in before.devices if before is not None else ():
        second = next((each for each in after.devices if each.device == first.device), None) if after else None
        if second is None or not first.parts or not second.parts:
            continue
        categories = dict.fromkeys(part.category for part in (*first.parts, *second.parts))
        parts = [PartDiff(name, first.part_bytes(name), second.part_bytes(name)) for name in categories]
        parts.sort(key=lambda part: -abs(part.after_bytes - part.before_bytes))
        before_bytes, after_bytes = (sum(part.bytes for part in each.parts) for each in (first, second))
        found.append(MemoryDiff(first.device, before_bytes, after_bytes, tuple(parts)))
    return tuple(found)


def _categories(run: Breakdown) -> _Times:
    parents = {row.parent for row in run.categories}
    return {
        row.name: (row.mean_ns, None) for row in run.categories if row.name not in parents and row.mean_ns is not None
    }


def _host(run: OperatorTable) -> _Times:
    return _a_step([(row.name, row.host_self_ns, row.calls) for row in run.rows], run.steps)


def _device(run: OperatorTable) -> _Times:
    rows = [(row.name, row.device_self_ns, row.calls) for row in run.rows if row.device_self_ns]
    times = _a_step(rows, run.steps)
    if run.unattributed_device_ns:
        times[None] = (run.unattributed_device_ns / max(run.steps, 1), None)
    return times


def _kernels(run: KernelTable | None) -> _Times:
    return _a_step([(row.name, row.total_ns, row.calls) for row in run.rows], run.steps) if run else {}


def _a_step(rows: Iterable[tuple[str, int, int]], steps: int) -> _Times:
    """Return means per step. Rows with the same name (shapes of an operator, kinds of a kernel) are summed."""
    times: _Times = {}
    for name, time_ns, calls in rows:
        known_ns, known_calls = times.get(name, (0.0, 0.0))
        times[name] = (known_ns + time_ns / max(steps, 1), (known_calls or 0.0) + calls / max(steps, 1))
    return times


def _table(before: _Times, after: _Times, comparable: bool = True) -> DiffTable:
    names = dict.fromkeys([*before, *after])
    rows = [_row(name, before.get(name), after.get(name), comparable) for name in names]
    rows.sort(key=lambda row: (-abs(row.change_ns), row.name or ""))
    total_before = sum(time for time, _ in before.values())
    total_after = sum(time for time, _ in after.values())
    return DiffTable(total_before, total_after, total_after - total_before, tuple(rows))


def _row(
    name: str | None,
    before: tuple[float, float | None] | None,
    after: tuple[float, float | None] | None,
    comparable: bool,
) -> DiffRow:
    before_ns, before_calls = before if before is not None else (None, None)
    after_ns, after_calls = after if after is not None else (None, None)
    return DiffRow(
        name=name,
        before_ns=before_ns,
        after_ns=after_ns,
        change_ns=(after_ns or 0.0) - (before_ns or 0.0),
        ratio=after_ns / before_ns if before_ns and after_ns else None,
        before_calls=before_calls,
        after_calls=after_calls,
        verdict=_verdict(before_ns, after_ns, comparable),
    )


def _verdict(before_ns: float | None, after_ns: float | None, comparable: bool) -> Verdict:
    before_ns, after_ns = before_ns or 0.0, after_ns or 0.0
    if bool(before_ns) != bool(after_ns):
        return "vanished" if before_ns else "appeared"
    if not comparable:
        return "incomparable"
    if abs(after_ns - before_ns) <= SAME_SHARE * before_ns:
        return "same"
    return "faster" if after_ns < before_ns else "slower"


def compare_compilations(
    before: CompileReport | None,
    after: CompileReport | None,
    *,
    step_before_ns: float | None = None,
    step_after_ns: float | None = None,
) -> str:
    """Compare the compilations of two fits in sentences; nothing if neither compiled anything.

    Median steps are missing where they are unknown, or not comparable.
    """
    compiled = after if before is None else before
    if compiled is None:
        return ""
    sentences = [f"Compilation took {_compilations(before)} before, and {_compilations(after)} after."]
    if (before is None or after is None) and step_before_ns and step_after_ns:
        saved_ns = (step_before_ns - step_after_ns) * (1 if before is None else -1)
        if saved_ns > 0:
            saved, steps = format_duration(saved_ns), format_count(math.ceil(compiled.time_ns / saved_ns))
            sentences.append(f"It saves {saved} per step (median) and pays after {steps} steps.")
            sentences += [f"The compiled fit has {format_count(compiled.steps)}."] if compiled.steps is not None else []
        else:
            sentences.append("The compiled fit has no faster steps, so compilation does not pay.")
    return " ".join(sentences)


def _compilations(found: CompileReport | None) -> str:
    if found is None or not found.time_ns:
        return "no time"
    counts = ((found.recompilations, "recompilation"), (len(found.breaks), "graph break"))
    parts = ", ".join(counted(count, noun) for count, noun in counts if count)
    return format_duration(found.time_ns) + f" ({parts})" * bool(parts)
