"""The rule for gradient checkpointing on a device with room for the activations."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import device_saving_ns, each, share_of_step, step_ns, worth_it
from lightning_perf.units import format_bytes, format_duration, format_share

__all__ = ["recompute"]

MOST_USED = 0.5
"""Share of the device's memory in use at the peak up to which some blocks can keep their activations."""


def recompute(analysis: RankAnalysis) -> Finding | None:
    """Find checkpointed regions that repeat their forward although memory is free.

    Model: at most all of the repeated work goes away. How many activations fit is not known, so the least is a quarter.
    """
    repeated = analysis.recompute
    devices = analysis.memory.devices if analysis.memory is not None else ()
    used = [
        (device.peak_reserved_bytes or device.peak_allocated_bytes, device.total_bytes)
        for device in devices
        if device.device is not None and device.total_bytes and device.absolute
    ]
    if repeated is None or not repeated.on_device or not used:
        return None
    peak, total = max(used, key=lambda pair: pair[0] / pair[1])
    time_ns = repeated.time_ns / repeated.steps
    saving_ns = device_saving_ns(analysis, time_ns / 4, time_ns)
    if peak / total > MOST_USED or not worth_it(saving_ns[1], analysis):
        return None
    return finding(
        "recompute",
        f"Gradient checkpointing with free memory: repeated work takes {share_of_step(time_ns, analysis)} of the step",
        (
            (
                f"The backward runs forward operators again for {format_duration(time_ns)} {each(analysis)}. At its "
                f"peak the run uses {format_bytes(peak)} of {format_bytes(total)}, {format_share(peak / total)}."
            ),
        ),
        "Checkpoint fewer blocks, e.g. every second one, as long as the peak stays below about 90 % of the memory.",
        saving_ns=saving_ns,
        step_ns=step_ns(analysis),
        model="A quarter to all of the repeated work goes away, by the number of blocks that can keep activations.",
        rank=analysis.rank,
    )
