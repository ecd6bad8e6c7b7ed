"""The computing of a training on the processor: host time of its operators by kind, arithmetic and memory layout."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Literal, NamedTuple

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.intervals import (
    averaged_steps,
    averaged_time,
    in_averaged_host_steps,
    json_shapes,
    subtract,
    sum_by,
    union,
)
from lightning_perf.analysis.kernels.arithmetic import TYPE_FOLLOWING, operand_arithmetic
from lightning_perf.analysis.steps.breakdown import host_sets
from lightning_perf.trace.indexing import distinct_rows, self_ns
from lightning_perf.trace.trace import Trace

SHORT_NS = 10_000
"""An operator with less time of its own than this hardly computes: most of its time is the cost of the call."""

LONG_GAP_NS = 1_000_000
"""Between two operators the framework takes microseconds. A longer gap is waiting, or work in Python."""

LONG_SEQUENCE = 512
"""From this number of queries per head on, attention is bound by its products, not by its calls and casts."""

MOST_ELEMENTS = 2**36
"""No tensor on a host has more elements. Shapes with more are damaged."""

HostKind = Literal[
    "convolution",
    "convolution backward",
    "grouped convolution",
    "matrix product",
    "batched product",
    "sparse product",
    "recurrent layer",
    "attention",
    "long attention",
    "pooling",
    "normalization",
    "normalization backward",
    "elementwise",
    "other",
]
Layout = Literal["channels first", "channels last"]


class _Place(NamedTuple):
    """The places of an operator's tensors among its inputs."""

    kind: HostKind
    ordered: tuple[int, ...] = ()
    """The tensors with the memory layout of the operator."""
    weight: int | None = None
    """The weight that it casts in mixed precision, or that it makes the gradient of."""
    activations: tuple[int, ...] = ()
    """Input and output of the layer that it is the backward pass of."""
    calls: bool = True
    """Whether it counts as a call. It does not if it only calls the product that computes."""


def _named(place: _Place, *names: str) -> dict[str, _Place]:
    return {f"aten::{name}": place for name in names}


_SIMPLE = {name.removeprefix("aten::") for name in TYPE_FOLLOWING} - {"add", "add_", "sub", "mul", "mul_", "div"}
"""Operators that work element by element in the type of their input. Sums and products are left out: the optimizer
computes them as often, in FP32."""

_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
_OPERATORS: dict[str, _Place] = {
    **_named(_Place("elementwise"), *_SIMPLE),
    **_named(_Place("convolution", (0, 1), 1), "mkldnn_convolution", "_slow_conv2d_forward", "slow_conv3d_forward"),
    **_named(_Place("convolution backward", (1, 2, 0), 2, (0, 1)), "convolution_backward", "_slow_conv2d_backward"),
    **_named(_Place("matrix product"), "mm", "addmm", "mkldnn_linear"),
    **_named(_Place("recurrent layer"), "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"),
    **_named(_Place("batched product"), "bmm", "baddbmm"),
    **_named(_Place("matrix product", weight=1, calls=False), "linear"),
    **_named(_Place("attention"), _ATTENTION, f"{_ATTENTION}_backward"),
    **_named(_Place("pooling", (0,)), "max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d"),
    **_named(_Place("normalization", (0,)), "native_batch_norm"),
    **_named(_Place("normalization backward", (1,)), "native_batch_norm_backward"),
}
"""Operators in which the processor spends its time. Their callers (``aten::conv2d``) have hardly any time of their
own."""


class HostWork(Struct, frozen=True):
    """Operators of one kind, arithmetic and layout.

    Attributes:
        kind: The kind; ``other`` for operators of no other kind.
        arithmetic: One of `lightning_perf.analysis.kernels.arithmetic.ARITHMETICS`, by their input types.
        layout: Order of their inputs in memory; ``None`` if it does not matter, or is not recorded.
        calls: Calls, over all averaged steps. A linear layer counts with the product that it calls.
        time_ns: Host time of the calls outside the operators that they call.
        weights: Elements of the weights of convolutions, forward and backward each, and of linear layers, each call
            counted; 0 for other kinds.
        activations: Elements of the inputs and outputs of convolutions in the backward pass, which knows both; 0 for
            other kinds.
    """

    kind: HostKind
    arithmetic: str
    layout: Layout | None
    calls: int
    time_ns: int
    weights: int
    activations: int


class HostCompute(Struct, frozen=True):
    """The computing of a training on the processor, over the averaged steps.

    Attributes:
        work: Its operators by kind, arithmetic and layout, the longest time first. Their times sum to `operator_ns`.
        steps: Steps that the figures are over.
        operator_ns: Host time inside operators.
        calls: Calls of operators.
        short_calls: Calls with less than `SHORT_NS` outside the operators that they call.
        short_ns: The time of those.
        gaps_ns: Time outside operators and fetching, in stretches shorter than `LONG_GAP_NS`.
    """

    work: tuple[HostWork, ...]
    steps: int
    operator_ns: int
    calls: int
    short_calls: int
    short_ns: int
    gaps_ns: int


def host_compute(trace: Trace) -> HostCompute | None:
    """Divide the time of a training on the processor; None for one on a device, or without operators or steps."""
    table = trace.operators
    steps = int(averaged_steps(trace).sum())
    counted = np.flatnonzero(in_averaged_host_steps(trace, table.start_ns))
    if not steps or not len(counted) or not _on_processor(trace):
        return None
    own = self_ns(table, trace.links.operator_parent)[counted]
    columns = (table.name, table.input_types, table.input_shapes, table.input_strides)
    first, index = distinct_rows(*(column[counted].astype(np.int64) for column in columns))
    calls = np.bincount(index, minlength=len(first))
    time = sum_by(index, own, len(first))
    sums: defaultdict[tuple[HostKind, str, Layout | None], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for row, number, spent in zip(counted[first].tolist(), calls.tolist(), time.tolist(), strict=True):
        kind, layout, weights, activations, counts = _classified(
            trace.names[table.name[row]],
            trace.shape_lists[table.input_shapes[row]],
            trace.stride_lists[table.input_strides[row]],
        )
        arithmetic = operand_arithmetic(trace.type_lists[table.input_types[row]]) or "unknown"
        parts = sums[kind, arithmetic, layout]
        for place, value in enumerate((number * counts, spent, number * weights, number * activations)):
            parts[place] += value
    work = [HostWork(*key, *values) for key, values in sums.items()]
    work.sort(key=lambda row: (-row.time_ns, row.kind, row.arithmetic, row.layout or ""))
    short = own < SHORT_NS
    gaps = subtract(averaged_time(trace), union(*host_sets(trace).values()))
    gap_ns = gaps.end_ns - gaps.start_ns
    return HostCompute(
        work=tuple(work),
        steps=steps,
        operator_ns=int(own.sum()),
        calls=len(counted),
        short_calls=int(short.sum()),
        short_ns=int(own[short].sum()),
        gaps_ns=int(gap_ns[gap_ns < LONG_GAP_NS].sum()),
    )


def _on_processor(trace: Trace) -> bool:
    """Whether the processor does the training. A recording of the host only may be of a training on a device, too."""
    if len(trace.device) or len(trace.runtime) or trace.problems.lacks_work:
        return False
    processor = trace.metadata.processor
    if processor is not None and processor.trains is not None:
        return processor.trains
    return not trace.metadata.devices


@lru_cache(maxsize=65536)
def _classified(name: str, shapes_json: str, strides_json: str) -> tuple[HostKind, Layout | None, int, int, bool]:
    """Return an operator's kind, its layout, the elements of its weight and its activations, and if calls count."""
    place = _OPERATORS.get(name)
    if place is None:
        return "other", None, 0, 0, True
    kind: HostKind = place.kind
    shapes, strides = json_shapes(shapes_json), json_shapes(strides_json)
    tensors = [at for at in place.ordered if at < len(shapes)]
    if kind.startswith("convolution") and len(tensors) > 1:
        data, weight = (shapes[at] for at in tensors[:2])
        if 2 < len(data) == len(weight) and data[1] != weight[1]:
            kind = "grouped convolution"
    if kind == "attention" and shapes and len(shapes[0]) == 4 and shapes[0][2] >= LONG_SEQUENCE:
        kind = "long attention"  # the queries, or in the backward pass the gradient: (batch, heads, queries, channels)
    if kind == "matrix product" and any(shape and not own for shape, own in zip(shapes, strides, strict=False)):
        kind = "sparse product"  # only sparse tensors have sizes and no strides
    weights = _elements(shapes, () if place.weight is None else (place.weight,))
    orders = {_layout(shapes[at], strides[at]) for at in tensors if at < len(strides)}
    # One operand with channels last is enough for a convolution to compute in that layout and return it.
    layout = next((order for order in ("channels last", "channels first") if order in orders), None)
    return kind, layout, weights, _elements(shapes, place.activations), place.calls


def _elements(shapes: Sequence[tuple[int, ...]], places: Sequence[int]) -> int:
    return min(sum(prod(shapes[at]) for at in places if at < len(shapes) and shapes[at]), MOST_ELEMENTS)


def _layout(shape: tuple[int, ...], strides: tuple[int, ...]) -> Layout | None:
    """Return the memory order of a batch of images; None for a tensor without such an order, or the same in both."""
    if len(shape) != 4 or len(strides) != 4 or shape[1] < 2 or shape[2] * shape[3] < 2:
        return None
    if strides[1] == 1:
        return "channels last"
    return "channels first" if strides[1] == shape[2] * shape[3] else None
