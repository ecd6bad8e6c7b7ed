"""The FLOPs of a recording: by operator, by arithmetic and by kernel."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from lightning_perf.analysis.core.arrays import sum_by
from lightning_perf.analysis.core.averaged_steps import cached_per_trace, in_averaged_steps
from lightning_perf.analysis.kernels.arithmetic import ARITHMETICS, arithmetic_of
from lightning_perf.analysis.kernels.flops import BACKWARD_CONVOLUTIONS, MOST_FLOPS, convolution, counts, operator_flops
from lightning_perf.analysis.kernels.kernel_names import is_product
from lightning_perf.trace.columns import NO_ROW, BoolArray, Int64Array
from lightning_perf.trace.indexing import distinct_rows, innermost_marked
from lightning_perf.trace.trace import Trace


class FlopCount(Struct, frozen=True):
    """The FLOPs of the matrix products in the averaged steps.

    Attributes:
        least: FLOPs of each operator row, 0 where unknown and where an operator around it counts.
        most: Likewise. It differs if it is unknown whether attention is causal, or how long packed sequences are.
        arithmetic: Code into `ARITHMETICS` for each operator row: that of its longest product kernel, ``unknown``
            without one.
        kernels: Rows of the product kernels.
        kernel_flops: FLOPs of each of them; NaN where unknown. Those of an operator are divided by time, except that
            the two kernels of a backward convolution have half each.
        kernel_ns: Duration of each of them.
        owner: The operator row of each of them; `NO_ROW` where the FLOPs are unknown.
    """

    least: Int64Array
    most: Int64Array
    arithmetic: NDArray[np.uint8]
    kernels: Int64Array
    kernel_flops: NDArray[np.float64]
    kernel_ns: Int64Array
    owner: Int64Array

    @property
    def coverage(self) -> float | None:
        """Part of the product kernels' time with known FLOPs; None without such kernels."""
        total = int(self.kernel_ns.sum())
        return int(self.kernel_ns[self.owner != NO_ROW].sum()) / total if total else None

    def by_arithmetic(self, flops: Int64Array) -> dict[str, int]:
        """Sum up FLOPs of operator rows. The sums may need more than 64 bits."""
        found: dict[str, int] = defaultdict(int)
        rows = np.flatnonzero(flops > 0)
        for code, amount in zip(self.arithmetic[rows].tolist(), flops[rows].tolist(), strict=True):
            found[ARITHMETICS[code]] += amount
        return {name: found[name] for name in ARITHMETICS if name in found}

    def kernel_ns_by_arithmetic(self) -> dict[str, int]:
        """Sum up the time of the product kernels with known FLOPs, by the arithmetic of their operator."""
        known = self.owner != NO_ROW
        spent = sum_by(self.arithmetic[self.owner[known]], self.kernel_ns[known], len(ARITHMETICS)).tolist()
        return {name: time_ns for name, time_ns in zip(ARITHMETICS, spent, strict=True) if time_ns}


@cached_per_trace
def count_flops(trace: Trace) -> FlopCount:
    """Count the FLOPs of the matrix products in the averaged steps."""
    operators, parents = trace.operators, trace.links.operator_parent
    countable = trace.names_where(counts)[operators.name] & in_averaged_steps(trace, operators.start_ns)
    least, most = (np.zeros(len(operators), dtype=np.int64) for _ in range(2))
    single = np.zeros(len(operators), dtype=np.bool_)
    rows = np.flatnonzero(countable)
    if len(rows):
        least[rows], most[rows], single[rows] = _count(trace, rows)
    counted = np.flatnonzero(least)
    # `aten::linear` counts, and the `aten::addmm` inside it does not count again.
    inside = counted[innermost_marked(parents, parents[counted], least > 0) != NO_ROW]
    least[inside] = most[inside] = 0
    products = trace.device.is_compute & trace.rows_where(trace.device.name, is_product)
    kernels = np.flatnonzero(products & in_averaged_steps(trace, trace.device.start_ns))
    duration = trace.device.duration_ns[kernels]
    owner = innermost_marked(parents, trace.links.device_operator[kernels], least > 0)
    owned = np.flatnonzero(owner != NO_ROW)
    owned = owned[np.lexsort((duration[owned], owner[owned]))]
    owners = owner[owned]
    kernel_count = np.bincount(owners, minlength=len(operators))
    backward = trace.names_where(BACKWARD_CONVOLUTIONS.__contains__)[operators.name]
    # A backward convolution counts one gradient. It has two unless a single product ran (the first layer).
    both = backward & ~single & (kernel_count != 1)
    least[both] *= 2
    most[both] *= 2
    longest = np.append(owners[1:] != owners[:-1], True)[: len(owners)]
    arithmetic = np.full(len(operators), ARITHMETICS.index("unknown"), dtype=np.uint8)
    arithmetic[owners[longest]] = arithmetic_of(trace, kernels[owned[longest]])
    share = duration[owned] / np.maximum(np.bincount(owners, duration[owned], minlength=len(operators))[owners], 1)
    share = np.where(backward[owners] & (kernel_count[owners] == 2), 0.5, share)
    kernel_flops = np.full(len(kernels), np.nan)
    kernel_flops[owned] = least[owners] * share
    return FlopCount(least, most, arithmetic, kernels, kernel_flops, duration, owner)


def _count(trace: Trace, rows: Int64Array) -> tuple[Int64Array, Int64Array, BoolArray]:
    """Return the FLOPs of each operator row, 0 where unknown, without regard to operators inside operators.

    They are at least, at most, and whether those of a backward convolution are of all its gradients.
    """
    operators = trace.operators
    columns = (operators.name[rows], operators.input_shapes[rows], operators.input_values[rows])
    first, index = distinct_rows(*columns)
    calls = [
        (trace.names[name], trace.shape_lists[shapes], trace.value_lists[values])
        for name, shapes, values in zip(*(column[first].tolist() for column in columns), strict=True)
    ]
    convolutions = [convolution(*call) for call in calls]
    outputs: dict[object, set[tuple[int, ...]]] = defaultdict(set)
    for found in convolutions:
        if found and found.output:
            outputs[found.data, found.weight].add(found.output)
    least, most = (np.zeros(len(calls), dtype=np.int64) for _ in range(2))
    single = np.zeros(len(calls), dtype=np.bool_)
    for i, (call, found) in enumerate(zip(calls, convolutions, strict=True)):
        least[i], most[i] = operator_flops(*call) or (0, 0)
        candidates = {found.output} if found and found.output else outputs[found.data, found.weight] if found else set()
        if found and len(candidates) == 1:
            gradients, single[i] = found.gradients, found.gradients is not None
            least[i] = most[i] = found.flops(next(iter(candidates))) * (1 if gradients is None else gradients)
    recorded = operators.flops[rows]
    recorded = np.where((recorded > 0) & (recorded <= MOST_FLOPS), recorded, 0)
    known = least[index] > 0
    return np.where(known, least[index], recorded), np.where(known, most[index], recorded), single[index]
