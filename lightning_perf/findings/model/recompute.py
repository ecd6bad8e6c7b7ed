"""The rule for gradient checkpointing with room for the activations."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.cpu.cpu_savings import host_saving_ns
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import device_saving_ns, each, share_of_step, step_ns, worth_it
from lightning_perf.units import format_bytes, format_duration, format_share

MOST_USED = 0.5
"""Share of the device's memory in use at the peak up to which some blocks can keep their activations."""


ON_DEVICE = "Checkpoint fewer blocks, e.g. every second one, as long as the peak stays below about 90 % of the memory."

ON_CPU = (
    "Checkpoint fewer blocks, or none, as long as memory suffices. With transformers: "
    "model.gradient_checkpointing_disable(), or gradient_checkpointing=False in the TrainingArguments."
)


def recompute(analysis: RankAnalysis) -> Finding | None:
    """Find checkpointed regions that repeat their forward although memory is free.

    Model: at most all of the repeated work goes away. How many activations fit is not known, so the least is a quarter.
    """
    repeated = analysis.recompute
    if repeated is None:
        return None
    time_ns = repeated.time_ns / repeated.steps
    if repeated.on_device:
        saving_ns = device_saving_ns(analysis, time_ns / 4, time_ns)
        action, memory = ON_DEVICE, _device_memory(analysis)
    else:
        saving_ns = host_saving_ns(analysis, time_ns / 4, time_ns)
        action, memory = ON_CPU, _host_memory(analysis)
    if memory is None or not worth_it(saving_ns[1], analysis):
        return None
    text, is_known = memory
    return finding(
        "recompute",
        f"Gradient checkpointing with free memory: repeated work takes {share_of_step(time_ns, analysis)} of the step"
        if is_known
        else f"Gradient checkpointing: repeated work takes {share_of_step(time_ns, analysis)} of the step",
        (f"The backward runs forward operators again for {format_duration(time_ns)} {each(analysis)}. {text}",),
        action,
        saving_ns=saving_ns if is_known else (0.0, saving_ns[1]),
        step_ns=step_ns(analysis),
        model="A quarter to all of the repeated work goes away, by the number of blocks that can keep activations.",
        rank=analysis.rank,
    )


def _device_memory(analysis: RankAnalysis) -> tuple[str, bool] | None:
    """Return a sentence about the device's memory; None if it is not free, or not recorded."""
    devices = analysis.memory.devices if analysis.memory is not None else ()
    used = [
        (device.peak_reserved_bytes or device.peak_allocated_bytes, device.total_bytes)
        for device in devices
        if device.device is not None and device.total_bytes and device.absolute
    ]
    peak, total = max(used, key=lambda pair: pair[0] / pair[1], default=(1, 1))
    if peak / total > MOST_USED:
        return None
    text = f"At its peak the run uses {format_bytes(peak)} of {format_bytes(total)}, {format_share(peak / total)}."
    return text, True


def _host_memory(analysis: RankAnalysis) -> tuple[str, bool] | None:
    """Return a sentence about the memory of the host, and whether it is known to be free; None if it is not free."""
    processor = analysis.metadata.processor
    if processor is None or processor.free_bytes is None or processor.used_bytes is None:
        return "The recording does not show how much memory is free.", False
    free, used = processor.free_bytes, processor.used_bytes
    if used / (used + free) > MOST_USED:
        return None
    return f"The training uses {format_bytes(used)}, and {format_bytes(free)} are free.", True
