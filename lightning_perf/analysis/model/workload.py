"""The training that a recording shows: its devices, layers, input shapes and copies per step."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.core.arrays import json_shapes
from lightning_perf.analysis.core.intervals import averaged_steps, in_averaged_steps
from lightning_perf.analysis.kernels.arithmetic import device_properties
from lightning_perf.analysis.model.modules import forward_operator
from lightning_perf.analysis.model.recompute import has_second_derivative
from lightning_perf.analysis.steps.phase_timeline import has_own_marks, mark_phase
from lightning_perf.trace.columns import NO_ROW, DeviceKind, Int64Array, matched_part
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
        optimizer_steps=int((marks & in_averaged_steps(trace, trace.annotations.start_ns)).sum()),
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
    found = np.flatnonzero(layers & (backward == NO_ROW) & in_averaged_steps(trace, table.start_ns))
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
    counted = in_averaged_steps(trace, table.start_ns) & (trace.links.operator_parent < 0)
    compiled = trace.names_where(lambda name: any(part in name for part in _COMPILED))[table.name]
    all_ns = int(table.duration_ns[counted].sum())
    return float(table.duration_ns[counted & compiled].sum() / all_ns) if all_ns else 0.0
