"""Finds the types, layouts and shapes that each call would get in another setting.

A recording does not say which tensor an operator reads. But it lists the calls in order, with the type, shape and
strides of each input. Each call is made twice on tensors without values: as recorded, and in the other setting. The
outputs of the first become the recorded inputs of later calls. So a later call reads the output of the latest call
that returned such a tensor. Autocast itself decides which operators it casts, so its lists are not repeated here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor
from torch.utils._pytree import tree_map

from lightning_perf.analysis.model.operators import OperatorCalls
from lightning_perf.probe.replay.arguments import TYPES, Argument, Bound, NotCallableError, TensorInfo, bind
from lightning_perf.probe.replay.messages import Setting

WEIGHTS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution", "_convolution"), (1, 2)),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), (1, 2)),
    **dict.fromkeys(("linear", "prelu"), (1, 2)),
    **dict.fromkeys(("batch_norm", "instance_norm"), (1, 2, 3, 4)),
    **dict.fromkeys(("layer_norm", "group_norm", "rms_norm"), (2, 3)),
    "group_norm": (2, 3),
    **dict.fromkeys(("embedding", "embedding_bag"), (0,)),
    "lstm": (2,),
    "gru": (2,),
}
"""Places of weights and buffers among the arguments of operators. They belong to the model, not to the data flow."""

CONVOLUTIONS = ("conv2d", "convolution", "_convolution", "conv_transpose2d")

SUMS = ("add", "add_")

LIKE_INPUT = ("batch_norm",)
"""Operators with an output of the type and layout of their first input, if that has no gaps. To compute it, torch needs
a millisecond, and loads a compiler first."""

UNCHANGED = ("dropout", "feature_dropout", "alpha_dropout", "contiguous", "flatten", "to", "type_as")
"""Operators that may return their input itself. They then have no backward pass, and the gradient passes through."""

RUNNING = {"batch_norm": (3, 4), "instance_norm": (3, 4)}
"""Places of buffers, which need no gradient."""

REPEATING = ("expand", "broadcast_to", "repeat")
"""Operators that may copy a tensor for each sample of the batch."""

BY_PLACE = ("expand", "broadcast_to", "new_zeros", "new_empty", "new_ones")

SIZES = ("view", "reshape", "_unsafe_view", "new_zeros", "new_empty", "new_ones", *REPEATING)
"""Operators with sizes among their arguments, which depend on the batch size."""

Key = tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]


def is_channels_last(info: TensorInfo) -> bool:
    """Return whether torch takes a 4-dimensional tensor for one in channels last.

    The rule is that of ``is_channels_last_strides_2d`` (c10/core/MemoryFormat.h), also for a single channel.
    """
    if len(info.shape) != 4 or info.strides[1] == 0:
        return False
    least = 0
    for place in (1, 3, 2, 0):
        size, stride = info.shape[place], info.strides[place]
        if size == 0 or stride < least or (place == 0 and least == info.strides[1]):
            return False
        least = stride * max(1, size)
    return True


def _channels_last(info: TensorInfo) -> TensorInfo:
    if len(info.shape) != 4:
        return info
    _, c, h, w = info.shape
    return replace(info, strides=(h * w * c, 1, w * c, c))


def weights_of(bound: Bound) -> tuple[int, ...]:
    """Return the places of an operator's weights among its arguments."""
    return WEIGHTS.get(bound.name, ())


class _Flow:
    """The latest producer of each kind of tensor, in the recording and in a setting."""

    def __init__(self, setting: Setting, batch_size: int | None, parameters: frozenset[tuple[int, ...]]) -> None:
        self._setting, self._batch, self._parameters = setting, batch_size, parameters
        self._produced: dict[Key, TensorInfo] = {}
        self._sums: dict[Key, TensorInfo] = {}
        self._any_type: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[TensorInfo, TensorInfo]] = {}

    def produce(self, recorded: TensorInfo, changed: TensorInfo, *, is_sum: bool) -> None:
        key = _key(recorded)
        self._produced[key] = changed
        if is_sum or key not in self._sums:
            self._sums[key] = changed
        self._any_type[recorded.shape, recorded.strides] = (recorded, changed)

    def forget(self, recorded: TensorInfo) -> None:
        """Forget the producer of such a tensor: the latest one failed in this setting."""
        key = _key(recorded)
        self._produced.pop(key, None)
        self._sums.pop(key, None)
        self._any_type.pop((recorded.shape, recorded.strides), None)

    def of_list(self, info: TensorInfo) -> tuple[TensorInfo, TensorInfo]:
        """Return an element of a list in the recording, which does not have its type, and in the setting."""
        found = self._any_type.get((info.shape, info.strides))
        return found if found is not None else (info, self._unproduced(info))

    def argument(self, info: TensorInfo) -> TensorInfo:
        found = self._produced.get(_key(info))
        return found if found is not None else self._unproduced(info)

    def residual(self, info: TensorInfo) -> TensorInfo:
        """Return the latest sum of this shape, or the first tensor of it: the input of a residual branch."""
        found = self._sums.get(_key(info))
        return found if found is not None else self._unproduced(info)

    def weight(self, info: TensorInfo) -> TensorInfo:
        return _channels_last(info) if self._setting.channels_last else info

    def _unproduced(self, info: TensorInfo) -> TensorInfo:
        """Return a parameter, or an input of the model."""
        if info.shape in self._parameters and info.dtype.is_floating_point:
            return replace(info, gradient=True)
        if self._setting.batch == 1 or not self._batch or not info.shape:
            return info
        for place in (0, 1):  # hidden states have the batch at the second place
            if place < len(info.shape) and info.shape[place] == self._batch:
                return _resized(info, place, self._setting.batch)
        return info


def _key(info: TensorInfo) -> Key:
    return info.dtype, info.shape, info.strides


def _resized(info: TensorInfo, place: int, factor: int) -> TensorInfo:
    """Return a tensor with more elements in one dimension, with the same order of dimensions in memory."""
    shape = tuple(size * factor if at == place else size for at, size in enumerate(info.shape))
    own = info.strides[place]
    strides = tuple(
        stride * factor if stride > own and own > 0 and at != place else stride
        for at, stride in enumerate(info.strides)
    )
    return replace(info, shape=shape, strides=strides)


def follow(
    calls: OperatorCalls, settings: Sequence[Setting], batch_size: int | None, device: str
) -> tuple[list[dict[str, Bound]], dict[int, str]]:
    """Find the arguments of each call in each setting. The first setting is that of the recording.

    The result has the arguments of each call by setting, unless the call fails in it, and the reasons for calls
    that cannot be made at all.
    """
    bound, skipped = _bound(calls)
    shapes = frozenset(parameter.shape for parameter in calls.parameters if parameter.type in TYPES)
    flows = {setting.name: _Flow(setting, batch_size, shapes) for setting in settings}
    current = settings[0]
    found: list[dict[str, Bound]] = [{} for _ in calls.calls]
    seen: dict[tuple[int, str, tuple[Any, ...]], list[TensorInfo] | None] = {}
    with torch.enable_grad():
        for place in calls.order:
            if place not in bound:
                continue
            made = bound[place]
            recorded = _arguments(made, flows[current.name], current, is_current=True)
            outputs = _outputs(seen, place, recorded, current, device)
            if outputs is None:
                skipped.setdefault(place, "it fails without values")
                continue
            has_backward = calls.calls[place].has_backward
            for setting in settings:
                arguments, changed = recorded, outputs
                if setting is not current:
                    arguments = _arguments(made, flows[setting.name], setting, batch_size, is_current=False)
                    arguments = _with_gradients_of(recorded, arguments)
                    changed = _outputs(seen, place, arguments, setting, device) or []
                    if not changed and outputs:
                        for before in outputs:
                            flows[setting.name].forget(before)
                        continue
                # If a call repeats with other inputs in this setting, the first one stands for all.
                found[place].setdefault(setting.name, arguments)
                if setting is not current and not _has_tensors(made):
                    continue  # the tensor of a factory depends on the batch like an input of the model
                for before, after in zip(outputs, changed, strict=False):
                    gradient = has_backward or _passes_gradient(recorded)
                    flows[setting.name].produce(before, after.with_gradient(gradient), is_sum=made.name in SUMS)
    return found, skipped


def _bound(calls: OperatorCalls) -> tuple[dict[int, Bound], dict[int, str]]:
    """Return the calls that can be made, and the reasons for those that cannot, by their places."""
    bound: dict[int, Bound] = {}
    skipped: dict[int, str] = {}
    for place, call in enumerate(calls.calls):
        try:
            bound[place] = bind(call)
        except NotCallableError as error:  # noqa: PERF203  (one call must not cost the others)
            skipped[place] = str(error)
    return bound, skipped


def _arguments(call: Bound, flow: _Flow, setting: Setting, batch_size: int | None = None, *, is_current: bool) -> Bound:
    weights = weights_of(call)
    buffers = RUNNING.get(call.name, ())
    residual = _residual_place(call)

    def one(place: int, value: Argument) -> Argument:
        if isinstance(value, TensorInfo):
            if place in weights:
                return flow.weight(value).with_gradient(place not in buffers)
            changed = flow.residual(value) if place == residual else flow.argument(value)
            return replace(value, gradient=changed.gradient) if is_current else changed
        if isinstance(value, list) and value and all(isinstance(part, TensorInfo) for part in value):
            if place in weights:
                return [flow.weight(part).with_gradient(True) for part in value]
            pairs = [flow.of_list(part) for part in value]
            return [replace(pair[0], gradient=pair[1].gradient) if is_current else pair[1] for pair in pairs]
        return value

    arguments = tuple(one(place, value) for place, value in enumerate(call.arguments))
    made = replace(call, arguments=arguments)
    if setting.batch != 1 and call.name in SIZES:
        made = _resized_sizes(call, made, setting.batch, batch_size)
    return made


def _passes_gradient(call: Bound) -> bool:
    """Return whether a call without a backward pass may be one that returned its input, with a gradient."""
    first = call.arguments[0] if call.arguments else None
    return call.name in UNCHANGED and isinstance(first, TensorInfo) and first.gradient


def _residual_place(call: Bound) -> int | None:
    """Return the place of the input of a residual branch in a sum of two tensors alike; ``None`` in any other call.

    A sum usually has the input of the branch first, unless it writes to the branch's own output.
    """
    if call.name not in SUMS or len(call.arguments) < 2:
        return None
    first, second = call.arguments[:2]
    if not isinstance(first, TensorInfo) or not isinstance(second, TensorInfo) or _key(first) != _key(second):
        return None
    return 1 if call.in_place else 0


def _with_gradients_of(recorded: Bound, made: Bound) -> Bound:
    """Return a call with gradients for the same tensors as the recorded call."""

    def one(old: Argument, new: Argument) -> Argument:
        if isinstance(old, TensorInfo) and isinstance(new, TensorInfo):
            return new.with_gradient(old.gradient)
        if isinstance(old, list) and isinstance(new, list) and old and isinstance(old[0], TensorInfo):
            return [one(before, after) for before, after in zip(old, new, strict=True)]
        return new

    pairs = zip(recorded.arguments, made.arguments, strict=True)
    return replace(made, arguments=tuple(one(old, new) for old, new in pairs))


def _resized_sizes(call: Bound, made: Bound, factor: int, batch_size: int | None) -> Bound:
    """Multiply the size among the arguments that grows with the batch."""
    before, after = call.arguments[0], made.arguments[0]
    if not isinstance(before, TensorInfo) or not isinstance(after, TensorInfo):
        return made
    grown = next((at for at, (a, b) in enumerate(zip(before.shape, after.shape, strict=False)) if a != b), None)
    if grown is None and call.name not in REPEATING:
        return made

    def place_of(sizes: Sequence[int]) -> int | None:
        if grown is None:
            return repeated_place(before.shape, sizes, batch_size)
        if call.name == "repeat":
            return None  # its sizes are factors, and its input has grown
        whole = batch_size or before.shape[grown]
        return grown_place(before.shape, grown, sizes, whole, by_place=call.name in BY_PLACE)

    def sizes(value: Argument) -> Argument:
        if not isinstance(value, list) or not all(type(size) is int for size in value):
            return value
        at = place_of(value)
        return value if at is None else [size * factor if place == at else size for place, size in enumerate(value)]

    return replace(made, arguments=tuple(sizes(value) for value in made.arguments))


def repeated_place(shape: Sequence[int], sizes: Sequence[int], batch_size: int | None) -> int | None:
    """Return the place among the sizes at which a tensor is copied for each sample; ``None`` if it is not.

    Args:
        shape: Shape of the tensor, which does not depend on the batch.

    Example:
        >>> repeated_place((1, 1, 192), (16, -1, -1), 16), repeated_place((4, 1), (1, 1, 4), 16)
        (0, None)
    """
    own = [1] * (len(sizes) - len(shape)) + list(shape)
    pairs = enumerate(zip(own, sizes, strict=True))
    return next((place for place, (before, size) in pairs if before == 1 and size == batch_size and size > 1), None)


def grown_place(
    shape: Sequence[int], grown: int, sizes: Sequence[int], batch_size: int, *, by_place: bool = False
) -> int | None:
    """Return the place among the sizes of a view that grows with the batch.

    Args:
        sizes: Sizes of the view, at most one of them -1.
        by_place: Whether dimensions keep their places from the last one on, as when a tensor is expanded.

    Returns:
        The place; ``None`` if the size is -1, so that torch computes it.
    """
    if by_place:
        place = len(sizes) - len(shape) + grown
        return place if sizes[place] == shape[grown] else None
    known = prod(size for size in sizes if size > 0)
    whole = [size if size >= 0 else prod(shape) // max(1, known) for size in sizes]
    begin = prod(shape[:grown])
    end = begin * shape[grown]
    # A view splits or joins neighbouring dimensions, so products of the sizes before a dimension stay.
    inside = [
        place
        for place, size in enumerate(whole)
        if size > 1 and prod(whole[:place]) < end and prod(whole[: place + 1]) > begin
    ]
    inside.sort(key=lambda place: (whole[place] != shape[grown], whole[place] != batch_size, whole[place] % batch_size))
    return inside[0] if inside and sizes[inside[0]] >= 0 else None


def _outputs(
    seen: dict[tuple[int, str, tuple[Any, ...]], list[TensorInfo] | None],
    place: int,
    call: Bound,
    setting: Setting,
    device: str,
) -> list[TensorInfo] | None:
    """Return the outputs of a call on tensors without values; ``None`` if it fails."""
    key = (place, setting.autocast or "", _hashable(call.arguments))
    if key not in seen:
        try:
            seen[key] = _run(call, setting, device)
        except Exception:  # any operator may fail without values, in its own way
            seen[key] = None
    return seen[key]


def _has_tensors(call: Bound) -> bool:
    parts = (part for value in call.arguments for part in (value if isinstance(value, list) else [value]))
    return any(isinstance(part, TensorInfo) for part in parts)


def _hashable(value: Any) -> Any:
    return tuple(_hashable(part) for part in value) if isinstance(value, list | tuple) else value


def _run(call: Bound, setting: Setting, device: str) -> list[TensorInfo]:
    if call.name in LIKE_INPUT and isinstance(info := call.arguments[0], TensorInfo) and _is_dense(info):
        return [info]

    def make(value: Argument) -> Any:
        if isinstance(value, TensorInfo):
            inside = torch.empty_strided(value.shape, value.strides, dtype=value.dtype, device="meta")
            # Some products take another way if they need gradients.
            return Valueless(inside, device).requires_grad_(value.gradient and not call.in_place)
        return [make(part) for part in value] if isinstance(value, list) else value

    dtype = getattr(torch, setting.autocast) if setting.autocast else None
    with torch.autocast(device, dtype=dtype, enabled=dtype is not None, cache_enabled=False):
        result = call.call([make(value) for value in call.arguments])
    results = result if isinstance(result, tuple | list) else (result,)
    infos = [
        TensorInfo(tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))
        for tensor in results
        if isinstance(tensor, torch.Tensor)
    ]
    return [_channels_last(info) for info in infos] if _returns_channels_last(call) else infos


def _is_dense(info: TensorInfo) -> bool:
    """Return whether a tensor is contiguous in one of the two usual layouts."""
    contiguous = tuple(prod(info.shape[place + 1 :]) for place in range(len(info.shape)))
    return prod(info.shape) > 0 and info.strides in (contiguous, _channels_last(info).strides)


def _returns_channels_last(call: Bound) -> bool:
    """Return whether a convolution computes in channels last: one of its inputs is enough."""
    infos = [value for value in call.arguments[:2] if isinstance(value, TensorInfo)]
    return call.name in CONVOLUTIONS and any(is_channels_last(info) for info in infos)


class Valueless(Tensor):
    """A tensor of a device, with a tensor of the device ``meta`` inside."""

    _inside: Tensor
    __slots__ = ("_inside",)

    @staticmethod
    def __new__(cls, inside: Tensor, device: str) -> Valueless:
        """Wrap a tensor of the device ``meta``."""
        wrapper: Valueless = torch.Tensor._make_wrapper_subclass(
            cls,
            inside.size(),
            strides=inside.stride(),
            storage_offset=inside.storage_offset(),
            dtype=inside.dtype,
            device=torch.device(device),
        )
        wrapper._inside = inside
        return wrapper

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's own signature has other names
        cls,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operator on the tensors inside."""
        devices: list[str] = []

        def unwrap(value: Any) -> Any:
            if isinstance(value, Valueless):
                devices.append(value.device.type)
                return value._inside
            return torch.device("meta") if isinstance(value, torch.device) else value

        result = func(*tree_map(unwrap, list(args)), **tree_map(unwrap, dict(kwargs or {})))
        if func._schema.is_mutable and args and isinstance(args[0], Valueless) and result is args[0]._inside:
            return args[0]

        def wrap(value: Any) -> Any:
            return Valueless(value, devices[0]) if isinstance(value, Tensor) and devices else value

        return tree_map(wrap, result)
