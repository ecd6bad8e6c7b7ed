"""Compute efficiency: how busy the device was, how near to its peak, and its hardware counters."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.intervals import averaged_steps, averaged_time, in_averaged_steps, merge
from lightning_perf.analysis.kernels.arithmetic import device_properties
from lightning_perf.analysis.kernels.flops import FlopCount, count_flops
from lightning_perf.machine.hardware import DevicePeak, find_device
from lightning_perf.trace.columns import BoolArray
from lightning_perf.trace.trace import Trace


class DeviceEfficiency(Struct, frozen=True):
    """The use of one device in the averaged steps.

    Attributes:
        ordinal: The device's number.
        name: Its name, if recorded.
        busy: Part of the wall time in which at least one kernel runs, 0 to 1.
        sm_efficiency: Part of the multiprocessors that kernels can fill, by time: the sum over kernels of
            ``min(blocks per SM, 1) × duration``, divided by the wall time, at most 1. Blocks per SM are those recorded,
            or the grid divided by the device's multiprocessors. This is an upper estimate: a multiprocessor with one
            block counts as full. ``None`` if neither is recorded.
        occupancy: Estimated achieved occupancy of the kernels that have it, weighted by duration; ``None`` without.
    """

    ordinal: int
    name: str | None
    busy: float
    sm_efficiency: float | None
    occupancy: float | None


class ArithmeticRate(Struct, frozen=True):
    """The rate of the products in one arithmetic while they run, over the averaged steps.

    Attributes:
        name: The arithmetic.
        flops_per_s: FLOPs by the time of the product kernels with known FLOPs.
        peak_share: The rate as a part of the peak rate.
    """

    name: str
    flops_per_s: float
    peak_share: float | None


class Efficiency(Struct, frozen=True):
    """How much of the device the recording used.

    Attributes:
        devices: The devices that ran kernels.
        flops: FLOPs of matrix products (convolution and attention too), forward and backward, over the averaged steps;
            at least, and ``None`` if the count of no operator is known.
        flops_coverage: Part of the product kernels' time with known FLOPs, 0 to 1; ``None`` without such kernels.
        flops_per_s: FLOPs by wall time; a lower bound if the coverage is below 1.
        mfu: Model FLOPs utilization: the time that the FLOPs would take at the peak rate of their arithmetic, divided
            by the wall time and the number of devices used. FLOPs of forward work that the backward repeats do not
            count. It is at least this high if the coverage is below 1.
        mfu_missing: The reason for a missing `mfu`.
        mfu_high: The same with the most FLOPs that the inputs allow. It is higher than `mfu` if the recording does not
            show whether attention is causal, or how long packed sequences are.
        hfu: Hardware FLOPs utilization: the same as `mfu`, with the repeated forward work.
        rates: FLOP/s by arithmetic with 1 % of the time of products or more, in the product kernels with known FLOPs.
    """

    devices: tuple[DeviceEfficiency, ...]
    flops: int | None
    flops_coverage: float | None
    flops_per_s: float | None
    mfu: float | None
    mfu_missing: str | None
    mfu_high: float | None = None
    hfu: float | None = None
    rates: tuple[ArithmeticRate, ...] = ()


def efficiency(trace: Trace, repeated: BoolArray | None = None) -> Efficiency:
    """Measure how much of the device the recording used.

    Args:
        repeated: The operator rows of forward work that the backward repeats.
    """
    averaged = averaged_steps(trace)
    wall = averaged_time(trace).length_ns
    devices = _devices(trace, averaged, wall)
    count = count_flops(trace)
    by_arithmetic = count.by_arithmetic(count.least)
    flops = sum(by_arithmetic.values()) or None
    peak = device_peak(trace, devices[0].ordinal) if devices else None
    missing = _mfu_missing(trace, devices, by_arithmetic, count.coverage, peak)
    mfu = mfu_high = hfu = None
    if missing is None and peak is not None:
        available_ns = wall * len(devices)
        once = 1 if repeated is None else ~repeated
        mfu, mfu_high = (
            _ideal_ns(count.by_arithmetic(each * once), peak) / available_ns for each in (count.least, count.most)
        )
        hfu = _ideal_ns(by_arithmetic, peak) / available_ns
    return Efficiency(
        devices=devices,
        flops=flops,
        flops_coverage=count.coverage,
        flops_per_s=flops / wall * 1e9 if flops and wall and not trace.problems.lacks_work else None,
        mfu=mfu,
        mfu_missing=missing,
        mfu_high=mfu_high,
        hfu=hfu,
        rates=_rates(count, by_arithmetic, peak) if not trace.problems.truncated else (),
    )


def _devices(trace: Trace, averaged: BoolArray, wall: int) -> tuple[DeviceEfficiency, ...]:
    table, steps = trace.device, trace.steps
    if trace.problems.lacks_work or not wall:
        return ()
    start, end = steps.start_ns[averaged], steps.end_ns[averaged]
    found = []
    kernel = table.is_compute | table.is_collective
    for ordinal in np.unique(table.device[kernel]).tolist():
        rows = np.flatnonzero(kernel & (table.device == ordinal))
        busy = int(merge(table.start_ns[rows], table.end_ns[rows]).covered(start, end).sum())
        inside = rows[in_averaged_steps(trace, table.start_ns[rows])]
        device = device_properties(trace, ordinal)
        time = table.duration_ns[inside].astype(np.float64)
        blocks = table.blocks_per_sm[inside].astype(np.float64)
        if device.sm_count:
            blocks = np.where(np.isnan(blocks), table.grid_blocks[inside] / device.sm_count, blocks)
        told = blocks > 0
        filled = (np.minimum(blocks, 1) * time)[told].sum()
        occupancy = table.known_occupancy[inside].astype(np.float64)
        estimated = ~np.isnan(occupancy) & (time > 0)
        found.append(
            DeviceEfficiency(
                ordinal=int(ordinal),
                name=device.name,
                busy=busy / wall,
                sm_efficiency=min(1.0, float(filled) / wall) if told.any() else None,
                occupancy=float(np.average(occupancy[estimated], weights=time[estimated])) if estimated.any() else None,
            )
        )
    return tuple(found)


def device_peak(trace: Trace, ordinal: int) -> DevicePeak | None:
    """Return the peak rates of a device; None if the table has no such device."""
    device = device_properties(trace, ordinal)
    return find_device(device.name, device.total_memory_bytes)


LEAST_RATED = 0.01
"""Share of the products' time from which an arithmetic has a rate. That of a few tiny products says nothing."""


def _rates(count: FlopCount, flops: dict[str, int], peak: DevicePeak | None) -> tuple[ArithmeticRate, ...]:
    rates, times_ns = [], count.kernel_ns_by_arithmetic()
    for name, time_ns in times_ns.items():
        if time_ns < LEAST_RATED * sum(times_ns.values()):
            continue
        reached = flops[name] / time_ns * 1e9
        most = peak.flops_per_s.get(name) if peak is not None else None
        rates.append(ArithmeticRate(name, reached, reached / most if most else None))
    return tuple(rates)


def _mfu_missing(
    trace: Trace,
    devices: tuple[DeviceEfficiency, ...],
    flops: dict[str, int],
    coverage: float | None,
    peak: DevicePeak | None,
) -> str | None:
    """Return why there is no MFU; None if there is one."""
    if trace.problems.lacks_work:
        return "work of the device is missing"
    if not devices:
        return "the recording has no kernels"
    if not flops:
        return "no operator's FLOPs are known: record with record_shapes=True"
    if not coverage:
        return "the FLOPs of none of the matrix products on the device are known"
    if peak is None:
        return f"no peak rate is known for {devices[0].name or 'an unnamed device'}"
    unknown = [name for name in flops if name != "unknown" and name not in peak.flops_per_s]
    return f"no peak rate of {peak.name} is known for {unknown[0]}" if unknown else None


def _ideal_ns(flops: dict[str, int], peak: DevicePeak) -> float:
    """Return the time that FLOPs take at the peak rates."""
    return sum(amount / peak.flops_per_s[name] for name, amount in flops.items() if name != "unknown") * 1e9


POWER = "Power (W)"
PER_KERNEL = "Cycles (Current Kernel)"
"""A value per kernel, not a sample in time. Its mean would be meaningless."""


class CounterRow(Struct, frozen=True):
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


class HardwareCounters(Struct, frozen=True):
    """The counters of the averaged steps.

    Attributes:
        rows: By device, then in the order of the recording.
        step_energy_j: Energy per step in joules: mean power over all devices, times the mean step time. ``None``
            without samples of power.
    """

    rows: tuple[CounterRow, ...]
    step_energy_j: float | None


def hardware_counters(trace: Trace) -> HardwareCounters | None:
    """Summarize the samples of hardware counters in the averaged steps; None without one."""
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
