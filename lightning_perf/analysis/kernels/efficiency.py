"""Compute efficiency: how busy the device was, how near to its peak, and its hardware counters."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from lightning_perf.analysis.core.averaged_steps import averaged_steps, averaged_wall_ns, in_averaged_steps
from lightning_perf.analysis.core.intervals import merge
from lightning_perf.analysis.kernels.arithmetic import ARITHMETICS, arithmetic_of
from lightning_perf.analysis.kernels.flops import (
    BACKWARD_CONVOLUTIONS,
    CONVOLUTIONS,
    FORMULAS,
    MOST_FLOPS,
    convolution,
    operator_flops,
)
from lightning_perf.analysis.kernels.kernel_names import is_product
from lightning_perf.analysis.kernels.tensor_core_eligibility import device_properties
from lightning_perf.machine.hardware import find_device
from lightning_perf.trace.columns import NO_ROW, BoolArray, Int64Array
from lightning_perf.trace.indexing import distinct, innermost_marked
from lightning_perf.trace.trace import Trace
from lightning_perf.units import format_share

LEAST_COVERAGE = 0.9
"""Below this share of the product kernels' time with known FLOPs, an MFU or FLOPs per token would mislead."""


@dataclass(frozen=True)
class DeviceEfficiency:
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


@dataclass(frozen=True)
class Efficiency:
    """How much of the device the recording used.

    Attributes:
        devices: The devices that ran kernels.
        flops: FLOPs of matrix products (convolution and attention too), forward and backward, over the averaged steps;
            ``None`` if the count of no operator is known.
        flops_by_arithmetic: The same FLOPs by the arithmetic of their kernels (``unknown`` on the host).
        flops_coverage: Part of the product kernels' time with known FLOPs, 0 to 1; ``None`` without such kernels.
        flops_per_s: FLOPs by wall time; a lower bound if the coverage is below 1.
        mfu: Model FLOPs utilization: the time that the FLOPs would take at the peak rate of their arithmetic, divided
            by the wall time and the number of devices used.
        mfu_missing: The reason for a missing `mfu`.
        steps: The number of averaged steps.
    """

    devices: tuple[DeviceEfficiency, ...]
    flops: int | None
    flops_by_arithmetic: dict[str, int]
    flops_coverage: float | None
    flops_per_s: float | None
    mfu: float | None
    mfu_missing: str | None
    steps: int


def efficiency(trace: Trace) -> Efficiency:
    """Measure how much of the device the recording used."""
    averaged = averaged_steps(trace)
    wall = averaged_wall_ns(trace)
    devices = _devices(trace, averaged, wall)
    by_arithmetic, coverage = count_flops(trace)
    flops = sum(by_arithmetic.values()) or None
    mfu, missing = _utilisation(trace, devices, by_arithmetic, coverage, wall)
    return Efficiency(
        devices=devices,
        flops=flops,
        flops_by_arithmetic=by_arithmetic,
        flops_coverage=coverage,
        flops_per_s=flops / wall * 1e9 if flops and wall and not trace.problems.lacks_work else None,
        mfu=mfu,
        mfu_missing=missing,
        steps=int(averaged.sum()),
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


def count_flops(trace: Trace) -> tuple[dict[str, int], float | None]:
    """Count the FLOPs of the matrix products in the averaged steps, by arithmetic (``unknown`` on the host).

    The second value is the part of the product kernels' time that they account for; None without such kernels.
    """
    operators = trace.operators
    countable = trace.names_where((FORMULAS.keys() | CONVOLUTIONS | BACKWARD_CONVOLUTIONS.keys()).__contains__)
    rows = np.flatnonzero(countable[operators.name] & in_averaged_steps(trace, operators.start_ns))
    products = trace.device.is_compute & trace.rows_where(trace.device.name, is_product)
    kernels = np.flatnonzero(products & in_averaged_steps(trace, trace.device.start_ns))
    if not len(rows):
        return {}, 0.0 if len(kernels) else None
    flops = np.zeros(len(operators), dtype=np.int64)
    flops[rows] = _count(trace, rows)
    counted, parents = np.flatnonzero(flops), trace.links.operator_parent
    # `aten::linear` counts, and the `aten::addmm` inside it does not count again.
    flops[counted[innermost_marked(parents, parents[counted], flops > 0) != NO_ROW]] = 0
    owner = innermost_marked(parents, trace.links.device_operator[kernels], flops > 0)
    duration = trace.device.duration_ns[kernels]
    owned = owner != NO_ROW
    # Each operator's FLOPs go to the arithmetic of its longest product kernel.
    order = np.lexsort((duration[owned], owner[owned]))
    owners, kernel = owner[owned][order], kernels[owned][order]
    last = np.append(owners[1:] != owners[:-1], True)[: len(owners)]
    count = np.bincount(owners, minlength=len(operators)) if len(owners) else np.zeros(len(operators), dtype=np.int64)
    backward = trace.names_where(BACKWARD_CONVOLUTIONS.__contains__)[operators.name]
    # A backward convolution is counted for one gradient. It has two unless a single product ran (the first layer).
    flops[backward & (count != 1)] *= 2
    codes = arithmetic_of(trace, kernel[last])
    by_arithmetic: dict[str, int] = defaultdict(int)
    for code in np.unique(codes).tolist():
        by_arithmetic[ARITHMETICS[code]] += _total(flops[owners[last]][codes == code])
    on_host = _total(flops) - sum(by_arithmetic.values())
    if on_host:
        by_arithmetic["unknown"] += on_host
    total = int(duration.sum())
    return dict(by_arithmetic), int(duration[owned].sum()) / total if total else None


def _count(trace: Trace, rows: Int64Array) -> Int64Array:
    """Return the FLOPs of each operator row, 0 where unknown, without regard to operators inside operators."""
    operators = trace.operators
    shapes = len(trace.shape_lists)
    key, index = distinct(operators.name[rows] * np.int64(shapes) + operators.input_shapes[rows])
    named = [(trace.names[k // shapes], trace.shape_lists[k % shapes]) for k in key.tolist()]
    convolutions = [convolution(*call) for call in named]
    outputs: dict[object, set[tuple[int, ...]]] = defaultdict(set)
    for found in convolutions:
        if found and found.output:
            outputs[found.data, found.weight].add(found.output)
    known = np.zeros(len(named), dtype=np.int64)
    for i, (call, found) in enumerate(zip(named, convolutions, strict=True)):
        known[i] = operator_flops(*call) or 0
        candidates = {found.output} if found and found.output else outputs[found.data, found.weight] if found else set()
        if found and len(candidates) == 1:
            known[i] = found.flops(next(iter(candidates)))
    recorded = operators.flops[rows]
    recorded = np.where((recorded > 0) & (recorded <= MOST_FLOPS), recorded, 0)
    return np.where(known[index] > 0, known[index], recorded)


def _total(flops: Int64Array) -> int:
    """Return their sum, which may need more than 64 bits."""
    return sum(flops[flops > 0].tolist())


def _utilisation(
    trace: Trace, devices: tuple[DeviceEfficiency, ...], flops: dict[str, int], coverage: float | None, wall: int
) -> tuple[float | None, str | None]:
    if trace.problems.lacks_work:
        return None, "work of the device is missing"
    if not devices:
        return None, "the recording has no kernels"
    if not flops:
        return None, "no operator's FLOPs are known: record with record_shapes=True"
    if coverage is None or coverage < LEAST_COVERAGE:
        return None, f"the FLOPs of only {format_share(coverage or 0)} of the matrix products' time are known"
    device = devices[0]
    peak = find_device(device.name, device_properties(trace, device.ordinal).total_memory_bytes)
    if peak is None:
        return None, f"no peak rate is known for {device.name or 'an unnamed device'}"
    ideal_s = 0.0
    for name, amount in flops.items():
        if name == "unknown":
            continue
        if name not in peak.flops_per_s:
            return None, f"no peak rate of {peak.name} is known for {name}"
        ideal_s += amount / peak.flops_per_s[name]
    return ideal_s / (wall / 1e9) / len(devices), None


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
