"""Count the parameters, MACs, FLOPs and bytes of a model, layer by layer, without running its arithmetic."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator, OpOverload
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lightning_perf.inference.count_document import Count, LayerCount
from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.operators import find_formula, is_free, moves_data

__all__ = ["count_model"]


def count_model(module: nn.Module, input_shape: tuple[int, ...], batch: int = 1) -> Count:
    """Count what one forward pass takes.

    Shapes alone decide it: a copy on the meta device runs, which has no data. Only a model whose ``forward`` looks at
    its data runs on the CPU, with zeros and without fused kernels, which have no formula.

    Args:
        module: The model, from one float tensor; it is left as it is and counted in eval mode.
        input_shape: Shape of one input, without the batch.
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
        raise InferenceError("A TorchScript module cannot be counted: its layers are hidden. Count the model before.")
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
    """What a module has taken so far."""

    path: str
    kind: str
    calls: int = 0
    output_shape: tuple[int, ...] = ()
    flops: int = 0
    parameters: int = 0
    bytes_moved: int = 0
    uncounted: set[str] = field(default_factory=set)


@dataclass
class _Call:
    """A module's forward that is running."""

    row: _Row
    input_bytes: int
    used: dict[int, Tensor] = field(default_factory=dict)
    operator_bytes: int = 0
    moved: bool = False
    has_children: bool = False


class _Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees each operator and books it to the innermost module that runs.

    Operators without a formula are taken apart into those that PyTorch itself composes them of, where it does.
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

    def enter(self, path: str, inputs: Any) -> None:
        if self.calls:
            self.calls[-1].has_children = True
        row = self.rows[path]
        if row.calls == 0:
            self.order.append(row)
        row.calls += 1
        self.calls.append(_Call(row, _size(inputs)))

    def leave(self, output: Any) -> None:
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
            self._book_state(call, tensor)
        if formula := find_formula(func):
            call.row.flops += int(formula(*args, **kwargs, out_val=result))
        elif not is_free(func):
            call.row.uncounted.add(str(func if isinstance(func, HigherOrderOperator) else func.overloadpacket))
        if moves_data(func):
            call.moved = True
            call.operator_bytes += _size(inputs) + _size(result)

    def _book_state(self, call: _Call, tensor: Tensor) -> None:
        key = id(tensor)
        if key not in self.parameters and key not in self.buffers:
            return
        call.used[key] = tensor
        if key not in self.used:
            self.used[key] = tensor
            if key in self.parameters:
                call.row.parameters += tensor.numel()


@contextmanager
def _followed(module: nn.Module, ledger: _Ledger) -> Iterator[None]:
    """Tell the ledger where the forward pass is."""

    def enter(path: str) -> Callable[..., None]:
        return lambda _, inputs, keywords: ledger.enter(path, (inputs, keywords))

    handles = []
    for path, child in module.named_modules():
        handles.append(child.register_forward_pre_hook(enter(path), with_kwargs=True, prepend=True))
        handles.append(child.register_forward_hook(lambda _, __, output: ledger.leave(output)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _count(module: nn.Module, shape: tuple[int, ...]) -> Count:
    """Count a copy, on the device that it is on."""
    module = module.eval()
    parameters = list(module.parameters())
    dtypes = {tensor.dtype for tensor in parameters if tensor.is_floating_point()}
    device = parameters[0].device if parameters else torch.device("meta")
    inputs = torch.zeros(shape, dtype=dtypes.pop() if len(dtypes) == 1 else torch.float32, device=device)
    ledger = _Ledger(module)
    with (
        torch.no_grad(),
        _unfused(),
        _followed(module, ledger),
        ledger,
    ):
        output = module(inputs)
    outputs = _tensors(output)
    layers = tuple(_layer(row) for row in ledger.order if row.bytes_moved or row.flops or row.uncounted)
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
    """Attention and recurrent layers as the operators that they are made of: their fused forms have no formula."""
    fast_path, mkldnn = torch.backends.mha.get_fastpath_enabled(), bool(torch.backends.mkldnn.enabled)
    torch.backends.mha.set_fastpath_enabled(False)
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]  # a property that sets a flag
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        torch.backends.mkldnn.enabled = mkldnn  # type: ignore[assignment]


def _layer(row: _Row) -> LayerCount:
    return LayerCount(
        path=row.path,
        kind=row.kind,
        calls=row.calls,
        output_shape=row.output_shape,
        macs=row.flops // 2,
        flops=row.flops,
        parameters=row.parameters,
        bytes_moved=row.bytes_moved,
        arithmetic_intensity=row.flops / row.bytes_moved if row.bytes_moved else None,
        uncounted=tuple(sorted(row.uncounted)),
    )


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _size(tree: Any) -> int:
    """Bytes of the distinct tensors; of one that repeats its numbers (`expand`), those that there are."""
    distinct = {id(tensor): tensor for tensor in _tensors(tree)}
    return sum(min(tensor.nbytes, tensor.untyped_storage().nbytes()) for tensor in distinct.values())


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
