"""Floating-point operations of matrix products: their formulas, and those of a recording by operator and by kernel.

The formulas count a multiply-add as two operations. Those of products and convolutions are those of
``torch.utils.flop_counter`` (https://github.com/pytorch/pytorch/blob/main/torch/utils/flop_counter.py), applied to the
recorded shapes. Attention has two products in the forward and five in the backward, which computes the scores again
(Dao et al., *FlashAttention*, https://arxiv.org/abs/2205.14135). A causal mask leaves half of them
(https://github.com/Dao-AILab/flash-attention/blob/main/benchmarks/benchmark_flash_attention.py).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from math import isqrt, prod

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from lightning_perf.analysis.intervals import (
    cached_per_trace,
    in_averaged_host_steps,
    in_averaged_steps,
    json_list,
    json_shapes,
    sum_by,
)
from lightning_perf.analysis.kernels.arithmetic import ARITHMETICS, arithmetic_of
from lightning_perf.analysis.kernels.kernel_names import is_product
from lightning_perf.trace.columns import NO_ROW, BoolArray, Int64Array
from lightning_perf.trace.indexing import distinct_rows, innermost_marked
from lightning_perf.trace.trace import Trace

Shape = tuple[int, ...]
Range = tuple[int, int]
"""The least and the most FLOPs that the recorded inputs allow."""

MOST_FLOPS = 10**18
"""No call has more FLOPs: the fastest devices would need minutes for it. Shapes with more are damaged."""


def _mm(shapes: Sequence[Shape]) -> int:
    (*batch, m, k), (*_, n) = shapes[0], shapes[1]
    return 2 * prod(batch) * m * k * n


def _grouped_mm(shapes: Sequence[Shape]) -> int:
    # Each group has its own part of a dimension that only one of the two matrices, or both, have without a group.
    left, right = shapes[:2]
    groups = left[0] if len(left) == 3 and len(right) == 2 else 1
    return 2 * prod(left) // groups * right[-1]


def _by_sizes(shapes: Sequence[Shape]) -> int:
    """Return the FLOPs of a product from its factors and its result, however these are transposed or flattened.

    Their sizes are ``b·m·k``, ``b·k·n`` and ``b·m·n``, for `b` products of one call.
    """
    left, right, *_, result = (shape for shape in shapes if len(shape) > 1)
    batches = left[0] if len({len(left), len(right), len(result), 3}) == 1 and left[0] == right[0] == result[0] else 1
    sizes = [prod(shape) for shape in (left, right, result)]
    mkn = isqrt(prod(sizes) // batches)
    if mkn * mkn * batches != prod(sizes) or any(mkn % size for size in sizes):
        raise ValueError("not a product with its result")
    return 2 * mkn


class _Attention(Struct, frozen=True):
    """The inputs of an operator of attention, by their places.

    Attributes:
        query: Place of the queries. Keys and values follow.
        causal: Place of the flag or number that chooses a causal mask; None if it is not among the inputs.
        heads_first: Whether shapes are ``(batch, heads, time, size)``, instead of ``(batch, time, heads, size)``.
        lengths: Place of the ends of packed sequences, three places before the most keys; None if it never packs.
        window: Places of the sizes of a sliding window.
        backward: Whether it computes the gradients.
    """

    query: int
    causal: int | None
    heads_first: bool = False
    lengths: int | None = None
    window: tuple[int, ...] = ()
    backward: bool = False


_SDPA = partial(_Attention, heads_first=True)
_ATTENTION = {
    "aten::_scaled_dot_product_flash_attention": _SDPA(0, 4),
    "aten::_scaled_dot_product_efficient_attention": _SDPA(0, 6),
    "aten::_scaled_dot_product_cudnn_attention": _SDPA(0, 6),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _SDPA(0, 4),
    "aten::_scaled_dot_product_flash_attention_backward": _SDPA(1, 11, backward=True),
    "aten::_scaled_dot_product_efficient_attention_backward": _SDPA(1, 11, backward=True),
    "aten::_scaled_dot_product_cudnn_attention_backward": _SDPA(1, 14, backward=True),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _SDPA(1, 7, backward=True),
    "aten::_flash_attention_forward": _Attention(0, 8, lengths=3, window=(11, 12)),
    "aten::_flash_attention_backward": _Attention(1, 11, lengths=6, window=(15, 16), backward=True),
    "aten::_efficient_attention_forward": _Attention(0, 9, lengths=4, window=(13,)),
    "aten::_efficient_attention_backward": _Attention(1, 14, lengths=6, window=(18,), backward=True),
    "flash_attn::_flash_attn_forward": _Attention(0, 5, window=(6, 7)),
    "flash_attn::_flash_attn_backward": _Attention(1, 11, window=(12, 13), backward=True),
    "flash_attn::_flash_attn_varlen_forward": _Attention(0, 9, lengths=3, window=(10, 11)),
    "flash_attn::_flash_attn_varlen_backward": _Attention(1, 15, lengths=9, window=(16, 17), backward=True),
    "FlashAttnFunc": _Attention(0, None),
}


def _attention(places: _Attention, shapes: Sequence[Shape], values: Sequence[str]) -> Range:
    query, key, value = shapes[places.query : places.query + 3]
    if places.heads_first:
        (*batch, queries, size), keys = query, key[-2]
    else:
        (*batch, queries, heads, size), keys = query, key[-3]
        batch = [*batch, heads]
    if not {_at(values, place) for place in places.window} <= {"", "-1"}:
        raise ValueError("a sliding window")
    causal = _at(values, places.causal)
    least, most = _twice_the_pairs(queries, keys, causal, ends_together=not places.heads_first and causal != "1")
    ends = shapes[places.lengths] if places.lengths is not None and places.lengths < len(shapes) else ()
    if ends:  # several sequences one after the other: the fewest pairs if they are equally long
        if queries != keys:
            raise ValueError("packed sequences of different lengths")
        longest = min(int(_at(values, (places.lengths or 0) + 3) or keys), keys)
        least, most = least // (ends[0] - 1), most * longest // keys
    # Products over the size of the keys: the scores, and in the backward again with the gradients of queries and keys.
    # Over that of the values: their product with the scores, and in the backward the gradients of both.
    depth = prod(batch) * (3 * size + 2 * value[-1] if places.backward else size + value[-1])
    return least * depth, most * depth


def _at(values: Sequence[str], place: int | None) -> str:
    return str(values[place]) if place is not None and place < len(values) else ""


def _twice_the_pairs(queries: int, keys: int, causal: str, *, ends_together: bool) -> Range:
    """Return twice the number of pairs of a query and a key that it attends to, at least and at most.

    A causal mask lets a query attend to the keys before it. Their first positions, or their last ones, are the same.
    """
    full = 2 * queries * keys
    masked = min(queries, keys) ** 2
    if keys > queries if ends_together else queries > keys:
        masked = full - masked
    if causal in ("False", "0"):
        return full, full
    return masked, masked if causal in ("True", "1", "2") else full


def _exactly(formula: Callable[[Sequence[Shape]], int], skipped: int = 0) -> Callable[..., Range]:
    def found(shapes: Sequence[Shape], _values: Sequence[str]) -> Range:
        flops = formula(shapes[skipped:])
        return flops, flops

    return found


FORMULAS: dict[str, Callable[[Sequence[Shape], Sequence[str]], Range]] = {
    **{f"aten::{name}": _exactly(_mm) for name in ("mm", "bmm", "_scaled_mm", "_scaled_mm_v2", "_int_mm")},
    **{f"aten::{name}": _exactly(_mm, 1) for name in ("addmm", "baddbmm", "_addmm_activation")},
    **{
        f"aten::{name}": _exactly(_grouped_mm)
        for name in ("_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2")
    },
    "aten::linear": _exactly(lambda shapes: 2 * prod(shapes[0]) * shapes[1][0]),
    "tex_ts::te_gemm_ts": _exactly(lambda shapes: _by_sizes([shape for shape in shapes if len(shape) > 1][:3])),
    **{name: partial(_attention, places) for name, places in _ATTENTION.items()},
}
"""FLOPs by operator, from its input shapes and values, without convolutions (`convolution`) and `_TEMPLATE`."""

_TEMPLATE = re.compile(r"triton_tem_fused_(?!.*(?:conv|attention|grouped)).*mm")
"""Inductor's Triton kernels of matrix products: the factors come first and the result last."""

CONVOLUTIONS: dict[str, tuple[int, int, int, int | None]] = {
    **{f"aten::{name}": (3, 4, 5, None) for name in ("conv1d", "conv2d", "conv3d")},
    **{f"aten::{name}": (3, 4, 5, 6) for name in ("convolution", "_convolution")},
    "aten::cudnn_convolution": (3, 2, 4, None),
    "aten::miopen_convolution": (4, 3, 5, None),
}
"""Forward convolutions: the places of stride, padding, dilation and whether it is transposed. The first inputs are the
data and the weight."""

BACKWARD_CONVOLUTIONS: dict[str, tuple[int, int, int]] = {
    "aten::convolution_backward": (0, 1, 2),
    "aten::cudnn_convolution_backward": (1, 0, 2),
    "aten::miopen_convolution_backward": (1, 0, 2),
}
"""Backward convolutions, one per library in PyTorch 1.10 and before: the places of gradient, data and weight."""

_TRANSPOSED, _GRADIENTS = 7, 10
"""Places of two inputs of ``aten::convolution_backward``: whether the forward was transposed, and which gradients of
data, weight and bias it computes."""


def counts(name: str) -> bool:
    """Return whether the FLOPs of an operator can be known from its inputs."""
    return name in FORMULAS or name in CONVOLUTIONS or name in BACKWARD_CONVOLUTIONS or bool(_TEMPLATE.match(name))


def operator_flops(name: str, shapes_json: str, values_json: str = "") -> Range | None:
    """Return the least and most FLOPs of one call; None without a formula or for inputs that do not fit it."""
    formula = FORMULAS.get(name) or (_exactly(_by_sizes) if _TEMPLATE.match(name) else None)
    if formula is None:
        return None
    try:
        least, most = formula(json_shapes(shapes_json), json_list(values_json))
    except (ValueError, IndexError, ZeroDivisionError):
        return None
    return (least, most) if 0 < least <= most <= MOST_FLOPS else None


class Convolution(Struct, frozen=True):
    """The inputs of one convolution.

    Attributes:
        output: Shape of its output; None if it is not recorded and nothing is recorded to compute it from. The
            backward of the same data and weight shows it, too.
        transposed: Whether it is transposed; False if not recorded.
        gradients: Gradients that a backward computes, of the data and of the weight; None if not recorded.
    """

    data: Shape
    weight: Shape
    output: Shape | None
    transposed: bool = False
    gradients: int | None = None

    def flops(self, output: Shape) -> int:
        """FLOPs of one pass: the forward, or one of the two gradients, which cost the same. 0 for damaged shapes."""
        places = self.data if self.transposed else output
        flops = 2 * places[0] * prod(places[2:]) * prod(self.weight)
        return flops if 0 < flops <= MOST_FLOPS else 0


def convolution(name: str, shapes_json: str, values_json: str = "") -> Convolution | None:
    """Return the inputs of a convolution, forward or backward; ``None`` for other operators and missing shapes."""
    shapes, values = json_shapes(shapes_json), json_list(values_json)
    places = BACKWARD_CONVOLUTIONS.get(name)
    if places is None and name not in CONVOLUTIONS:
        return None
    output, data, weight = places or (None, 0, 1)
    if len(shapes) <= max(data, weight) or len(shapes[data]) < 3 or len(shapes[data]) != len(shapes[weight]):
        return None
    if output is None:
        *window, transposes = CONVOLUTIONS[name]
        if _at(values, transposes) == "True":
            return Convolution(shapes[data], shapes[weight], shapes[data], transposed=True)
        return Convolution(shapes[data], shapes[weight], _output(shapes, [_at(values, place) for place in window]))
    if name != "aten::convolution_backward":
        return Convolution(shapes[data], shapes[weight], shapes[output])
    gradients = _at(values, _GRADIENTS).strip("[]").split(", ")
    return Convolution(
        shapes[data],
        shapes[weight],
        shapes[output],
        transposed=_at(values, _TRANSPOSED) == "True",
        gradients=gradients[:2].count("True") if len(gradients) == 3 else None,
    )


def _output(shapes: Sequence[Shape], window: Sequence[str]) -> Shape | None:
    """Return the shape of a convolution's output from its stride, padding and dilation; None for unknown ones."""
    (batch, _, *sizes), (channels, _, *kernel) = shapes[:2]
    told = [shape + shape[-1:] * len(sizes) for shape in json_shapes(f"[{','.join(window)}]")]
    if len(told) != len(window) or any(len(each) < len(sizes) for each in told) or 0 in told[0]:
        return None
    strides, paddings, dilations = told
    spans = zip(sizes, kernel, strides, paddings, dilations, strict=False)
    return batch, channels, *((n + 2 * pad - dilation * (k - 1) - 1) // step + 1 for n, k, step, pad, dilation in spans)


def is_depthwise(name: str, shapes_json: str) -> bool:
    """Return whether an operator convolves each channel on its own. Memory bounds such convolutions."""
    found = convolution(name, shapes_json)
    return found is not None and len(found.data) > 2 and found.data[1] > 1 and found.weight[1:2] == (1,)


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
    countable = trace.names_where(counts)[operators.name] & in_averaged_host_steps(trace, operators.start_ns)
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
