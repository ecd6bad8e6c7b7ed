"""Sentences of a report: how far to trust its figures, which rank the others wait for, how recordings differ."""

from __future__ import annotations

from lightning_perf.analysis.comparability import Comparability, Throughput
from lightning_perf.analysis.model.memory import DeviceMemory
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.ranks.distributed import Distributed
from lightning_perf.analysis.ranks.whole_fit import RanksOverFit
from lightning_perf.analysis.steps.breakdown import Breakdown
from lightning_perf.analysis.steps.step_times import NOTABLE, StepTimes
from lightning_perf.analysis.trust import Trust, WindowTrust
from lightning_perf.findings.finding import MIN_SHARE
from lightning_perf.findings.ranks import lateness
from lightning_perf.report.labels import CATEGORY_LABELS
from lightning_perf.statistics.exact import Ratio
from lightning_perf.units import counted, format_bytes, format_duration, format_rate, format_ratio, format_share


def trust_line(trust: Trust) -> str:
    """Say how complete a recording is, how much the profiler cost, and whether the step time recovered afterwards."""
    recording = ", ".join(_recording(trust))
    sentences = [f"{recording[0].upper()}{recording[1:]}."]
    scheduled = [window for window in trust.windows if not window.window.capture]
    timed = [window for window in scheduled or trust.windows if window.overhead is not None or window.lasting]
    if timed:
        sentences += _around(max(timed, key=lambda window: window.lasting.estimate if window.lasting else 0.0))
    if trust.cost_ns is not None:
        share = f", {format_share(trust.cost_share)} of the steps' time" if trust.cost_share is not None else ""
        sentences.append(f"The profiler cost {format_duration(trust.cost_ns)}{share}.")
    if trust.analysis_ns is not None:
        sentences.append(f"The analysis took {format_duration(trust.analysis_ns)}.")
    return " ".join(sentences)


def _recording(trust: Trust) -> list[str]:
    whole = trust.steps - trust.incomplete_steps
    parts = [f"{whole} of {counted(trust.steps, 'step')} complete"] if trust.steps else []
    parts.append(f"{counted(trust.lost_events, 'event')} lost" if trust.lost_events else "no event lost")
    if trust.truncated_ranks:
        parts.append(f"{counted(trust.truncated_ranks, 'recording')} cut short")
    if trust.deviceless_ranks:
        parts.append(f"no device work in {counted(trust.deviceless_ranks, 'recording')} of a GPU's run")
    if trust.kernels:
        linked = trust.kernels - trust.unlinked_kernels
        parts.append(
            "every kernel has its launch"
            if not trust.unlinked_kernels
            else f"{format_share(linked / trust.kernels)} of {counted(trust.kernels, 'kernel')} have their launch"
        )
    if trust.empty_launches:
        launches = f"{trust.empty_launches:,} launch{'' if trust.empty_launches == 1 else 'es'}"
        parts.append(f"{launches} without recorded work: device times are too low")
    return parts


def _around(window: WindowTrust) -> list[str]:
    sentences = []
    if window.overhead is not None:
        sentences.append(f"Steps under the profiler took {_with_interval(window.overhead)} the time of those before.")
    if window.lasting is not None:
        after = {
            True: "Afterwards the step time recovered",
            False: "Afterwards the step time did not recover",
            None: "Whether the step time recovered afterwards is unknown",
        }[window.returned]
        sentences.append(f"{after}: {_with_interval(window.lasting)}.")
    return sentences


def _with_interval(ratio: Ratio) -> str:
    return (
        f"{format_ratio(ratio.estimate)} ({round(100 * ratio.level)} % CI "
        f"{format_ratio(ratio.low)} to {format_ratio(ratio.high)})"
    )


def who_is_late(run: RanksOverFit) -> str:
    """Say which rank is late over the whole fit, or that it changes."""
    over = f"Over {run.steps:,} steps of the fit,"
    if run.straggler is not None:
        return f"{over} {lateness(run.straggler)}."
    if run.wait_ns < MIN_SHARE * run.step_ns:
        return f"{over} no rank keeps the others waiting."
    if run.core_wait_ns is not None and run.wait_ns <= run.core_wait_ns:
        waited = format_duration(run.core_wait_ns)
        return f"{over} no rank is named: all wait for a core longer ({waited} per step) than for each other."
    waits = f"{over} the late rank changes. Its work exceeds the mean by {format_duration(run.wait_ns)} per step"
    why = "the sizes of the batches do not explain it" if run.uneven is None else f"it has the most {run.uneven.unit}"
    return f"{waits}, and {why}."


def who_waits(compared: Distributed | None) -> tuple[str, ...]:
    """Say which rank delays the others and why, as far as the recordings show."""
    if compared is None or len(compared.ranks) < 2:
        return ()
    straggler, awaited = compared.straggler, compared.awaited
    lines = []
    if straggler is not None:
        name = CATEGORY_LABELS.get(straggler.category, straggler.category)
        waited = awaited is not None and awaited.rank == straggler.rank
        lines.append(
            f"{'The others wait for rank' if waited else 'The most work is on rank'} {straggler.rank}: "
            f"{format_duration(straggler.excess_ns)} per step more in {name}. Evenly spread, a step would take "
            f"{format_duration(compared.balanced_saving_ns)} less."
        )
    if awaited is not None and (straggler is None or awaited.rank != straggler.rank):
        line = (
            f"In collectives the others wait longest for rank {awaited.rank}: {format_duration(awaited.wait_ns)} per "
            f"step, {format_share(awaited.share)} of all waits."
        )
        if awaited.late_ns is not None:
            line += (
                f" It began the recording {format_duration(awaited.late_ns)} after the first rank, for a reason before "
                "the recording."
            )
        lines.append(line)
    if not lines:
        who = "None of the ranks that were read" if compared.missing_ranks else "No rank"
        lines.append(f"{who} keeps the others waiting.")
    return tuple(lines)


def mismatch_sentence(checked: Comparability) -> str:
    """Name the aspects in which two recordings differ.

    Example:
        >>> from lightning_perf.analysis.comparability import Mismatch
        >>> mismatch_sentence(Comparability((Mismatch("device", "V100", "H100"), Mismatch("ranks", "1", "2")), ()))
        'the recordings differ in device and ranks.'
    """
    *most, last = (mismatch.aspect for mismatch in checked.mismatches)
    return f"the recordings differ in {', '.join(most)}{' and ' if most else ''}{last}."


def throughput_sentence(throughput: Throughput) -> str:
    """Give the throughput of both recordings.

    Example:
        >>> throughput_sentence(Throughput(32, 256, 1000.0, 2500.0))
        'Throughput: 1,000 samples/s before (32 samples per step), 2,500 samples/s after (256 samples per step), 2.50×.'
    """
    before, after = (
        f"{format_rate(rate, 'samples')} {when} ({counted(samples, 'sample')} per step)"
        for rate, when, samples in (
            (throughput.before_per_s, "before", throughput.before_samples),
            (throughput.after_per_s, "after", throughput.after_samples),
        )
    )
    return f"Throughput: {before}, {after}, {format_ratio(throughput.after_per_s / throughput.before_per_s)}."


def batch_sentences(memory: DeviceMemory) -> tuple[str, ...]:
    """Say how much memory a larger batch needs, and which is the largest that fits."""
    batch = memory.batch
    if batch is None:
        return ()
    sentences = [
        (
            f"A batch of {2 * batch.batch_size:,} would need {format_bytes(batch.doubled_low_bytes)} to "
            f"{format_bytes(batch.doubled_high_bytes)} for tensors (recorded: {batch.batch_size:,}). In large batches, "
            f"each sample takes {format_bytes(batch.sample_bytes)}."
        )
    ]
    if batch.available_bytes is not None:
        room = f"{format_bytes(batch.available_bytes)} for tensors"
        if batch.largest_high is None or batch.largest_low is None:
            sentences.append(f"Memory does not limit the batch: there is room of {room}.")
        else:
            sentences.append(
                f"The largest batch that fits has {batch.largest_low:,} to {batch.largest_high:,} samples: there is "
                f"room of {room}."
            )
    return tuple(sentences)


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
    longer_ns = (lead.breakdown.category("input").mean_ns or 0.0) - (step_times.data_wait_p50_ns or 0)
    waits = ""
    if longer_ns >= (recorded_ns - usual_ns) / 2:
        waits = f" Most of that is waiting for data, {format_duration(longer_ns)} longer than in the median step."
    options = ", ".join(_options(lead))
    named = f" ({options})" if options else ""
    return [
        *stalls,
        (
            f"{slower} steps without the profiler ({format_duration(usual_ns)}).{waits} The profiler{named}, or other "
            "work on the machine at that time, slowed the host down. The host's true shares are smaller than those "
            f"shown.{_usual_use(lead)}"
        ),
    ]


DEVICE_BOUND = 0.9
"""Share of a step without the profiler from which the device's work of a recorded one fills it."""


def _usual_use(lead: RankAnalysis) -> str:
    """Return a sentence about the use of the device in a usual step; empty if it is unknown."""
    if lead.usual is None:
        return ""
    share = lead.usual.busy_ns / lead.usual.step_ns
    fills = ": only less work on the device makes it shorter" if share >= DEVICE_BOUND else ""
    return f" Without the profiler the device works for {format_share(min(share, 1.0))} of a step{fills}."


def _options(lead: RankAnalysis) -> list[str]:
    """Return the options of the profiler that cost host time, the costliest first."""
    metadata, recorded = lead.metadata, lead.workload.options
    options = {
        "with_stack": metadata.with_stack or "with_stack" in recorded,
        "profile_memory": metadata.profile_memory or "profile_memory" in recorded,
        "record_shapes": metadata.record_shapes,
    }
    return [f"{name}=True" for name, on in options.items() if on]


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
        slow = f"{counted(len(apart), 'recorded step')} took up to {longest_time} (step {longest.number})"
    return [
        (
            f"{slow}, the other recorded steps {format_duration(others_ns)} on average. The means "
            f"({format_duration(wall.mean_ns)}) include the slow ones and are higher because of them."
        )
    ], others_ns
