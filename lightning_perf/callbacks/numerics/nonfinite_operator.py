"""Finds the first operator of a replayed batch that makes inf or NaN out of finite values."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lightning_perf.callbacks.mistakes.place import user_place

__all__ = ["NonFiniteOperator", "NonFiniteWatch"]


@dataclass(frozen=True)
class NonFiniteOperator:
    """An operator with inf or NaN in its result.

    Attributes:
        name: Its name, e.g. ``aten::mm``.
        layer: The layer that ran it; empty for the LightningModule itself.
        line: The user's line as ``file:line``; empty in the backward pass.
        backward: Whether it ran in the backward pass.
        value: ``inf`` or ``nan``.
        dtype: Type of its result.
        largest_input: Largest finite magnitude among its inputs; None without inputs.
        finite_inputs: Whether all of its inputs were finite.
    """

    name: str
    layer: str
    line: str
    backward: bool
    value: str
    dtype: str
    largest_input: float | None
    finite_inputs: bool

    @property
    def key(self) -> tuple[str, str, str, bool]:
        """The operator's identity across replays."""
        return self.name, self.layer, self.line, self.backward


class NonFiniteWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks at the result of every operator, and keeps those with inf or NaN.

    Args:
        names: Names of the layers by ``id``.
        most: Operators to keep, at most.
    """

    supports_higher_order_operators = True

    def __init__(self, names: Mapping[int, str], most: int = 64) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[NonFiniteOperator] = []
        """The operators, in the order of computing."""
        self._names = names
        self._most = most
        self._layers: dict[int, str] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator and look at its result."""
        kwargs = kwargs or {}
        node: Any = torch._C._current_autograd_node()  # None in the forward pass
        if node is None:
            # autograd has already numbered the node of this operator.
            self._layers[torch._C._autograd._get_sequence_nr() - 1] = _layer_under_way(self._names)
        inputs = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        before = None
        if len(self.found) < self._most and func.__name__.split(".")[0].endswith("_"):
            before = [one.clone() for one in inputs]  # an in-place operator overwrites its input
        result = func(*args, **kwargs)
        if len(self.found) < self._most:
            outputs = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
            bad = next((one for one in outputs if one.is_floating_point() and not _is_finite(one)), None)
            if bad is not None:
                self._add(func, before if before is not None else inputs, bad, node)
        return result

    def _add(self, func: Any, inputs: list[torch.Tensor], bad: torch.Tensor, node: Any) -> None:
        floats = [one.detach().float() for one in inputs if one.is_floating_point() and one.numel()]
        finite = [one[torch.isfinite(one)] for one in floats]
        sizes = [float(one.abs().max()) for one in finite if one.numel()]
        if node is None:
            layer, line = user_place(self._names)
        else:
            layer, line = self._layers.get(node._sequence_nr(), ""), ""
        self.found.append(
            NonFiniteOperator(
                name=func._schema.name if hasattr(func, "_schema") else str(func),
                layer=layer,
                line=line,
                backward=node is not None,
                value="nan" if bool(bad.isnan().any()) else "inf",
                dtype=str(bad.dtype).removeprefix("torch."),
                largest_input=max(sizes, default=None),
                finite_inputs=all(_is_finite(one) for one in floats),
            )
        )


def _is_finite(values: torch.Tensor) -> bool:
    if values.is_sparse:
        values = values.coalesce().values()
    return bool(torch.isfinite(values.detach()).all())


def _layer_under_way(names: Mapping[int, str]) -> str:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_varnames[:1] == ("self",):
            owner = frame.f_locals.get("self")
            if isinstance(owner, nn.Module) and id(owner) in names:
                return names[id(owner)]
        frame = frame.f_back
    return ""
