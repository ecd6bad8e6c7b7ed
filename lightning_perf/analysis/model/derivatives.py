"""Second derivatives: backward nodes of operators that an earlier backward pass ran."""

from __future__ import annotations

import numpy as np

from lightning_perf.analysis.core.caching import cached_per_trace
from lightning_perf.analysis.model.modules import forward_operator
from lightning_perf.trace.columns import NO_ROW
from lightning_perf.trace.trace import Trace


@cached_per_trace
def has_second_derivative(trace: Trace) -> bool:
    """Return whether a backward pass differentiates an earlier one, in at least one step of the recording.

    ``torch.autograd.grad(…, create_graph=True)`` runs nodes with operators that make a graph. Later nodes then belong
    to operators inside earlier nodes. Reentrant checkpointing also makes graphs inside nodes, but differentiates them
    in there.
    """
    owner, root = forward_operator(trace)
    if owner is None:
        return False
    nodes = np.flatnonzero(owner != NO_ROW)
    inside = root[owner[nodes]]
    found = inside != NO_ROW
    table = trace.operators
    later = table.start_ns[nodes[found]] >= table.end_ns[inside[found]]
    return bool(later.any())
