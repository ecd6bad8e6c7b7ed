"""Hardware counters in the recorded steps: power, clocks, temperature, and how busy parts of the device are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightning_perf.analysis.core.averaged_steps import averaged_steps, in_averaged_steps
from lightning_perf.trace.trace import Trace

POWER = "Power (W)"
PER_KERNEL = "Cycles (Current Kernel)"
"""A value per kernel, not a sample in time. Its mean would be meaningless."""


@dataclass(frozen=True)
class CounterRow:
    """The samples of one counter of one device.

    Attributes:
        device: Device ordinal.
        name: The counter, with its unit as recorded.
        samples: Samples in the averaged steps.
        mean: Mean of the samples.
        minimum: The smallest.
        maximum: The largest.
    """

    device: int
    name: str
    samples: int
    mean: float
    minimum: float
    maximum: float


@dataclass(frozen=True)
class HardwareCounters:
    """The counters of the averaged steps.

    Attributes:
        rows: By device, then in the order of the recording.
        step_energy_j: Energy per step in joules: mean power over all devices, times the mean step time. ``None``
            without samples of power.
    """

    rows: tuple[CounterRow, ...]
    step_energy_j: float | None


def hardware_counters(trace: Trace) -> HardwareCounters | None:
    """Summarize the samples of hardware counters.

    Returns:
        The counters, or None for a recording without samples in its averaged steps.
    """
    counters = trace.counters
    inside = in_averaged_steps(trace, counters.time_ns)
    keys = np.stack([counters.device[inside].astype(np.int64), counters.name[inside].astype(np.int64)], axis=1)
    rows = []
    for device, code in np.unique(keys, axis=0).tolist():
        if trace.names[code] == PER_KERNEL:
            continue
        values = counters.value[inside][(keys == (device, code)).all(axis=1)]
        low, high = float(values.min()), float(values.max())
        rows.append(CounterRow(device, trace.names[code], len(values), float(values.mean()), low, high))
    if not rows:
        return None
    steps, averaged = trace.steps, averaged_steps(trace)
    step_s = float((steps.end_ns - steps.start_ns)[averaged].mean()) / 1e9
    power = [row.mean for row in rows if row.name == POWER]
    return HardwareCounters(tuple(rows), sum(power) * step_s if power else None)
