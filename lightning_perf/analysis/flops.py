"""Floating-point operations of matrix products, from the shapes of the operators that ran.

The formulas count a multiply-add as two operations and are those of ``torch.utils.flop_counter``
(https://github.com/pytorch/pytorch/blob/main/torch/utils/flop_counter.py), applied to what a recording tells.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any

__all__ = ["FORMULAS", "convolution_key", "convolution_output", "operator_flops"]

Shape = tuple[int, ...]


def _mm(shapes: list[Shape]) -> int:
    (*batch, m, k), (*_, n) = shapes[0], shapes[1]
    return 2 * prod(batch) * m * k * n


def _linear(shapes: list[Shape]) -> int:
    return 2 * prod(shapes[0]) * shapes[1][0]


def _convolution_backward(shapes: list[Shape]) -> int:
    """Of one gradient; the other costs the same."""
    gradient, weight = shapes[0], shapes[2]
    return 2 * gradient[0] * prod(gradient[2:]) * prod(weight)


def _attention(shapes: list[Shape]) -> int:
    (*batch, queries, d), (*_, keys, _), (*_, d_value) = shapes[:3]
    return 2 * prod(batch) * queries * keys * (d + d_value)


def _attention_backward(shapes: list[Shape]) -> int:
    # Scores again, and the gradients of queries and keys: three products of depth d; of scores and values: two of d_value.
    (*batch, queries, d), (*_, keys, _), (*_, d_value) = shapes[1:4]
    return 2 * prod(batch) * queries * keys * (3 * d + 2 * d_value)


FORMULAS: dict[str, Callable[[list[Shape]], int]] = {
    "aten::mm": _mm,
    "aten::bmm": _mm,
    "aten::addmm": lambda shapes: _mm(shapes[1:]),
    "aten::baddbmm": lambda shapes: _mm(shapes[1:]),
    "aten::_scaled_mm": _mm,
    "aten::linear": _linear,
    "aten::convolution_backward": _convolution_backward,
    "aten::_scaled_dot_product_flash_attention": _attention,
    "aten::_scaled_dot_product_efficient_attention": _attention,
    "aten::_scaled_dot_product_cudnn_attention": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_flash_attention_backward": _attention_backward,
    "aten::_scaled_dot_product_efficient_attention_backward": _attention_backward,
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention_backward,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}
"""FLOPs by operator, of its input shapes. A forward convolution needs more: `convolution_output`."""

CONVOLUTIONS = frozenset(
    f"aten::{name}"
    for name in ("conv1d", "conv2d", "conv3d", "convolution", "_convolution", "cudnn_convolution", "miopen_convolution")
)
"""Forward convolutions: inputs are the data and the weight."""


@lru_cache(maxsize=65536)
def _shapes(shapes_json: str) -> list[Shape]:
    try:
        found: Any = json.loads(shapes_json) if shapes_json else []
    except ValueError:
        return []
    if not isinstance(found, list):
        return []
    return [
        tuple(s) if isinstance(s, list) and all(type(n) is int for n in s) else () for s in found
    ]  # an entry that is no shape stays, so that the others keep their places


def operator_flops(name: str, shapes_json: str) -> int | None:
    """The FLOPs of one call of an operator.

    Args:
        name: The operator, as ``aten::addmm``.
        shapes_json: Its ``Input Dims`` as JSON text.

    Returns:
        The count, or ``None`` when the operator is not a matrix product or its shapes do not tell.

    Example:
        >>> operator_flops("aten::addmm", "[[64],[32,128],[128,64]]")
        524288
        >>> operator_flops("aten::relu", "[[32,64]]") is None
        True
    """
    formula = FORMULAS.get(name)
    if formula is None:
        return None
    try:
        flops = formula(_shapes(shapes_json))
    except (ValueError, IndexError):
        return None
    return flops if flops > 0 else None


def convolution_key(name: str, shapes_json: str) -> tuple[Shape, Shape] | None:
    """The shapes of data and weight of a convolution, forward or backward; ``None`` for other operators.

    Strides and padding are not among the recorded shapes, so that a forward alone does not tell its output; the backward
    of the same shapes does (`convolution_output`).
    """
    shapes = _shapes(shapes_json)
    if name == "aten::convolution_backward":
        shapes = shapes[1:]
    elif name not in CONVOLUTIONS:
        return None
    if len(shapes) < 2 or len(shapes[0]) < 3 or len(shapes[0]) != len(shapes[1]):
        return None
    return shapes[0], shapes[1]


def convolution_output(shapes_json: str) -> Shape:
    """The output's shape that a convolution's backward records: that of the incoming gradient."""
    return _shapes(shapes_json)[0]
