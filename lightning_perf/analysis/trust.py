"""How far a recording can be trusted: what is missing from it, and what the profiler did to the run it recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from lightning_perf.analysis.core.arrays import outlying
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.steps.step_times import WARMUP_STEPS
from lightning_perf.run_files.steps import StepSample, StepSamples
from lightning_perf.run_files.windows import RecordedWindow
from lightning_perf.statistics.ranks import Ratio, hodges_lehmann_ratio

__all__ = ["COMPARED_STEPS", "RETURN_TOLERANCE", "Trust", "WindowTrust", "trust"]

COMPARED_STEPS = 50
"""Steps before and after a window, at most, that its steps are compared with: the nearest ones, for a run drifts."""

MIN_STEPS = 5
"""Steps needed before a window, inside and after it: what the default schedule leaves before its first one. The
interval is as wide as so few allow."""

RETURN_TOLERANCE = 0.02
"""A step time within this part of what it was before the window has returned."""


@dataclass(frozen=True)
class WindowTrust:
    """What one window did to the run.

    Attributes:
        window: The window.
        before_ns: Median step time before it; None where no step without the profiler came before.
        inside_ns: Median step time in it, warm-up included; None where its steps were not timed.
        after_ns: Median step time after it, up to the next window; None where no step followed.
        overhead: Step time inside over before; None where there are too few steps for it.
        lasting: Step time after over before; None likewise.
        returned: Whether the step time has returned: True when it is at most `RETURN_TOLERANCE` above with the whole
            interval, False when the interval lies above 1 and the estimate beyond the tolerance, None when the run
            is too short or too restless to tell.
        cost_ns: What the window cost the run: its pauses, its exports, and what its steps took beyond the median
            before, without recorded steps that stand apart: a stall of the run's own. None where the median is unknown.
    """

    window: RecordedWindow
    before_ns: int | None
    inside_ns: int | None
    after_ns: int | None
    overhead: Ratio | None
    lasting: Ratio | None
    returned: bool | None
    cost_ns: int | None


@dataclass(frozen=True)
class Trust:
    """How far a recording can be trusted.

    Attributes:
        steps: Steps in the recordings, of all ranks.
        incomplete_steps: Those that a recording cut off; averages leave them out.
        lost_events: Events that were in the files and could not be used.
        kernels: Pieces of compute and communication on devices, in the averaged steps.
        unlinked_kernels: Those whose launch was not recorded, so that operator, phase and module are unknown.
        deviceless_ranks: Recordings that describe a GPU and hold no work of it.
        truncated_ranks: Recordings that end early.
        windows: What the profiler did to the run, window by window; empty where nothing tells.
        cost_ns: What all windows cost the run; None where it is unknown of any.
        cost_share: The same as a part of the time that the timed steps and the pauses took.
        analysis_ns: What it took to analyse the traces; None when the report was made without a run.
        empty_launches: Launch calls in the averaged steps whose work is not in the recording.
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
        """Whether nothing is known to be missing."""
        missing = (self.incomplete_steps, self.lost_events, self.deviceless_ranks, self.truncated_ranks)
        return not any((*missing, self.empty_launches))


def trust(
    ranks: Sequence[RankAnalysis],
    samples: Sequence[StepSample] = (),
    windows: Sequence[RecordedWindow] = (),
) -> Trust | None:
    """Say how far a recording can be trusted.

    Args:
        ranks: The ranks' analyses.
        samples: Step times by the always-on timer, of one rank.
        windows: What the profiler did on the same rank.

    Returns:
        The trust, or None when nothing was recorded.
    """
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
        lost_events=sum(each.dropped_events + each.bad_durations for each in problems),
        kernels=sum(each.kernels for each in launches),
        unlinked_kernels=sum(each.unlinked_kernels for each in launches),
        deviceless_ranks=sum(_lacks_device(analysis) for analysis in ranks),
        truncated_ranks=sum(each.truncated for each in problems),
        windows=each,
        cost_ns=cost_ns,
        cost_share=cost_ns / total_ns if cost_ns is not None and total_ns else None,
        empty_launches=sum(each.empty_calls for each in launches),
    )


def _lacks_device(analysis: RankAnalysis) -> bool:
    return bool(analysis.metadata.devices) and not analysis.breakdown.has_device


def _windows(samples: Sequence[StepSample], windows: Sequence[RecordedWindow]) -> tuple[WindowTrust, ...]:
    """Each window beside the steps around it.

    A step right after a window is as usual as any: the pause and the export lie between two steps.
    """
    samples = StepSamples.of(samples)
    usual = samples[~samples.profiled][WARMUP_STEPS:]
    trusted = []
    for place, window in enumerate(windows):
        until = windows[place + 1].first_step if place + 1 < len(windows) else None
        before = usual.step_ns[usual.step < window.first_step][-COMPARED_STEPS:].tolist()
        later = (usual.step > window.last_step) & (usual.step < (until if until is not None else 2**63 - 1))
        after = usual.step_ns[later][:COMPARED_STEPS].tolist()
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
    """What the steps of a window took beyond the usual time."""
    first = len(inside) - recorded  # warm-up comes before: that its first step takes long is the profiler's doing
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
