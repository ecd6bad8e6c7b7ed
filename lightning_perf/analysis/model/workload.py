"""The training as its recording shows it: layers and inputs, the optimizer, repeated forwards, and anomaly checks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Literal

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.intervals import (
    Intervals,
    averaged_steps,
    cached_per_trace,
    in_averaged_host_steps,
    in_averaged_steps,
    intersect,
    json_shapes,
    merge,
    subtract,
    union,
)
from lightning_perf.analysis.kernels.arithmetic import device_properties
from lightning_perf.analysis.model.modules import forward_operator, operator_costs
from lightning_perf.analysis.steps.breakdown import has_own_marks, host_phases, is_backward_node, mark_phase
from lightning_perf.trace.columns import NO_ROW, BoolArray, DeviceKind, Int64Array, matched_part
from lightning_perf.trace.indexing import at_rows, innermost_marked
from lightning_perf.trace.trace import Trace

LAYERS = {
    "aten::convolution": (0, 1),
    "aten::linear": (0, 1),
    "aten::embedding": (1, 0),
    "aten::batch_norm": (0, 1),
    "aten::layer_norm": (0, 2),
}
"""Forward operators of layers, and the positions of their data and their weight among the inputs."""

_ORDER = {operator: position for position, operator in enumerate(LAYERS)}

_COMPILED = ("Torch-Compiled Region", "CompiledFunction", "## Call CompiledFxGraph")

_BACKWARD = re.compile(r"backward|bwd", re.IGNORECASE)

MOST_LAYERS = 500
"""Distinct layers in the document. A model with more is compared by the most frequent ones."""


class Layer(Struct, frozen=True):
    """The forward calls of one kind of layer with one shape of weight.

    Attributes:
        operator: The operator without ``aten::``, e.g. ``convolution``.
        weight: Shape of the weight; ``None`` where shapes were not recorded.
        calls: Forward calls over the averaged steps.
    """

    operator: str
    weight: tuple[int, ...] | None
    calls: int


class Workload(Struct, frozen=True):
    """The training that a recording shows, for comparing it with another recording.

    Attributes:
        steps: Averaged steps.
        devices: Names of the devices that ran work; empty for a training on the host, or where names are missing.
        layers: Layers by operator and weight shape; empty where none were recorded, e.g. in compiled models.
        inputs: Distinct input shapes of the first layer of each step; empty where shapes were not recorded. A
            batch norm of weights, as in weight standardization, does not count.
        passes: Forward calls per step of the layer that runs first. This is the number of micro-batches, unless the
            model uses that layer several times. ``None`` where shapes were not recorded.
        compiled: Whether code compiled by ``torch.compile`` ran.
        copied_bytes: Bytes copied from host to device over the averaged steps; ``None`` without a device.
        options: Recording options with a cost that shows in the trace: ``with_stack``, ``profile_memory``.
        optimizer_steps: Optimizer steps in the averaged steps; 0 where they are not marked.
        second_derivative: Whether the backward pass differentiates an earlier backward pass, as for forces, PINNs and
            gradient penalties.
        compiled_share: Share of the operators' host time that is inside of compiled code, forward and backward.
        trains: Whether a backward pass, an optimizer or `PerfCallback` was recorded. False for layers without any of
            them, as in inference. ``None`` if not even layers were recorded.
    """

    steps: int = 0
    devices: tuple[str, ...] = ()
    layers: tuple[Layer, ...] = ()
    inputs: tuple[tuple[int, ...], ...] = ()
    passes: float | None = None
    compiled: bool = False
    copied_bytes: int | None = None
    options: tuple[str, ...] = ()
    optimizer_steps: int = 0
    second_derivative: bool = False
    compiled_share: float = 0.0
    trains: bool | None = None


def workload(trace: Trace) -> Workload:
    """Find out which training a recording shows."""
    rows, shapes = _layer_rows(trace)
    layers = [(trace.names[trace.operators.name[row]], weight) for row, (_, weight) in zip(rows, shapes, strict=True)]
    counts = Counter(layers)
    device, steps = trace.device, int(averaged_steps(trace).sum())
    averaged = in_averaged_steps(trace, device.start_ns)
    ordinals = np.unique(device.device[averaged]).tolist()
    names = (device_properties(trace, ordinal).name for ordinal in ordinals)
    marks = trace.names_where(lambda name: name.startswith("Optimizer.step#"))[trace.annotations.name]
    return Workload(
        steps=steps,
        devices=tuple(sorted({name for name in names if name})),
        layers=tuple(
            Layer(operator.removeprefix("aten::"), weight, calls)
            for (operator, weight), calls in sorted(
                counts.items(), key=lambda item: (-item[1], _ORDER[item[0][0]], item[0][1] or ())
            )[:MOST_LAYERS]
        ),
        inputs=_first_inputs(trace, rows, [data for data, _ in shapes]),
        passes=layers.count(layers[0]) / max(steps, 1) if layers and layers[0][1] is not None else None,
        compiled=any(name.startswith(_COMPILED) for name in trace.names),
        copied_bytes=int(device.bytes[averaged & (device.kind == DeviceKind.H2D)].sum()) if len(device) else None,
        options=tuple(_options(trace)),
        optimizer_steps=int((marks & in_averaged_host_steps(trace, trace.annotations.start_ns)).sum()),
        second_derivative=has_second_derivative(trace),
        compiled_share=_compiled_share(trace),
        trains=_trains(trace) or (False if rows else None),
    )


_Shape = tuple[int, ...] | None


def _layer_rows(trace: Trace) -> tuple[list[int], list[tuple[_Shape, _Shape]]]:
    """Return the operators of layers in the forward passes of the averaged steps, and their shapes."""
    table = trace.operators
    if not len(table):
        return [], []
    layers = trace.names_where(LAYERS.__contains__)[table.name]
    if not layers.any():
        return [], []
    _, backward = forward_operator(trace)
    found = np.flatnonzero(layers & (backward == NO_ROW) & in_averaged_host_steps(trace, table.start_ns))
    shapes = []
    for name, code in zip(table.name[found].tolist(), table.input_shapes[found].tolist(), strict=True):
        inputs, (data, weight) = json_shapes(trace.shape_lists[code]), LAYERS[trace.names[name]]
        shapes.append((_shape(inputs, data), _shape(inputs, weight)))
    return found.tolist(), shapes


def _shape(inputs: tuple[tuple[int, ...], ...], position: int) -> _Shape:
    shape = inputs[position] if position < len(inputs) else ()
    return shape if shape and max(shape) < 2**53 else None


def _first_inputs(trace: Trace, rows: list[int], data: list[_Shape]) -> tuple[tuple[int, ...], ...]:
    """Return the distinct input shapes of the first layer of each step, in order."""
    if not rows:
        return ()
    starts: Int64Array = trace.operators.start_ns[rows]
    step = np.searchsorted(trace.steps.start_ns, starts, side="right")
    # Weight standardization (Qiao et al., 2019) is a batch norm of one sample, before the layer that reads the batch.
    batch_norm = trace.names_where(lambda name: name == "aten::batch_norm")[trace.operators.name[rows]]
    of_weights = batch_norm & np.array([shape is not None and shape[0] == 1 for shape in data])
    places = np.flatnonzero(~of_weights) if not of_weights.all() else np.arange(len(rows))
    first = places[np.unique(step[places], return_index=True)[1]].tolist()
    return tuple(dict.fromkeys(shape for at in first if (shape := data[at]) is not None))


def _trains(trace: Trace) -> bool:
    """Return whether anything shows a training."""
    if trace.metadata.loader is not None or trace.metadata.loop is not None or has_own_marks(trace):
        return True
    named = (trace.operators.name, trace.annotations.name, trace.device.name)
    names = (trace.names[code] for code in np.unique(np.concatenate(named)).tolist())
    return any(
        _BACKWARD.search(name) or mark_phase(name) in ("backward", "optimizer") or "training_step" in name
        for name in map(matched_part, names)
    )


def _options(trace: Trace) -> Iterator[str]:
    if trace.metadata.with_stack or len(trace.python):
        yield "with_stack"
    if trace.metadata.profile_memory or len(trace.memory):
        yield "profile_memory"


def _compiled_share(trace: Trace) -> float:
    """Return the share of compiled code in the time of outermost operators of the averaged steps, over all threads."""
    table = trace.operators
    counted = in_averaged_host_steps(trace, table.start_ns) & (trace.links.operator_parent < 0)
    compiled = trace.names_where(lambda name: any(part in name for part in _COMPILED))[table.name]
    all_ns = int(table.duration_ns[counted].sum())
    return float(table.duration_ns[counted & compiled].sum() / all_ns) if all_ns else 0.0


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
    rows = np.flatnonzero(np.isin(marks.name, list(classes)) & in_averaged_host_steps(trace, marks.start_ns))
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

    def calls(kind: str) -> BoolArray:
        return trace.names_where(lambda name: name.startswith(f"aten::_foreach_{kind}"))[table.name]

    clamps, norms, products = map(calls, ("clamp_", "norm", "mul_"))
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
    repeated &= in_averaged_host_steps(trace, table.start_ns)
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
    is_node &= in_averaged_host_steps(trace, table.start_ns)
    below = (parents != NO_ROW) & is_node[parents]
    found = below & trace.names_where(lambda name: name == _CHECK)[table.name]
    if not found.any():
        return None
    # A node that adds a gradient to a leaf has no stack of its own.
    with_stack = is_node & ~trace.names_where(lambda name: name.endswith("AccumulateGrad"))[table.name]
    parts = below & trace.names_where(_PARTS.__contains__)[table.name]
    return AnomalyChecks(
        steps=int(averaged_steps(trace).sum()),
        checks=int(np.count_nonzero(found)),
        check_ns=int(table.duration_ns[parts].sum()),
        nodes=int(np.count_nonzero(with_stack)),
    )
