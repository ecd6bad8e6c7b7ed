"""Sentences of a report: how far to trust its figures, which rank the others wait for, how recordings differ."""

from __future__ import annotations

from lightning_perf.analysis.comparability import Comparability, Throughput
from lightning_perf.analysis.model.memory import DeviceMemory
from lightning_perf.analysis.ranks.distributed import Distributed
from lightning_perf.analysis.ranks.whole_fit import RanksOverFit
from lightning_perf.analysis.trust import Trust, WindowTrust
from lightning_perf.findings.finding import MIN_SHARE
from lightning_perf.findings.ranks import lateness
from lightning_perf.report.labels import CATEGORY_LABELS, count_of
from lightning_perf.statistics.ranks import Ratio
from lightning_perf.units import format_bytes, format_duration, format_rate, format_ratio, format_share


def trust_line(trust: Trust) -> str:
    """Say how complete a recording is, how much the profiler cost, and whether the step time recovered afterwards.

    Example:
        >>> trust_line(Trust(5, 0, 0, 0, 0, 0, 0))
        '5 of 5 steps complete, no event lost.'
    """
    recording = ", ".join(_recording(trust))
    sentences = [f"{recording[0].upper()}{recording[1:]}."]
    scheduled = [window for window in trust.windows if not window.window.capture]
    timed = [window for window in scheduled or trust.windows if window.overhead is not None or window.lasting]
    if timed:
        sentences += _around(max(timed, key=lambda window: window.lasting.estimate if window.lasting else 0.0))
    if trust.cost_ns is not None:
        share = f", {format_share(trust.cost_share)} of the run" if trust.cost_share is not None else ""
        sentences.append(f"The profiler cost {format_duration(trust.cost_ns)}{share}.")
    if trust.analysis_ns is not None:
        sentences.append(f"The analysis took {format_duration(trust.analysis_ns)}.")
    return " ".join(sentences)


def _recording(trust: Trust) -> list[str]:
    whole = trust.steps - trust.incomplete_steps
    parts = [f"{whole} of {count_of(trust.steps, 'step')} complete"] if trust.steps else []
    parts.append(f"{count_of(trust.lost_events, 'event')} lost" if trust.lost_events else "no event lost")
    if trust.truncated_ranks:
        parts.append(f"{count_of(trust.truncated_ranks, 'recording')} cut short")
    if trust.deviceless_ranks:
        parts.append(f"no device work in {count_of(trust.deviceless_ranks, 'recording')} of a GPU's run")
    if trust.kernels:
        linked = trust.kernels - trust.unlinked_kernels
        parts.append(
            "every kernel has its launch"
            if not trust.unlinked_kernels
            else f"{format_share(linked / trust.kernels)} of {count_of(trust.kernels, 'kernel')} have their launch"
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
        f"{format_rate(rate, 'samples')} {when} ({count_of(samples, 'sample')} per step)"
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
