"""Extra work of the backward: gradient checkpointing, second derivatives, and the checks of anomaly detection."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.core.intervals import averaged_steps, cached_per_trace, in_averaged_steps
from lightning_perf.analysis.model.modules import forward_operator, operator_costs
from lightning_perf.analysis.steps.phase_timeline import is_backward_node
from lightning_perf.trace.columns import NO_ROW, BoolArray, Int64Array
from lightning_perf.trace.indexing import innermost_marked
from lightning_perf.trace.trace import Trace

_CHECKPOINT = "CheckpointFunctionBackward"


class Recompute(Struct, frozen=True):
    """The forward work that the backward repeats because of gradient checkpointing.

    Attributes:
        steps: Steps that the figures are over.
        time_ns: Their time: of the device work that they launch. On the host without a device, with the Python between
            them.
        on_device: Whether `time_ns` is of device work.
    """

    steps: int
    time_ns: int
    on_device: bool


@cached_per_trace
def repeated_operators(trace: Trace) -> BoolArray:
    """Return which operators of the averaged steps are forward work that the backward repeats, or inside of it.

    A node of the backward runs its operators without autograd. Operators in it that autograd numbers, as it does in a
    forward, are those of a checkpointed region. So are those of a backward pass that is differentiated itself. Such a
    training only counts the nodes of reentrant checkpoints.
    """
    table, parents = trace.operators, trace.links.operator_parent
    node = _nodes(trace)
    repeated = (table.sequence >= 0) & ~node & (innermost_marked(parents, parents, node) != NO_ROW)
    repeated &= in_averaged_steps(trace, table.start_ns)
    if has_second_derivative(trace):
        checkpoint = trace.names_where(lambda name: _CHECKPOINT in name)[table.name]
        repeated &= innermost_marked(parents, parents, checkpoint) != NO_ROW
    outermost = repeated & (innermost_marked(parents, parents, repeated) == NO_ROW)
    # A node inside of a repeated region is the backward of that region, run by a nested engine.
    within = innermost_marked(parents, np.arange(len(table)), outermost | node)
    found: BoolArray = (within != NO_ROW) & outermost[within]
    return found


def _nodes(trace: Trace) -> BoolArray:
    table = trace.operators
    nodes: BoolArray = trace.names_where(is_backward_node)[table.name] | (table.forward_thread != 0)
    return nodes


def recompute(trace: Trace) -> Recompute | None:
    """Find the forward work that the backward repeats."""
    table, parents = trace.operators, trace.links.operator_parent
    steps = int(averaged_steps(trace).sum())
    if not len(table) or not steps:
        return None
    repeated, node = repeated_operators(trace), _nodes(trace)
    outermost = repeated & (innermost_marked(parents, parents, repeated) == NO_ROW)
    if not outermost.any():
        return None
    on_device = bool(trace.device.is_compute.any())
    if on_device:
        time_ns = int(operator_costs(trace)[repeated].sum())
    else:
        time_ns = _spans_ns(trace, np.flatnonzero(outermost), node)
    return Recompute(steps, time_ns, on_device)


def _spans_ns(trace: Trace, rows: Int64Array, node: BoolArray) -> int:
    """Return the time of some operators and of the Python around them: from the start of their node to the last."""
    table, parents = trace.operators, trace.links.operator_parent
    of_node = innermost_marked(parents, parents[rows], node)
    nodes, group = np.unique(of_node, return_inverse=True)
    end = np.zeros(len(nodes), dtype=np.int64)
    np.maximum.at(end, group, table.end_ns[rows])
    return int((end - table.start_ns[nodes]).sum())


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


_NODE = "autograd::engine::evaluate_function"
_CHECK = "aten::isnan"
_PARTS = frozenset({_CHECK, "aten::_is_any_true", "aten::any", "aten::is_nonzero", "aten::item"})
"""The operators that torch runs for a check, directly below the node."""


class AnomalyChecks(Struct, frozen=True):
    """The checks in the averaged steps.

    Attributes:
        steps: Steps that the figures are over.
        checks: Tensors that were checked.
        check_ns: Host time of the checks. On a device it includes the wait for each result.
        nodes: Nodes of the backward. The forward noted a Python stack for each of them, which the recording does not
            show as such.
    """

    steps: int
    checks: int
    check_ns: int
    nodes: int


def anomaly_checks(trace: Trace) -> AnomalyChecks | None:
    """Find the checks; None without any."""
    table, parents = trace.operators, trace.links.operator_parent
    is_node = trace.names_where(lambda name: name.startswith(_NODE))[table.name]
    is_node &= in_averaged_steps(trace, table.start_ns)
    below = (parents != NO_ROW) & is_node[parents]
    found = below & trace.names_where(lambda name: name == _CHECK)[table.name]
    if not found.any():
        return None
    parts = below & trace.names_where(_PARTS.__contains__)[table.name]
    return AnomalyChecks(
        steps=int(averaged_steps(trace).sum()),
        checks=int(np.count_nonzero(found)),
        check_ns=int(table.duration_ns[parts].sum()),
        nodes=int(np.count_nonzero(is_node & ~trace.names_where(_ends_in_leaf)[table.name])),
    )


def _ends_in_leaf(name: str) -> bool:
    """Return whether a node adds a gradient to a leaf. Such a node has no stack of its own."""
    return name.endswith("AccumulateGrad")
