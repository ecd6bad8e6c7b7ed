"""Optimizer steps: which optimizer, in which implementation, and the cost of its steps."""

from __future__ import annotations

import re
from typing import Literal

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.core.averaged_steps import averaged_steps, in_averaged_steps
from lightning_perf.analysis.core.intervals import Intervals, intersect, merge, subtract, union
from lightning_perf.analysis.steps.phase_timeline import host_phases
from lightning_perf.trace.columns import NO_ROW
from lightning_perf.trace.indexing import at_rows
from lightning_perf.trace.trace import Trace

Implementation = Literal["fused", "foreach", "loop"]

# `torch.optim.Optimizer` marks its steps with its class: `Optimizer.step#AdamW.step`.
_STEP = re.compile(r"^Optimizer\.step#(?P<name>\w+)\.step$")
_ZERO_GRAD = "Optimizer.zero_grad#"


class OptimizerSteps(Struct, frozen=True):
    """The optimizer steps of the averaged steps, without the work of a closure that they run, and without clipping.

    Attributes:
        name: The optimizer's class; several joined by ``, ``.
        implementation: By its operators: ``fused`` (one kernel for many parameters), ``foreach`` (one kernel per
            operation for many parameters) or ``loop`` (one kernel per operation and parameter). ``None`` if unknown.
        steps: Steps that the figures are over.
        operators: Operators that they called.
        launches: Kernels that they launched.
        host_ns: Host time inside them.
        device_ns: Time of the kernels that they launched.
        operator_names: Names of these operators and of those inside them, sorted.
    """

    name: str
    implementation: Implementation | None
    steps: int
    operators: int
    launches: int
    host_ns: int
    device_ns: int
    operator_names: tuple[str, ...] = ()


def optimizer_steps(trace: Trace) -> OptimizerSteps | None:
    """Measure the optimizer steps; None if the recording marks none."""
    marks, operators, runtime = trace.annotations, trace.operators, trace.runtime
    matches = {code: _STEP.match(trace.names[code]) for code in np.unique(marks.name).tolist()}
    classes = {code: match.group("name") for code, match in matches.items() if match}
    rows = np.flatnonzero(np.isin(marks.name, list(classes)) & in_averaged_steps(trace, marks.start_ns))
    if not len(rows):
        return None
    threads = np.unique(marks.thread[rows])
    # Under Lightning's automatic optimization `step` runs the closure, and with it the whole training step.
    stepping = intersect(merge(marks.start_ns[rows], marks.end_ns[rows]), host_phases(trace)["optimizer"])
    zeroing = trace.names_where(lambda name: name.startswith(_ZERO_GRAD))[marks.name]
    others = union(merge(marks.start_ns[zeroing], marks.end_ns[zeroing]), _clipping(trace))
    inside = subtract(stepping, others)
    called = inside.contains(operators.start_ns) & np.isin(operators.thread, threads)
    issued = inside.contains(runtime.start_ns) & np.isin(runtime.thread, threads)
    call = trace.links.device_runtime
    launched = at_rows(issued, call, False)
    names = {trace.names[code] for code in np.unique(operators.name[called])}
    return OptimizerSteps(
        name=", ".join(sorted({classes[code] for code in marks.name[rows].tolist()})),
        implementation=_implementation(names),
        steps=int(averaged_steps(trace).sum()),
        operators=int((called & (trace.links.operator_parent == NO_ROW)).sum()),
        operator_names=tuple(sorted(names)),
        launches=int(launched.sum()),
        host_ns=inside.length_ns,
        device_ns=int(trace.device.duration_ns[launched].sum()),
    )


def _clipping(trace: Trace) -> Intervals:
    """Return when gradients are clipped, by value, or by norm: from the norm to the product that follows it.

    Lightning clips inside of the optimizer's step, for many parameters at once.
    """
    table = trace.operators
    clamps, norms, products = (
        trace.names_where(lambda name, start=start: name.startswith(f"aten::_foreach_{start}"))[table.name]
        for start in ("clamp_", "norm", "mul_")
    )
    starts, ends = table.start_ns[norms], np.sort(table.end_ns[products])
    following = np.searchsorted(ends, starts)
    known = following < len(ends)
    by_norm = merge(starts[known], ends[following[known]])
    return union(by_norm, merge(table.start_ns[clamps], table.end_ns[clamps]))


def _implementation(operators: set[str]) -> Implementation | None:
    if any(name.startswith("aten::_fused_") for name in operators):
        return "fused"
    if any(name.startswith("aten::_foreach_") for name in operators):
        return "foreach"
    # Operators that every elementwise optimizer needs for each parameter, in place.
    if operators & {"aten::add_", "aten::addcdiv_", "aten::addcmul_", "aten::mul_", "aten::sub_"}:
        return "loop"
    return None
