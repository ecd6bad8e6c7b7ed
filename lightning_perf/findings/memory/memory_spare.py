"""The rule for launch-bound trainings on a device with free memory."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.exclusions import UNKNOWN_BATCHES, batch_can_grow, batches_per_epoch
from lightning_perf.findings.finding import Finding
from lightning_perf.findings.host.cold_start import is_cold
from lightning_perf.units import format_bytes, format_share

__all__ = ["memory_spare"]

LIMIT = 0.4
"""Share of the device's memory in use at the peak below which twice the batch is sure to fit."""


def memory_spare(analysis: RankAnalysis) -> Finding | None:
    """Find launch-bound steps on a device with room for twice the batch.

    A larger batch gives each launch more work. A device that computes all the time would gain little from it, so free
    memory alone is no finding. No saving is estimated, since a step of a larger batch is another step.
    """
    launches = analysis.launches
    if launches is None or launches.launch_bound is None or not launches.launch_bound.bound or is_cold(analysis):
        return None
    if not batch_can_grow(analysis):
        return None
    devices = analysis.memory.devices if analysis.memory is not None else ()
    used = [
        (device.peak_reserved_bytes or device.peak_allocated_bytes, device.total_bytes)
        for device in devices
        if device.device is not None and device.total_bytes and device.absolute
    ]
    if not used or max(peak / total for peak, total in used) >= LIMIT:
        return None
    peak, total = max(used, key=lambda pair: pair[0] / pair[1])
    return Finding(
        kind="memory-spare",
        severity="low",
        title=f"Spare memory: {format_share(1 - peak / total)} of device memory is never used, so the batch can grow",
        evidence=(
            f"At its peak the run uses {format_bytes(peak)} of {format_bytes(total)}, and it is launch-bound.",
            *((UNKNOWN_BATCHES,) if batches_per_epoch(analysis) is None else ()),
        ),
        action="Double batch_size in DataLoader(…) as long as samples/s rise, and scale the learning rate with it.",
        saving_low_ms=None,
        saving_high_ms=None,
        model="",
        rank=analysis.rank,
    )
