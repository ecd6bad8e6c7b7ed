"""Floating-point operations of matrix products, from the shapes of the operators that ran.

The formulas count a multiply-add as two operations. They are those of ``torch.utils.flop_counter``
(https://github.com/pytorch/pytorch/blob/main/torch/utils/flop_counter.py), applied to the recorded shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from lightning_perf.analysis.core.arrays import json_shapes

Shape = tuple[int, ...]

MOST_FLOPS = 10**18
"""No call has more FLOPs: the fastest devices would need minutes for it. Shapes with more are damaged."""


def _mm(shapes: Sequence[Shape]) -> int:
    (*batch, m, k), (*_, n) = shapes[0], shapes[1]
    return 2 * prod(batch) * m * k * n


def _linear(shapes: Sequence[Shape]) -> int:
    return 2 * prod(shapes[0]) * shapes[1][0]


def _attention(shapes: Sequence[Shape]) -> int:
    (*batch, queries, d), (*_, keys, _), (*_, d_value) = shapes[:3]
    return 2 * prod(batch) * queries * keys * (d + d_value)


def _attention_backward(shapes: Sequence[Shape]) -> int:
    # Three products of depth d: the scores again, the gradients of queries and keys. Two of depth d_value: those of
    # scores and values.
    (*batch, queries, d), (*_, keys, _), (*_, d_value) = shapes[1:4]
    return 2 * prod(batch) * queries * keys * (3 * d + 2 * d_value)


FORMULAS: dict[str, Callable[[Sequence[Shape]], int]] = {
    "aten::mm": _mm,
    "aten::bmm": _mm,
    "aten::addmm": lambda shapes: _mm(shapes[1:]),
    "aten::baddbmm": lambda shapes: _mm(shapes[1:]),
    "aten::_scaled_mm": _mm,
    "aten::linear": _linear,
    "aten::_scaled_dot_product_flash_attention": _attention,
    "aten::_scaled_dot_product_efficient_attention": _attention,
    "aten::_scaled_dot_product_cudnn_attention": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_flash_attention_backward": _attention_backward,
    "aten::_scaled_dot_product_efficient_attention_backward": _attention_backward,
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention_backward,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}
"""FLOPs by operator, from its input shapes, without convolutions (`convolution`)."""

CONVOLUTIONS = frozenset(
    f"aten::{name}"
    for name in ("conv1d", "conv2d", "conv3d", "convolution", "_convolution", "cudnn_convolution", "miopen_convolution")
)
"""Forward convolutions: the first inputs are the data and the weight."""

BACKWARD_CONVOLUTIONS: dict[str, tuple[int, int, int]] = {
    "aten::convolution_backward": (0, 1, 2),
    "aten::cudnn_convolution_backward": (1, 0, 2),
    "aten::miopen_convolution_backward": (1, 0, 2),
}
"""Backward convolutions, one per library in PyTorch 1.10 and before: the places of gradient, data and weight."""


def operator_flops(name: str, shapes_json: str) -> int | None:
    """Return the FLOPs of one call; None if the operator is not a matrix product or its shapes are missing."""
    formula = FORMULAS.get(name)
    if formula is None:
        return None
    try:
        flops = formula(json_shapes(shapes_json))
    except (ValueError, IndexError):
        return None
    return flops if 0 < flops <= MOST_FLOPS else None


@dataclass(frozen=True)
class Convolution:
    """The shapes of one convolution.

    Attributes:
        output: Shape of its output. Strides and padding are not recorded, so a forward pass does not show it. The
            backward of the same data and weight does.
    """

    data: Shape
    weight: Shape
    output: Shape | None

    def flops(self, output: Shape) -> int:
        """FLOPs of one pass: the forward, or one of the two gradients, which cost the same. 0 for damaged shapes."""
        flops = 2 * output[0] * prod(output[2:]) * prod(self.weight)
        return flops if 0 < flops <= MOST_FLOPS else 0


def convolution(name: str, shapes_json: str) -> Convolution | None:
    """Return the shapes of a convolution, forward or backward; ``None`` for other operators and missing shapes."""
    shapes = json_shapes(shapes_json)
    places = BACKWARD_CONVOLUTIONS.get(name)
    if places is None and name not in CONVOLUTIONS:
        return None
    output, data, weight = places or (None, 0, 1)
    if len(shapes) <= max(data, weight) or len(shapes[data]) < 3 or len(shapes[data]) != len(shapes[weight]):
        return None
    return Convolution(shapes[data], shapes[weight], None if output is None else shapes[output])


def is_depthwise(name: str, shapes_json: str) -> bool:
    """Return whether an operator convolves each channel on its own. Memory bounds such convolutions.

    Example:
        >>> is_depthwise("aten::cudnn_convolution", "[[8,64,32,32],[64,1,3,3]]")
        True
        >>> is_depthwise("aten::cudnn_convolution", "[[8,64,32,32],[64,64,3,3]]")
        False
    """
    found = convolution(name, shapes_json)
    return found is not None and len(found.data) > 2 and found.data[1] > 1 and found.weight[1:2] == (1,)
