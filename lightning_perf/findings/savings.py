"""Estimates of the step time that a change saves: only the share that can shrink does (Amdahl, AFIPS 1967).

Faster device work saves step time only while the step waits for it, and a step is never shorter than the work of the
host. Savings of kernel time are therefore scaled to the time in which compute is exposed, and limited by the host.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from lightning_perf.analysis.host.launches import bounded_by_host
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import NO_SAVING, SavingRange, is_worth_it, saving_whole_ns
from lightning_perf.run_files.probe import ProbedChange
from lightning_perf.trace.description import DataLoading, Processor
from lightning_perf.units import format_duration, format_share

LEAST_MEASURED, LEAST_KNOWN = 0.35, 0.7
"""Shares of the operators' time that a probe must have measured, and must know with similar calls. Otherwise the
general range is given."""

LEAST_GAIN, LEAST_COSTLY_GAIN = 0.01, 0.03
"""Shares of the step that a change must save in a probe at the lower end of its range: any change, and a costly one."""

COSTLY = ("batch", "compile")
"""Changes with a cost of their own. A larger batch needs another learning rate, and compiling takes time."""

OF_STEP = ("fused-optimizer", "cuda-graph")
"""Changes with a probed saving that is one of the step already. That of others is one of the kernels' time."""

GRAPH_FIX = 'model = torch.compile(model, mode="reduce-overhead")'
"""The fix that gives a model CUDA graphs."""

RECORD_STACKS = "To find the line, record with PerfCallback(with_stack=True)."
"""Advice for findings about Python code in a recording without stacks."""

MIN_COMPILED = 0.25
"""Share of compiled code in the time of operators from which the model counts as compiled. Parts that libraries compile
by themselves, e.g. attention, are below it."""


PLACES = {
    "fetch": "while a batch is fetched",
    "transfer": "while a batch is moved",
    "forward": "in forward",
    "backward": "in backward",
    "optimizer": "in the optimizer's part",
    "validation": "in validation",
    "checkpoint": "while a checkpoint is saved",
}
"""The phases that `PerfCallback` marks, as the end of a sentence."""


def step_ns(analysis: RankAnalysis) -> float:
    """Return the mean step time in nanoseconds, or 0 without steps."""
    return analysis.breakdown.wall.mean_ns or 0.0


def in_phases(*names: str) -> Callable[[RankAnalysis], float | None]:
    """Return a function for the mean time of some phases of a step, in nanoseconds: the part of a rule's saving."""
    return lambda analysis: sum(analysis.phases.phase(name).mean_ns for name in names) or None


def in_idle_time(analysis: RankAnalysis) -> float | None:
    """Return the idle time of the device in a usual step, as the part of a rule's saving; None if it is unknown."""
    return analysis.usual.idle_ns if analysis.usual is not None else None


def loader_of(analysis: RankAnalysis) -> DataLoading:
    """Return the facts about the loader, all unknown if `PerfCallback` did not record."""
    return analysis.metadata.loader or DataLoading()


def processor_of(analysis: RankAnalysis) -> Processor:
    """Return the facts about the processor, all unknown if `PerfCallback` did not record."""
    return analysis.metadata.processor or Processor()


def share_of_step(time_ns: float, analysis: RankAnalysis) -> str:
    """Return a time as a share of the step, as text. It is at most 100 %, though several threads may add up to more."""
    step = step_ns(analysis)
    return format_share(min(1.0, time_ns / step) if step > 0 else None)


def worth_it(saving_ns: float, analysis: RankAnalysis) -> bool:
    """Return whether a saving per step is large enough to report."""
    return is_worth_it(saving_ns, saving_whole_ns(analysis))


def idle_saving_ns(analysis: RankAnalysis, least_ns: float, most_ns: float) -> tuple[float, float]:
    """Return the least and most idle time saved in a usual step, from those in the recorded steps.

    At least as large a part of the idle time is saved, and at most all of it. A saving that is too small for a recorded
    step counts as 0, since hosts are slower in these.
    """
    usual = analysis.usual
    if usual is None:
        return least_ns, most_ns
    if not is_worth_it(most_ns, step_ns(analysis)):
        return NO_SAVING.ns
    part = min(1.0, usual.idle_ns / usual.recorded_idle_ns) if usual.recorded_idle_ns > 0 else 0.0
    return least_ns * part, min(most_ns, usual.idle_ns)


def usual_idle(analysis: RankAnalysis) -> str:
    """Return a sentence about the idle time of the device in a usual step; empty if recorded steps are like it."""
    usual = analysis.usual
    if usual is None:
        return ""
    return (
        f"Without the profiler a step takes {format_duration(usual.step_ns)}, and the device idles for "
        f"{format_duration(usual.idle_ns)} of it in all."
    )


def device_saving_ns(analysis: RankAnalysis, least_ns: float, most_ns: float) -> tuple[float, float]:
    """Return the least and most step time that faster kernels save, from the kernel time saved per step.

    It is smaller if kernels overlap, or if the device waits for the host anyway. The most leaves the host the time of
    its operators. The least assumes a host that is as slow as under the profiler, and counts half of the rest, because
    the host then begins to set the pace.
    """
    arithmetic, launches = analysis.arithmetic, analysis.launches
    if arithmetic is None or not arithmetic.compute_ns:
        return 0.0, 0.0
    compute = analysis.breakdown.category("device_compute").mean_ns or 0.0
    factor = min(1.0, compute / (arithmetic.compute_ns / max(arithmetic.steps, 1)))
    if launches is not None and launches.launch_bound is not None:
        factor *= 1 - launches.launch_bound.share
    return bounded_by_host(least_ns * factor, most_ns * factor, step_ns(analysis), analysis.host_pace)


def probed_change(analysis: RankAnalysis, name: str) -> ProbedChange | None:
    """Return the result of the probe for a change; ``None`` if it was not probed."""
    return analysis.probe.change(name) if analysis.probe is not None else None


def _is_measured(analysis: RankAnalysis, change: ProbedChange) -> bool:
    """Return whether enough of the operators was measured to judge a change."""
    probe = analysis.probe
    if probe is None or change.name == "fused-optimizer":
        return probe is not None
    known_ns = change.measured_ns + change.similar_ns
    return change.measured_ns >= LEAST_MEASURED * probe.operator_ns and known_ns >= LEAST_KNOWN * probe.operator_ns


def choose_saving(
    analysis: RankAnalysis, change: str, general_ns: tuple[float, float] | None, model: str
) -> SavingRange:
    """Choose between the probe of a change and the general range; a rule that does not apply has no general range.

    The result is the probed range, or the part that it has in common with the general one if that one is narrower.
    It is `NO_SAVING` if the gain is too small to report, or if the probe shows a loss or leaves open whether there is
    a gain.
    """
    general = NO_SAVING
    if general_ns is not None and worth_it(general_ns[1], analysis):
        general = SavingRange(general_ns, model, "general")
    probed = probed_change(analysis, change)
    if probed is None or not _is_measured(analysis, probed):
        return general
    low_ns, middle_ns, high_ns = probed.low_ns, probed.saving_ns, probed.high_ns
    if analysis.breakdown.has_device and change not in OF_STEP:
        # Kernels were probed, and a step gains only while it waits for the device.
        low_ns, high_ns = device_saving_ns(analysis, max(0.0, low_ns), max(0.0, high_ns))
        middle_ns = (low_ns + high_ns) / 2
    if not worth_it(middle_ns, analysis):
        return NO_SAVING
    if high_ns * general.ns[0] > low_ns * general.ns[1]:
        # The probe was noisy. A gain is likely, unless the probe shows less than the general range.
        both_ns = max(general.ns[0], low_ns), min(general.ns[1], high_ns)
        if both_ns == general.ns:
            return general
        if both_ns[0] < both_ns[1]:
            return SavingRange(both_ns, f"{general.model} A noisy probe on this device limits the range.", "probed")
    if probed.low_ns < (LEAST_COSTLY_GAIN if change in COSTLY else LEAST_GAIN) * step_ns(analysis):
        return NO_SAVING
    of_step = max(step_ns(analysis), 1.0)
    similar = f", and stands for {format_share(probed.similar_ns / of_step)} with the same operators"
    model = (
        f"The recorded operators were run again with {probed.setting}, on this device. "
        f"{format_share(probed.measured_ns / of_step)} of the step was measured{similar if probed.similar_ns else ''}. "
        "The rest of the step stays."
    )
    if analysis.breakdown.has_device:
        model += " The range has error bands from CPU networks: they have not been measured on a GPU."
    if probed.faults_ns:
        model += (
            f" The training has page faults of {format_duration(probed.faults_ns)} per step that the probe lacks. This "
            "change may remove or add some, so half of that time widens the range."
        )
    return SavingRange((low_ns, high_ns), model, "probed")


def choose_graph_saving(analysis: RankAnalysis, general_ns: tuple[float, float] | None, model: str) -> SavingRange:
    """Choose between a replay from a CUDA graph by a probe and the general range, as `choose_saving` does."""
    saving = choose_saving(analysis, "cuda-graph", general_ns, model)
    probed = probed_change(analysis, "cuda-graph")
    if probed is None or saving.ns != (probed.low_ns, probed.high_ns):
        return saving
    kept_ns = max(0.0, step_ns(analysis) - probed.high_ns)
    return replace(
        saving,
        model="The calls of the model were replayed from a CUDA graph, on this device. A graph needs no Python and one "
        f"launch. A step then keeps at least {format_duration(kept_ns)}: the device's work, or the host's time outside "
        "of the forward and the backward pass.",
    )


def whole(analysis: RankAnalysis) -> str:
    """Return the name of the whole that shares are parts of: the step, or a recording without marked steps."""
    if analysis.usual is not None:
        return "the recorded step"
    return "the step" if analysis.breakdown.marked else "the recording"


def each(analysis: RankAnalysis) -> str:
    """Return the text behind a figure: per step, or in a recording without marked steps."""
    return "per step" if analysis.breakdown.marked else "in the recording"


def compile_obstacle(analysis: RankAnalysis) -> str:
    """Return as a sentence why ``model = torch.compile(model)`` is no fix; empty if nothing is known against it.

    CUDA graphs of ``torch.compile`` are no fix for a second derivative either.
    """
    if analysis.workload.second_derivative:
        return (
            "The backward pass is differentiated itself, as for forces or PINNs. torch.compile does not support that."
        )
    return "The model is compiled already." if analysis.workload.compiled_share >= MIN_COMPILED else ""


def batch_can_grow(analysis: RankAnalysis) -> bool:
    """Return whether the data set has, or may have, samples for a larger batch."""
    return (loader_of(analysis).batches_per_epoch or 2) > 1


def batch_doubt(analysis: RankAnalysis) -> str:
    """Return a sentence if the recording does not show whether the batch can grow; empty if it does."""
    if loader_of(analysis).batches_per_epoch is not None:
        return ""
    return "The recording does not show whether the data set has more than one batch."
