"""How far to trust a recording: the events it lacks, and the profiler's effect on the run."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.intervals import outlying
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.steps.step_times import COMPARED_STEPS, steps_after
from lightning_perf.run_files.captures import RecordedWindow
from lightning_perf.run_files.steps import WARMUP_STEPS, StepSample, StepSamples
from lightning_perf.statistics.exact import Ratio, hodges_lehmann_ratio

MIN_STEPS = 5
"""Steps needed before a window, inside it and after it. The default schedule leaves that many before its first window.
With so few steps, the interval is wide."""

RETURN_TOLERANCE = 0.02
"""A step time within this share of the one before the window has recovered."""


class WindowTrust(Struct, frozen=True):
    """The effect of one window on the run.

    Attributes:
        window: The window.
        before_ns: Median step time before it; None if no step without the profiler came before.
        inside_ns: Median step time in it, warm-up included; None if its steps were not timed.
        after_ns: Median step time after it, up to the next window or a later slowdown; None if no step followed.
        overhead: Step time inside over before; None with too few steps.
        lasting: Step time after over before; None with too few steps.
        returned: Whether the step time recovered. True if the whole interval is at most `RETURN_TOLERANCE` above 1.
            False if the interval lies above 1 and the estimate beyond the tolerance. None if the run is too short or
            too unsteady to say.
        cost_ns: The cost of the window: its pauses, its exports, and the time of its steps beyond the median before.
            Outliers among the recorded steps are left out, because they are stalls of the run itself. None if the
            median is unknown.
    """

    window: RecordedWindow
    before_ns: int | None
    inside_ns: int | None
    after_ns: int | None
    overhead: Ratio | None
    lasting: Ratio | None
    returned: bool | None
    cost_ns: int | None


class Trust(Struct, frozen=True):
    """How far to trust a recording.

    Attributes:
        steps: Steps in the recordings, of all ranks.
        incomplete_steps: Those that a recording cut off; averages leave them out.
        lost_events: Events in the files that could not be used.
        kernels: Pieces of compute and communication on devices, in the averaged steps.
        unlinked_kernels: Those without a recorded launch, so that operator, phase and module are unknown.
        deviceless_ranks: Recordings that describe a GPU but hold none of its work.
        truncated_ranks: Recordings that end early.
        windows: The profiler's effect on the run, window by window; empty if it was not logged.
        cost_ns: The cost of all windows; None if it is unknown for one of them.
        cost_share: The same as a share of the time of the timed steps and the pauses.
        analysis_ns: The time that it took to analyze the traces; None if the report was made without a run.
        empty_launches: Launch calls in the averaged steps without recorded work.
    """

    steps: int
    incomplete_steps: int
    lost_events: int
    kernels: int
    unlinked_kernels: int
    deviceless_ranks: int
    truncated_ranks: int
    windows: tuple[WindowTrust, ...] = ()
    cost_ns: int | None = None
    cost_share: float | None = None
    analysis_ns: int | None = None
    empty_launches: int = 0

    @property
    def sound(self) -> bool:
        """Whether no event is known to be missing."""
        missing = (self.incomplete_steps, self.lost_events, self.deviceless_ranks, self.truncated_ranks)
        return not any((*missing, self.empty_launches))


def trust(
    ranks: Sequence[RankAnalysis], samples: Sequence[StepSample] = (), windows: Sequence[RecordedWindow] = ()
) -> Trust | None:
    """Say how far to trust a recording."""
    if not ranks and not windows:
        return None
    marked = [analysis for analysis in ranks if analysis.breakdown.marked]
    launches = [analysis.launches for analysis in ranks if analysis.launches is not None]
    problems = [analysis.problems for analysis in ranks]
    each = _windows(samples, windows)
    costs = [window.cost_ns for window in each]
    cost_ns = sum(cost for cost in costs if cost is not None) if costs and None not in costs else None
    total_ns = int(StepSamples.of(samples).step_ns.sum()) + sum(w.pause_ns + w.export_ns for w in windows)
    return Trust(
        steps=sum(len(analysis.breakdown.steps) for analysis in marked),
        incomplete_steps=sum(not step.complete for analysis in marked for step in analysis.breakdown.steps),
        lost_events=sum(each.dropped_events + each.bad_durations + each.unread_events for each in problems),
        kernels=sum(each.kernels for each in launches),
        unlinked_kernels=sum(each.unlinked_kernels for each in launches),
        deviceless_ranks=sum(bool(each.metadata.devices) and not each.breakdown.has_device for each in ranks),
        truncated_ranks=sum(each.truncated for each in problems),
        windows=each,
        cost_ns=cost_ns,
        cost_share=cost_ns / total_ns if cost_ns is not None and total_ns else None,
        empty_launches=sum(each.empty_calls for each in launches),
    )


def _windows(samples: Sequence[StepSample], windows: Sequence[RecordedWindow]) -> tuple[WindowTrust, ...]:
    """Compare each window with the steps around it.

    A step right after a window is an ordinary one: the pause and the export lie between two steps.
    """
    samples = StepSamples.of(samples)
    usual = samples[~samples.profiled][WARMUP_STEPS:]
    trusted = []
    for place, window in enumerate(windows):
        until = windows[place + 1].first_step if place + 1 < len(windows) else None
        before = usual.step_ns[usual.step < window.first_step][-COMPARED_STEPS:].tolist()
        later = (usual.step > window.last_step) & (usual.step < (until if until is not None else 2**63 - 1))
        after = steps_after(usual.step_ns[later]).tolist()
        within = (samples.step >= window.first_step) & (samples.step <= window.last_step)
        inside = samples.step_ns[samples.profiled & within].tolist()
        excess_ns = _excess_ns(inside, window.recorded_steps, round(median(before))) if before else None
        lasting = _ratio(after, before)
        trusted.append(
            WindowTrust(
                window=window,
                before_ns=_median(before),
                inside_ns=_median(inside),
                after_ns=_median(after),
                overhead=_ratio(inside, before),
                lasting=lasting,
                returned=_returned(lasting),
                cost_ns=max(excess_ns, 0) + window.pause_ns + window.export_ns if excess_ns is not None else None,
            )
        )
    return tuple(trusted)


def _excess_ns(inside: Sequence[int], recorded: int, usual_ns: int) -> int:
    """Return the time of a window's steps beyond the usual time."""
    first = len(inside) - recorded  # warm-up comes before: the profiler makes its first step slow
    kept = list(inside)
    if MIN_STEPS <= recorded <= len(inside):
        times_ns = np.array(inside[first:])
        stalls = outlying(times_ns) & (times_ns > np.median(times_ns))
        kept[first:] = times_ns[~stalls].tolist()
    return sum(kept) - usual_ns * len(kept)


def _ratio(after: Sequence[int], before: Sequence[int]) -> Ratio | None:
    enough = min(len(after), len(before)) >= MIN_STEPS
    return hodges_lehmann_ratio(before, after) if enough and all(after) and all(before) else None


def _median(times_ns: Sequence[int]) -> int | None:
    return round(median(times_ns)) if times_ns else None


def _returned(lasting: Ratio | None) -> bool | None:
    if lasting is None:
        return None
    if lasting.high <= 1 + RETURN_TOLERANCE:
        return True
    return False if lasting.low > 1 and lasting.estimate > 1 + RETURN_TOLERANCE else None
