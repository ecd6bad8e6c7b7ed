"""Named regions of CUDA graphs, by the time of their kernels, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightning_perf.analysis.core.arrays import sum_by
from lightning_perf.analysis.core.averaged_steps import averaged_steps, in_averaged_steps
from lightning_perf.trace.trace import Trace


@dataclass(frozen=True)
class GraphRegion:
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


@dataclass(frozen=True)
class GraphRegionTable:
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
    """Sum up the device work of each named region of CUDA graphs.

    Inside of a CUDA graph nothing links a kernel to an operator or a module. Since torch 2.15,
    ``torch.cuda.graph_annotations.mark_kernels`` names the work that a graph captures, and
    ``export_chrome_trace(cuda_graph_annotations=…)`` writes the names into the trace.

    Returns:
        The table, or None for a recording without named regions.
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
