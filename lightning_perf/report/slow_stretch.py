"""Notes on recorded steps that were slower than the rest of the run, and on the cause."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.steps.breakdown import Breakdown
from lightning_perf.analysis.steps.step_times import StepTimes
from lightning_perf.analysis.trust import Trust
from lightning_perf.report.labels import count_of
from lightning_perf.units import format_duration, format_ratio

NOTABLE = 1.2
"""Ratios from here on get a note: of recorded to usual step time, or of a mean with slow steps to that without."""


def slowness_notes(lead: RankAnalysis | None, step_times: StepTimes | None, trusted: Trust | None) -> list[str]:
    """Explain recorded steps that are much slower than those of the run, or than each other.

    Args:
        lead: The rank that the report describes first.
        step_times: The steps of the run that were not recorded.
    """
    if lead is None:
        return []
    if step_times is None:
        return _unmeasured_options(lead)
    if step_times.only_profiled or not lead.breakdown.marked:
        return []
    stalls, recorded_ns = _stalls(lead.breakdown)
    usual_ns = step_times.p50_ns
    if not recorded_ns or not usual_ns or recorded_ns < NOTABLE * usual_ns:
        return stalls
    slower = f"Recorded steps took {format_ratio(recorded_ns / usual_ns)} as long as"
    windows = trusted.windows if trusted is not None else ()
    overheads = [each.overhead.estimate for each in windows if each.overhead is not None and not each.window.capture]
    if overheads and max(overheads) < NOTABLE:
        return [
            *stalls,
            (
                f"{slower} the run's median step ({format_duration(usual_ns)}), and so did the steps just before them. "
                "The recording shows a slow stretch of the run, not its usual step."
            ),
        ]
    return [
        *stalls,
        (
            f"{slower} steps without the profiler ({format_duration(usual_ns)}). The profiler{_with(lead)}, or other "
            "work on the machine at that time, slowed the host down. The host's true shares are smaller than those "
            "shown."
        ),
    ]


def _options(lead: RankAnalysis) -> list[str]:
    """Return the options of the profiler that cost host time, the costliest first."""
    metadata, recorded = lead.metadata, lead.workload.options
    options = {
        "with_stack": metadata.with_stack or "with_stack" in recorded,
        "profile_memory": metadata.profile_memory or "profile_memory" in recorded,
        "record_shapes": metadata.record_shapes,
    }
    return [f"{name}=True" for name, on in options.items() if on]


def _with(lead: RankAnalysis) -> str:
    options = _options(lead)
    return f" ({', '.join(options)})" if options else ""


def _unmeasured_options(lead: RankAnalysis) -> list[str]:
    """Return a note on Python stacks in a step that waits for the host, where no step log shows their cost."""
    bound = lead.launches.launch_bound if lead.launches is not None else None
    waits = bound is not None and bound.bound if lead.breakdown.has_device else True
    if not waits or "with_stack" not in lead.workload.options:
        return []
    return [
        (
            f"The host recorded every Python call ({', '.join(_options(lead))}), which makes it slower, and the "
            "step waits for it. Its true shares are smaller than those shown. Record without with_stack to measure "
            "them."
        )
    ]


def _stalls(breakdown: Breakdown) -> tuple[list[str], float | None]:
    """Explain averages that a few steps dominate, and return the mean of the other steps."""
    wall = breakdown.wall
    apart = {outlier.number for outlier in breakdown.outliers if outlier.excess_ns > 0}
    others = [step.wall_ns for step in breakdown.steps if step.complete and step.number not in apart]
    if not apart or not others or not wall.mean_ns:
        return [], wall.mean_ns
    others_ns = sum(others) / len(others)
    if wall.mean_ns < NOTABLE * others_ns:
        return [], wall.mean_ns
    longest = max(breakdown.outliers, key=lambda outlier: outlier.wall_ns)
    longest_time = format_duration(longest.wall_ns)
    slow = f"Step {longest.number} took {longest_time}"
    if len(apart) > 1:
        slow = f"{count_of(len(apart), 'recorded step')} took up to {longest_time} (step {longest.number})"
    return [
        (
            f"{slow}, the other recorded steps {format_duration(others_ns)} on average. The means "
            f"({format_duration(wall.mean_ns)}) include the slow ones and are higher because of them."
        )
    ], others_ns
