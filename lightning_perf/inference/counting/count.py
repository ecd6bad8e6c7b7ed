"""Count the arithmetic of a model, and find the peak rates of this machine's device."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator, OpOverload
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from lightning_perf.inference.counting.document import Count, LayerCount, Peaks
from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.model import cpu_threads, finish
from lightning_perf.machine.environment import cpu_name
from lightning_perf.machine.hardware import find_device

aten = torch.ops.aten

Formula = Callable[..., int]


def _mv_flops(matrix: torch.Tensor, *_: Any, **__: Any) -> int:
    """Count a matrix times a vector, ``(m, n) @ (n,)``: m·n multiply-accumulates."""
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
"""Operators that touch no data, in addition to those that PyTorch marks as views."""

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
    """Return the formula for an operator's FLOPs, called with its arguments and its result as ``out_val``.

    It is that of `torch.utils.flop_counter`, which counts two per multiply-accumulate and nothing for a bias, else one
    of this module, or None.
    """
    key = operator.overloadpacket if isinstance(operator, OpOverload) else operator
    return flop_registry.get(key) or _MORE.get(key)


def is_free(operator: OpOverload | HigherOrderOperator) -> bool:
    """Say whether an operator counts zero FLOPs by the convention of `Count`."""
    if not isinstance(operator, OpOverload) or operator.namespace not in ("aten", "prims", "prim"):
        return False
    if operator.is_view or {torch.Tag.pointwise, torch.Tag.reduction} & set(operator.tags):
        return True
    name = operator.overloadpacket.__name__
    return name in _VIEWS or name in _FREE or name.removesuffix("_") in _FREE


def moves_data(operator: OpOverload | HigherOrderOperator) -> bool:
    """Say whether an operator reads or writes tensors: views and new, unfilled tensors do not."""
    if not isinstance(operator, OpOverload):
        return True
    return not operator.is_view and operator.overloadpacket.__name__ not in _VIEWS


def count_model(module: nn.Module, input_shape: tuple[int, ...], batch: int = 1) -> Count:
    """Count the operations, parameters and bytes of one forward pass.

    The counts depend on shapes only, so a copy of the model runs on the meta device, without data. If the ``forward``
    of a model looks at its data, the copy runs on the CPU, with zeros and without fused kernels, which have no formula.

    Args:
        module: The model, which takes one float tensor. It stays unchanged and is counted in eval mode.
        input_shape: Shape of one input, without the batch dimension.
        batch: Inputs in the batch.

    Returns:
        The figures; `Count` states the convention.

    Raises:
        InferenceError: The model does not take such an input, or cannot be copied.

    Example:
        >>> from torch import nn
        >>> module = nn.Sequential(nn.Conv2d(1, 5, 3), nn.Flatten(), nn.Linear(5 * 26 * 26, 10))
        >>> count = count_model(module, (1, 28, 28))
        >>> count.parameters, count.macs, [layer.macs for layer in count.layers]
        (33860, 64220, [30420, 33800])
    """
    if isinstance(module, torch.jit.ScriptModule):
        raise InferenceError(
            "A TorchScript module cannot be counted: its layers are hidden. Count the model before you script it."
        )
    try:
        return _count(copy.deepcopy(module).to("meta"), (batch, *input_shape))
    except Exception as meta_error:
        try:
            return _count(copy.deepcopy(module).to("cpu"), (batch, *input_shape))
        except Exception as error:
            raise InferenceError(
                f"{type(module).__name__} cannot be counted with an input of shape {(batch, *input_shape)}: "
                f"{_first_line(error)}. Check the shape that the model takes."
            ) from (error if _first_line(error) == _first_line(meta_error) else meta_error)


@dataclass
class _Row:
    """The counts of a module so far."""

    path: str
    kind: str
    calls: int = 0
    output_shape: tuple[int, ...] = ()
    flops: int = 0
    parameters: int = 0
    bytes_moved: int = 0
    uncounted: set[str] = field(default_factory=set)

    def result(self) -> LayerCount:
        return LayerCount(
            path=self.path,
            kind=self.kind,
            calls=self.calls,
            output_shape=self.output_shape,
            macs=self.flops // 2,
            flops=self.flops,
            parameters=self.parameters,
            bytes_moved=self.bytes_moved,
            arithmetic_intensity=self.flops / self.bytes_moved if self.bytes_moved else None,
            uncounted=tuple(sorted(self.uncounted)),
        )


@dataclass
class _Call:
    """A forward call in progress."""

    row: _Row
    input_bytes: int
    used: dict[int, Tensor] = field(default_factory=dict)
    operator_bytes: int = 0
    moved: bool = False
    has_children: bool = False


class _Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds each operator to the counts of the innermost running module.

    An operator without a formula is decomposed if PyTorch can decompose it.
    """

    supports_higher_order_operators = True

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rows = {path: _Row(path, type(child).__name__) for path, child in module.named_modules()}
        self.order: list[_Row] = []
        self.calls: list[_Call] = []
        self.parameters = {id(tensor): tensor for tensor in module.parameters()}
        self.buffers = {id(tensor): tensor for tensor in module.buffers()}
        self.used: dict[int, Tensor] = {}

    def follow(self, module: nn.Module, hooks: ExitStack) -> None:
        """Count from the start to the end of each module's forward."""
        for path, child in module.named_modules():
            enter = partial(self.enter, path)
            hooks.callback(child.register_forward_pre_hook(enter, with_kwargs=True, prepend=True).remove)
            hooks.callback(child.register_forward_hook(self.leave).remove)

    def enter(self, path: str, _: nn.Module, *inputs: Any) -> None:
        if self.calls:
            self.calls[-1].has_children = True
        row = self.rows[path]
        if row.calls == 0:
            self.order.append(row)
        row.calls += 1
        self.calls.append(_Call(row, _size(inputs)))

    def leave(self, _: nn.Module, __: Any, output: Any) -> None:
        call = self.calls.pop()
        tensors = _tensors(output)
        call.row.output_shape = tuple(tensors[0].shape) if tensors else ()
        if call.has_children:
            call.row.bytes_moved += call.operator_bytes
        elif call.moved:
            call.row.bytes_moved += call.input_bytes + _size(output) + _size(list(call.used.values()))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, OpOverload) and find_formula(func) is None:
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        result = func(*args, **kwargs)
        if self.calls:
            self._book(self.calls[-1], func, args, kwargs, result)
        return result

    def _book(self, call: _Call, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        inputs = _tensors((args, kwargs))
        for tensor in inputs:
            key = id(tensor)
            if key in self.parameters and key not in self.used:
                call.row.parameters += tensor.numel()
            if key in self.parameters or key in self.buffers:
                call.used[key] = self.used[key] = tensor
        if formula := find_formula(func):
            call.row.flops += int(formula(*args, **kwargs, out_val=result))
        elif not is_free(func):
            call.row.uncounted.add(str(func if isinstance(func, HigherOrderOperator) else func.overloadpacket))
        if moves_data(func):
            call.moved = True
            call.operator_bytes += _size(inputs) + _size(result)


def _count(module: nn.Module, shape: tuple[int, ...]) -> Count:
    """Count a copy of the model, on the copy's device."""
    module = module.eval()
    parameters = list(module.parameters())
    dtypes = {tensor.dtype for tensor in parameters if tensor.is_floating_point()}
    device = parameters[0].device if parameters else torch.device("meta")
    inputs = torch.zeros(shape, dtype=dtypes.pop() if len(dtypes) == 1 else torch.float32, device=device)
    ledger = _Ledger(module)
    with torch.no_grad(), _unfused(), ExitStack() as hooks, ledger:
        ledger.follow(module, hooks)
        output = module(inputs)
    outputs = _tensors(output)
    layers = tuple(row.result() for row in ledger.order if row.bytes_moved or row.flops or row.uncounted)
    flops = sum(layer.flops for layer in layers)
    bytes_moved = sum(layer.bytes_moved for layer in layers)
    total = sum(tensor.numel() for tensor in parameters)
    return Count(
        input_shape=shape,
        output_shape=tuple(outputs[0].shape) if outputs else (),
        layers=layers,
        macs=flops // 2,
        flops=flops,
        parameters=total,
        unused_parameters=total - sum(layer.parameters for layer in layers),
        size_bytes=_size([*parameters, *module.buffers()]),
        bytes_moved=bytes_moved,
        compulsory_bytes=_size(list(ledger.used.values())) + _size(inputs) + _size(output),
        arithmetic_intensity=flops / bytes_moved if bytes_moved else None,
    )


@contextmanager
def _unfused() -> Iterator[None]:
    """Run attention and recurrent layers as separate operators: the fused forms have no formula."""
    fast_path, mkldnn = torch.backends.mha.get_fastpath_enabled(), bool(torch.backends.mkldnn.enabled)
    torch.backends.mha.set_fastpath_enabled(False)
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]  # a property that sets a flag
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        torch.backends.mkldnn.enabled = mkldnn  # type: ignore[assignment]


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _size(tree: Any) -> int:
    """Return the bytes of the distinct tensors; an expanded tensor counts the bytes of its storage."""
    distinct = {id(tensor): tensor for tensor in _tensors(tree)}
    return sum(min(tensor.nbytes, tensor.untyped_storage().nbytes()) for tensor in distinct.values())


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


LEAST_WORKING_SET_BYTES = 2**18
"""With fewer bytes, the overhead of the call dominates a copy."""

MOST_WORKING_SET_BYTES = 2**30
"""Larger than every cache: more would only use memory."""

SECONDS = 0.25
"""Duration of each measurement."""

_ARITHMETIC = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64"}

SEED = 5
"""Seed of the random matrices."""


def find_peaks(
    device: torch.device, threads: int, dtype: torch.dtype = torch.float32, *, working_set_bytes: int = 2**28
) -> Peaks:
    """Return the peak rates of a device, from the table of devices if it has the device, else measured.

    For FP32 on a GPU in the table, the rates follow the process's TF32 settings: PyTorch computes convolutions in TF32
    by default, and matrix products only after ``torch.set_float32_matmul_precision("high")``.

    Args:
        device: The device.
        threads: CPU threads; ignored on a GPU.
        dtype: Type of the arithmetic.
        working_set_bytes: Memory of the model's weights and tensors; ignored if the table has the device.
    """
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        row = find_device(properties.name, properties.total_memory)
        rate = None if row is None else row.flops_per_s.get(_ARITHMETIC[dtype])
        if row is not None and rate is not None:
            name = str(dtype).removeprefix("torch.")
            has_tf32 = dtype == torch.float32 and torch.version.hip is None
            tf32 = row.flops_per_s.get("tf32", rate) if has_tf32 else rate
            backends: Any = torch.backends
            settings = backends.cuda.matmul, backends.cudnn.conv
            product, convolution = (tf32 if setting.fp32_precision == "tf32" else rate for setting in settings)
            return Peaks(
                properties.name,
                name,
                None,
                product,
                row.bandwidth_bytes_per_s,
                row.source,
                convolution_flops_per_s=None if convolution == product else convolution,
            )
    return measure_peaks(device, threads, dtype, working_set_bytes=working_set_bytes)


def measure_peaks(
    device: torch.device, threads: int, dtype: torch.dtype = torch.float32, *, working_set_bytes: int = 2**28
) -> Peaks:
    """Measure the rates that this device reaches, in about a second.

    The rate of arithmetic comes from a large product of random matrices. Constant matrices would be too fast, because
    bits that do not change take no power: an H200 reached 788 TFLOP/s in BF16 on random data and 894 on zeros.

    The bandwidth is the higher one of a copy and a dot product, which only reads. Both use as much memory as the model:
    weights that fit in a cache are read from it in every call but the first.
    """
    working_set = min(max(working_set_bytes, LEAST_WORKING_SET_BYTES), MOST_WORKING_SET_BYTES)
    sides = (8192,) if device.type == "cuda" else (512, 1024)  # short calls more often run without other load
    half = working_set // 2 // dtype.itemsize
    with torch.inference_mode(), cpu_threads(threads):
        random = torch.Generator(device).manual_seed(SEED)  # leaves the process's own generator alone
        rates = {}
        for side in sides:
            left, right, out = (torch.randn(side, side, dtype=dtype, device=device, generator=random) for _ in range(3))
            rates[side] = 2 * side**3 / _best_s(partial(torch.mm, left, right, out=out), device)
        source, target = torch.ones(half, dtype=dtype, device=device), torch.ones(half, dtype=dtype, device=device)
        copy_s = _best_s(lambda: target.copy_(source), device)
        dot_s = _best_s(lambda: torch.dot(source, target), device)
    side = max(rates, key=rates.__getitem__)
    return Peaks(
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name(),
        dtype=str(dtype).removeprefix("torch."),
        threads=None if device.type == "cuda" else threads,
        flops_per_s=rates[side],
        bandwidth_bytes_per_s=2 * half * dtype.itemsize / min(copy_s, dot_s),
        source=f"measured here: a product of random {side}×{side} matrices; the faster of a copy and a dot product",
    )


def _best_s(call: Callable[[], object], device: torch.device) -> float:
    """Return the shortest time of as many calls as fit into `SECONDS`, at least three after the first."""
    best = float("inf")
    call()
    deadline = time.perf_counter() + SECONDS
    done = 0
    while done < 3 or time.perf_counter() < deadline:
        finish(device)
        began = time.perf_counter()
        call()
        finish(device)
        best = min(best, time.perf_counter() - began)
        done += 1
    return best
