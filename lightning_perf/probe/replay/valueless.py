"""Tensors without values that operators, and autocast, take for tensors of a device.

Operators compute only the type, shape and strides of their results. torch has such tensors for compilers
(``FakeTensorMode``), but loading them takes a second of processor time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

__all__ = ["Valueless"]


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
