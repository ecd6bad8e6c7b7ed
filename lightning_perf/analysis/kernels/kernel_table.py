"""The device's work by kernel, with its use of the device and its launching operators, and by region of CUDA graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from lightning_perf.analysis.intervals import averaged_steps, in_averaged_steps, largest_codes, sum_by
from lightning_perf.analysis.kernels.arithmetic import ARITHMETICS, arithmetic_of, most_reasons
from lightning_perf.analysis.kernels.efficiency import device_peak
from lightning_perf.analysis.kernels.flops import count_flops
from lightning_perf.analysis.kernels.kernel_names import kernel_arithmetic
from lightning_perf.analysis.steps.breakdown import DEVICE_CATEGORIES
from lightning_perf.trace.columns import DeviceKind, Float32Array, Int64Array, unpack_triple
from lightning_perf.trace.indexing import at_rows, distinct, distinct_rows
from lightning_perf.trace.trace import Trace

_CATEGORY_OF_KIND = {kind: name for name, kind in DEVICE_CATEGORIES.items()}

_LAUNCHERS_LISTED = 3


class KernelLauncher(Struct, frozen=True):
    """An operator that launched a kernel.

    Attributes:
        operator: Its name; None for launches outside of any operator, or not recorded.
        device_ns: Time of the kernels of this name that it launched.
    """

    operator: str | None
    device_ns: int


class KernelRow(Struct, frozen=True):
    """All runs of one kernel, or of one kind of copy or memset.

    Attributes:
        name: The kernel.
        category: Its category in the breakdown (``device_compute``, ``communication``, ``memcpy_h2d``, …).
        calls: Runs.
        total_ns: Time of all runs.
        mean_ns: Mean time of a run.
        min_ns: Shortest run.
        max_ns: Longest run.
        share: Part of the time of all device work, 0 to 1.
        blocks_per_sm: Thread blocks per streaming multiprocessor, mean weighted by time; None if not recorded. Below
            1, a part of the device is idle.
        occupancy: Estimated achieved occupancy, 0 to 1, mean weighted by time; None if not recorded.
        bytes: Bytes moved by copies or memsets; None for kernels, or if not recorded.
        arithmetic: The arithmetic in which most of its time was spent; None for work other than compute kernels.
        launchers: The operators that launched most of its time, the longest time first.
        grid: Dimensions of its grid in the launch configuration with the most time; None for copies and memsets, or if
            not recorded.
        block: Dimensions of a block in that configuration.
        registers: Registers per thread in that configuration; None if not recorded.
        shared_bytes: Shared memory per block in that configuration; None if not recorded.
        configurations: Number of different launch configurations; 0 if none is recorded.
        tensor_cores: Whether it runs on Tensor Cores; None for other work, or if its name does not show it.
        tensor_core_reason: For a matrix product without Tensor Cores, why most of its time runs without them; see
            `lightning_perf.analysis.kernels.arithmetic.REASONS`.
        peak_share: FLOP/s of a matrix product, over its runs with known FLOPs, as a part of the device's dense peak
            rate in that arithmetic; None if either is unknown. Kernels that one operator launched together share its
            FLOPs by time.
    """

    name: str
    category: str
    calls: int
    total_ns: int
    mean_ns: int
    min_ns: int
    max_ns: int
    share: float
    blocks_per_sm: float | None
    occupancy: float | None
    bytes: int | None
    arithmetic: str | None
    launchers: tuple[KernelLauncher, ...]
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    registers: int | None = None
    shared_bytes: int | None = None
    configurations: int = 0
    tensor_cores: bool | None = None
    tensor_core_reason: str | None = None
    peak_share: float | None = None


class KernelTable(Struct, frozen=True):
    """The device work of the averaged steps.

    Attributes:
        rows: The rows, the longest time first.
        steps: Steps that the figures are over; divide by it for a figure per step.
        device_ns: Time of all device work, the sum of the rows' totals. Work that overlaps counts each.
    """

    rows: tuple[KernelRow, ...]
    steps: int
    device_ns: int


def kernels(trace: Trace) -> KernelTable | None:
    """Sum up the device work that began in an averaged step, by kernel; None without a device."""
    device = trace.device
    if not len(device):
        return None
    rows = np.flatnonzero(in_averaged_steps(trace, device.start_ns))
    # One name is one kind of work, with rare exceptions. Together they make the row.
    kinds = len(DeviceKind)
    keys, group = distinct(device.name[rows].astype(np.int64) * kinds + device.kind[rows])
    size = len(keys)
    duration = device.duration_ns[rows]
    calls = np.bincount(group, minlength=size)
    total = sum_by(group, duration, size)
    shortest = np.full(size, np.iinfo(np.int64).max)
    longest = np.zeros(size, dtype=np.int64)
    np.minimum.at(shortest, group, duration)
    np.maximum.at(longest, group, duration)
    moved = sum_by(group, device.bytes[rows], size)
    blocks = _weighted(group, device.blocks_per_sm[rows], duration, size)
    occupancy = _weighted(group, device.known_occupancy[rows], duration, size)
    launchers = _launchers(trace, rows, group, duration, size)
    arithmetic = _arithmetic(trace, rows, group, duration)
    configurations = _configurations(trace, rows, group, duration)
    reasons = most_reasons(trace, rows, group)
    peak_shares = _peak_shares(trace, rows, group, arithmetic)
    compute = int(DeviceKind.COMPUTE)
    device_ns = int(total.sum())
    table = [
        KernelRow(
            name=trace.names[key // kinds],
            category=_CATEGORY_OF_KIND[DeviceKind(key % kinds)],
            calls=int(calls[g]),
            total_ns=int(total[g]),
            mean_ns=round(int(total[g]) / int(calls[g])),
            min_ns=int(shortest[g]),
            max_ns=int(longest[g]),
            share=int(total[g]) / device_ns if device_ns else 0.0,
            blocks_per_sm=blocks[g],
            occupancy=occupancy[g],
            bytes=int(moved[g]) if moved[g] > 0 and key % kinds >= DeviceKind.H2D else None,
            arithmetic=arithmetic.get(g),
            launchers=launchers[g],
            **configurations.get(g, {}),
            tensor_cores=kernel_arithmetic(trace.names[key // kinds]).tensor_cores if key % kinds == compute else None,
            tensor_core_reason=reasons.get(g),
            peak_share=peak_shares.get(g),
        )
        for g, key in enumerate(keys.tolist())
    ]
    table.sort(key=lambda row: (-row.total_ns, row.name))
    return KernelTable(rows=tuple(table), steps=int(averaged_steps(trace).sum()), device_ns=device_ns)


def _weighted(group: NDArray[np.intp], value: Float32Array, weight: Int64Array, size: int) -> list[float | None]:
    """Return the mean of the finite values of each group, weighted."""
    known = np.isfinite(value) & (weight > 0)
    weights = np.bincount(group[known], weights=weight[known], minlength=size)
    sums = np.bincount(group[known], weights=value[known] * weight[known].astype(np.float64), minlength=size)
    return [float(s / w) if w else None for s, w in zip(sums, weights, strict=True)]


def _launchers(
    trace: Trace, rows: Int64Array, group: NDArray[np.intp], duration: Int64Array, size: int
) -> list[tuple[KernelLauncher, ...]]:
    """Return the operators that launched most of each group's time."""
    operator = trace.links.device_operator[rows]
    names = len(trace.names) + 1
    name = at_rows(trace.operators.name, operator, names - 1)
    pairs, index = distinct(group * np.int64(names) + name)
    spent = sum_by(index, duration, len(pairs)).tolist()
    found: list[list[KernelLauncher]] = [[] for _ in range(size)]
    for pair, device_ns in zip(pairs.tolist(), spent, strict=True):
        g, code = divmod(pair, names)
        found[g].append(KernelLauncher(trace.names[code] if code < names - 1 else None, device_ns))
    return [
        tuple(sorted(each, key=lambda by: (-by.device_ns, by.operator or ""))[:_LAUNCHERS_LISTED]) for each in found
    ]


def _configurations(
    trace: Trace, rows: Int64Array, group: NDArray[np.intp], duration: Int64Array
) -> dict[int, dict[str, Any]]:
    """Return the launch configuration with the most time of each group of kernels that have one."""
    device = trace.device
    kernel = np.flatnonzero(device.grid[rows] > 0)
    rows, group, duration = rows[kernel], group[kernel], duration[kernel]
    columns = (device.grid[rows], device.block[rows], device.registers[rows], device.shared_bytes[rows])
    first, index = distinct_rows(group, *columns)
    number = np.bincount(group[first], minlength=1)
    found = {}
    for g, code in largest_codes(group, index, duration).items():
        grid, block, registers, shared = (int(column[first[code]]) for column in columns)
        found[g] = {
            "grid": unpack_triple(grid),
            "block": unpack_triple(block),
            "registers": registers if registers >= 0 else None,
            "shared_bytes": shared if shared >= 0 else None,
            "configurations": int(number[g]),
        }
    return found


def _peak_shares(
    trace: Trace, rows: Int64Array, group: NDArray[np.intp], arithmetic: dict[int, str]
) -> dict[int, float]:
    """Return the rate of each group of product kernels as a part of the peak rate, as far as both are known."""
    count, of_row = count_flops(trace), np.full(len(trace.device), -1, dtype=np.int64)
    of_row[rows] = group
    known = ~np.isnan(count.kernel_flops)
    kernels = count.kernels[known]
    peak = device_peak(trace, int(trace.device.device[kernels[0]])) if len(kernels) else None
    if peak is None:
        return {}
    flops = np.bincount(of_row[kernels], count.kernel_flops[known])
    spent = np.bincount(of_row[kernels], count.kernel_ns[known])
    return {
        g: float(flops[g] / spent[g] * 1e9) / most
        for g in np.flatnonzero(spent).tolist()
        if (most := peak.flops_per_s.get(arithmetic[g]))
    }


def _arithmetic(trace: Trace, rows: Int64Array, group: NDArray[np.intp], duration: Int64Array) -> dict[int, str]:
    """Return the arithmetic of most of the time of each group of compute kernels."""
    compute = np.flatnonzero(trace.device.is_compute[rows])
    codes = largest_codes(group[compute], arithmetic_of(trace, rows[compute]), duration[compute])
    return {g: ARITHMETICS[code] for g, code in codes.items()}


class GraphRegion(Struct, frozen=True):
    """One region.

    Attributes:
        name: Its name, as given to ``torch.cuda.graph_annotations.mark_kernels``, e.g. that of a module.
        calls: Kernels, copies and memsets of the region over the averaged steps.
        device_ns: Their time.
        backward_ns: The part of that time in the backward pass.
    """

    name: str
    calls: int
    device_ns: int
    backward_ns: int


class GraphRegionTable(Struct, frozen=True):
    """The regions of the averaged steps.

    Attributes:
        rows: The regions, the longest time first. Work inside several regions belongs to the innermost.
        steps: Steps that the figures are over; divide by it for a figure per step.
        device_ns: Time of all device work.
        unattributed_device_ns: The part outside of named regions.
    """

    rows: tuple[GraphRegion, ...]
    steps: int
    device_ns: int
    unattributed_device_ns: int


def graph_regions(trace: Trace) -> GraphRegionTable | None:
    """Sum up the device work of each named region of CUDA graphs; None without one.

    Inside of a CUDA graph nothing links a kernel to an operator or a module. Since torch 2.15,
    ``torch.cuda.graph_annotations.mark_kernels`` names the work that a graph captures, and
    ``export_chrome_trace(cuda_graph_annotations=…)`` writes the names into the trace.
    """
    regions, device = trace.regions, trace.device
    if not len(regions):
        return None
    averaged = in_averaged_steps(trace, device.start_ns)
    named = averaged[regions.device_row]
    rows, codes, backward = regions.device_row[named], regions.name[named], regions.backward[named]
    spent = device.duration_ns[rows]
    used, at = np.unique(codes, return_inverse=True)
    size = len(used)
    total, calls = sum_by(at, spent, size), np.bincount(at, minlength=size)
    back = sum_by(at, np.where(backward, spent, 0), size)
    order = sorted(range(size), key=lambda row: (-int(total[row]), trace.names[used[row]]))
    everything = int(device.duration_ns[averaged].sum())
    return GraphRegionTable(
        rows=tuple(
            GraphRegion(trace.names[used[row]], int(calls[row]), int(total[row]), int(back[row])) for row in order
        ),
        steps=int(averaged_steps(trace).sum()),
        device_ns=everything,
        unattributed_device_ns=everything - int(spent.sum()),
    )
