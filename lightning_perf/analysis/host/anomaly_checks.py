"""The checks of ``torch.autograd.detect_anomaly``: each node of the backward looks for NaN in its results."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightning_perf.analysis.core.averaged_steps import averaged_steps, in_averaged_steps
from lightning_perf.trace.columns import NO_ROW
from lightning_perf.trace.trace import Trace

_NODE = "autograd::engine::evaluate_function"
_CHECK = "aten::isnan"
_PARTS = frozenset({_CHECK, "aten::_is_any_true", "aten::any", "aten::is_nonzero", "aten::item"})
"""The operators that torch runs for a check, directly below the node."""


@dataclass(frozen=True)
class AnomalyChecks:
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
