"""Tensor Cores by kernel and by operator: the time on them, and why products run without them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_perf.analysis.core.arrays import sum_by
from lightning_perf.analysis.kernels.kernel_names import kernel_arithmetic
from lightning_perf.analysis.kernels.tensor_core_eligibility import REASONS, unused_reasons
from lightning_perf.trace.columns import Int64Array
from lightning_perf.trace.indexing import distinct, used_codes
from lightning_perf.trace.trace import Trace

__all__ = ["TensorCoreUse", "tensor_core_use"]


@dataclass(frozen=True)
class TensorCoreUse:
    """The use of Tensor Cores in groups of device work.

    Attributes:
        used_ns: Time of each group's kernels on Tensor Cores.
        unknown_ns: Time of each group's kernels that may or may not run on them.
        reason: For each group, why most of its products without Tensor Cores run without them: a key of `REASONS`, or
            None for a group without such products.
    """

    used_ns: Int64Array
    unknown_ns: Int64Array
    reason: tuple[str | None, ...]


def tensor_core_use(trace: Trace, rows: Int64Array, group: NDArray[np.signedinteger], size: int) -> TensorCoreUse:
    """Sum up the use of Tensor Cores in groups of compute kernels.

    Args:
        trace: The recording.
        rows: Rows of `Trace.device`. Those that are not compute kernels count nothing.
        group: The group of each row.
        size: Number of groups.

    Returns:
        The use of each group.
    """
    compute = trace.device.is_compute[rows]
    rows, group = rows[compute], group[compute]
    names = trace.device.name[rows]
    used = np.zeros(len(trace.names), dtype=np.bool_)
    unknown = np.zeros(len(trace.names), dtype=np.bool_)
    for code in used_codes(names):
        told = kernel_arithmetic(trace.names[code]).tensor_cores
        used[code], unknown[code] = told is True, told is None
    duration = trace.device.duration_ns[rows]
    products, reason = unused_reasons(trace, rows)
    place = np.searchsorted(rows, products) if len(rows) else np.zeros(0, dtype=np.int64)
    found: list[str | None] = [None] * size
    pairs, index = distinct(group[place].astype(np.int64) * len(REASONS) + reason)
    spent = sum_by(index, duration[place], len(pairs))
    # In ascending order of time, so that the largest is written last.
    for pair in pairs[np.argsort(spent, kind="stable")].tolist():
        found[pair // len(REASONS)] = list(REASONS)[pair % len(REASONS)]
    return TensorCoreUse(
        used_ns=sum_by(group[used[names]], duration[used[names]], size),
        unknown_ns=sum_by(group[unknown[names]], duration[unknown[names]], size),
        reason=tuple(found),
    )
