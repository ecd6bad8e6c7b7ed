"""What each ATen operator costs: torch's own formulas, and which operators count zero."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils.flop_counter import flop_registry

__all__ = ["find_formula", "is_free", "moves_data"]

aten = torch.ops.aten

Formula = Callable[..., int]


def _mv_flops(matrix: torch.Tensor, *_: Any, **__: Any) -> int:
    """Matrix times vector, ``(m, n) @ (n,)``: m·n multiply-accumulates."""
    return 2 * prod(matrix.shape)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MORE: dict[Any, Formula] = {
    aten.mv: _mv_flops,
    aten.dot: _mv_flops,
    aten.addmv: lambda _, matrix, *__, **___: _mv_flops(matrix),
}
"""Products that torch's counter has no formula for (torch 2.15)."""

_VIEWS = _names(
    """
    _unsafe_view unsafe_split unsafe_split_with_sizes unsafe_chunk as_strided_ transpose_ t_ squeeze_ unsqueeze_
    empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize_ set_ lift_fresh
    """
)
"""Operators that touch no data, beside those that PyTorch marks as views."""

_FREE = _names(
    """
    native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm
    miopen_batch_norm batch_norm_with_update native_layer_norm native_group_norm _fused_rms_norm _softmax
    _log_softmax _safe_softmax _masked_softmax native_dropout cumsum max_pool2d_with_indices max_pool3d_with_indices
    mkldnn_max_pool2d quantized_max_pool2d avg_pool1d avg_pool2d avg_pool3d adaptive_max_pool2d adaptive_max_pool3d
    _adaptive_avg_pool2d _adaptive_avg_pool3d fractional_max_pool2d fractional_max_pool3d upsample_nearest1d
    upsample_nearest2d upsample_nearest3d _upsample_nearest_exact2d upsample_linear1d upsample_bilinear2d
    upsample_bicubic2d upsample_trilinear3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa reflection_pad1d
    reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d constant_pad_nd
    pixel_shuffle pixel_unshuffle channel_shuffle im2col col2im cat stack copy clone _to_copy contiguous new_zeros
    new_full new_ones zeros zeros_like ones ones_like full full_like scalar_tensor arange linspace lift_fresh_copy
    eye tril triu tril_indices triu_indices rand randn rand_like randn_like bernoulli index index_select index_put
    _unsafe_index _unsafe_index_put gather scatter select_scatter slice_scatter embedding masked_fill where roll
    flip rot90 repeat repeat_interleave take topk sort argsort argmax argmin max min nonzero unique_consecutive
    one_hot fill zero hardswish hardsigmoid hardtanh silu mish relu6 leaky_relu elu celu prelu rrelu softplus
    split_with_sizes_copy _local_scalar_dense equal searchsorted bucketize glu native_channel_shuffle _reshape_copy
    item isnan isinf var_mean std_mean linalg_vector_norm _weight_norm_interface block_diag
    """
)
"""Operators that multiply no matrices: normalisation, pooling, resampling, copies, indices."""


def find_formula(operator: OpOverload | HigherOrderOperator) -> Formula | None:
    """The formula of an operator's FLOPs, called with its arguments and ``out_val``, its result.

    Args:
        operator: What runs.

    Returns:
        That of `torch.utils.flop_counter`, which counts two for a multiply-accumulate and nothing for a bias, or one of
        ours where it has none; None without a formula.
    """
    key = operator.overloadpacket if isinstance(operator, OpOverload) else operator
    return flop_registry.get(key) or _MORE.get(key)


def is_free(operator: OpOverload | HigherOrderOperator) -> bool:
    """Whether an operator counts zero FLOPs by the convention, which is that of `Count`."""
    if not isinstance(operator, OpOverload) or operator.namespace not in ("aten", "prims", "prim"):
        return False
    if operator.is_view or {torch.Tag.pointwise, torch.Tag.reduction} & set(operator.tags):
        return True
    name = operator.overloadpacket.__name__
    return name in _VIEWS or name in _FREE or name.removesuffix("_") in _FREE


def moves_data(operator: OpOverload | HigherOrderOperator) -> bool:
    """Whether an operator reads or writes tensors: views and fresh, unfilled tensors do not."""
    if not isinstance(operator, OpOverload):
        return True
    return not operator.is_view and operator.overloadpacket.__name__ not in _VIEWS
