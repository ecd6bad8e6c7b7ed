"""The origin of inf and NaN in a batch that is run again: the first operator that makes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from msgspec import Struct
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lightning_perf.callbacks.lightning_compat import Module
from lightning_perf.callbacks.mistakes.found import layer_names, user_place
from lightning_perf.callbacks.numerics.replay import KeptBatch, Replay
from lightning_perf.callbacks.precision.fp32_layers import layer_name
from lightning_perf.callbacks.steps.observers import FitObserver
from lightning_perf.run_files.numerics.samples import NonFinite

MAX_OPERATORS = 256
"""Operators that make inf or NaN to keep, at most."""

_FILLS = frozenset({"masked_fill", "fill", "full", "full_like", "new_full", "where", "scalar_tensor", "index_fill"})
"""Operators that write a value of the program, e.g. the infinity of a mask."""

_EMPTY = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize"})
"""Operators that return memory with any values in it."""


class OverflowLocator(FitObserver):
    """Keeps the batches of a step, and runs them again when the step was skipped."""

    consequence = "the origin of overflows is not looked for any more"

    def __init__(self, replay: Replay, limit: int) -> None:
        self.left = limit
        """Overflows to look into. Further ones cost nothing."""
        self._replay = replay
        self._batches: list[KeptBatch] = []

    def on_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Keep a batch until the step it belongs to is over."""
        if self.left:
            if batch_idx % self._replay.trainer.accumulate_grad_batches == 0:
                self._batches = []
            self._batches.append(self._replay.keep(batch, batch_idx))

    def locate(self, optimizer: Any, scale: float) -> NonFinite | None:
        """Find the origin of the overflow of the step that was just skipped. Return None if it does not show.

        In manual optimization the step cannot be run again, as it would step the optimizers: the gradients that it
        left are looked at instead.
        """
        self.left -= 1
        replay, module = self._replay, self._replay.module
        if not module.automatic_optimization:
            return _origin_in_gradients(module, optimizer)
        # All of them, though the first that overflowed is the answer: it may be another one on another rank, and all
        # ranks have to come by the same collectives.
        origins = []
        for kept in self._batches:
            watch = NonFiniteWatch(layer_names(module))
            replay.run(kept, scale=scale / replay.trainer.accumulate_grad_batches, watch=watch)
            origins.append(watch.origin())
        return next((origin for origin in origins if origin is not None), None)

    def forget(self) -> None:
        """Let go of the batches: their step is over, and validation may follow, which needs their memory."""
        self._batches = []

    def close(self) -> None:
        """Let go of the batches, and look into no more overflows."""
        self.left, self._batches = 0, []


def _origin_in_gradients(module: Module, optimizer: Any) -> NonFinite | None:
    """The last parameter, in the module's order, with inf or nan in its gradient: backward runs from the end."""
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in reversed(list(module.named_parameters())):
        gradient = parameter.grad
        if id(parameter) in stepped and gradient is not None and not is_finite(gradient):
            nan = bool(_dense(gradient).isnan().any())
            layer, dtype = layer_name(name).rpartition(".")[0], str(gradient.dtype).removeprefix("torch.")
            return NonFinite("", layer, "", True, "nan" if nan else "inf", dtype)
    return None


class _Found(Struct, frozen=True):
    """An operator that makes inf, or makes NaN of numbers."""

    made: NonFinite
    finite_inputs: bool

    @property
    def place(self) -> tuple[str, str, str, bool]:
        """The operator's identity across replays."""
        return self.made.operator, self.made.layer, self.made.line, self.made.backward

    @property
    def fills(self) -> bool:
        """Whether it only writes a value of the program."""
        return self.made.operator.rpartition(":")[2].rstrip("_") in _FILLS


class NonFiniteWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks at the result of every operator, and keeps those that make inf, or make NaN of numbers.

    `names` are the layers' by ``id``.
    """

    supports_higher_order_operators = True

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found: list[_Found] = []
        self._names = names
        self._places: dict[int, tuple[str, str]] = {}

    def origin(self, benign: Collection[NonFiniteWatch] = ()) -> NonFinite | None:
        """Return the first operator that makes NaN of finite numbers, or else inf of them, or else NaN of infinities.

        A fill writes an infinity on purpose, e.g. for a mask, and so do operators that a sound pass has too, which
        `benign` has watched.
        """
        known = {one.place for other in benign for one in other._found}
        found = [one for one in self._found if one.place not in known] or self._found
        found = [one for one in found if not one.fills] or found
        makes_nan = [one for one in found if one.finite_inputs and one.made.value == "nan"]
        return next((one.made for one in makes_nan or [one for one in found if one.finite_inputs] or found), None)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator and look at its result."""
        kwargs = kwargs or {}
        node: Any = torch._C._current_autograd_node()  # None in the forward pass
        if node is None:
            # autograd has already numbered the node of this operator.
            self._places[torch._C._autograd._get_sequence_nr() - 1] = user_place(self._names)
        if len(self._found) >= MAX_OPERATORS or func.__name__.split(".")[0].rstrip("_") in _EMPTY:
            return func(*args, **kwargs)
        inputs = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        if func.__name__.split(".")[0].endswith("_"):
            inputs = [one.clone() for one in inputs]  # an in-place operator overwrites its input
        result = func(*args, **kwargs)
        outputs = (one for one in tree_leaves(result) if isinstance(one, torch.Tensor) and one.is_floating_point())
        bad = next((one for one in outputs if not is_finite(one)), None)
        if bad is not None:
            self._add(func, inputs, bad, node)
        return result

    def _add(self, func: Any, inputs: list[torch.Tensor], bad: torch.Tensor, node: Any) -> None:
        floats = [one.detach().float() for one in inputs if one.is_floating_point() and one.numel()]
        makes_nan, finite_inputs = bool(bad.isnan().any()), all(map(is_finite, floats))
        if not finite_inputs and (not makes_nan or any(bool(one.isnan().any()) for one in floats)):
            return  # it only passes on its inputs
        finite = [one[torch.isfinite(one)] for one in floats]
        name = func._schema.name if hasattr(func, "_schema") else str(func)
        layer, line = user_place(self._names) if node is None else self._places.get(node._sequence_nr(), ("", ""))
        made = NonFinite(
            operator=name if node is None else node.name(),
            layer=layer,
            line=line,
            backward=node is not None,
            value="nan" if makes_nan else "inf",
            dtype=str(bad.dtype).removeprefix("torch."),
            largest_input=max((float(one.abs().max()) for one in finite if one.numel()), default=None),
        )
        self._found.append(_Found(made, finite_inputs))


def is_finite(values: torch.Tensor) -> bool:
    """Return whether a tensor holds no inf and no NaN."""
    return bool(torch.isfinite(_dense(values.detach())).all())


def _dense(values: torch.Tensor) -> torch.Tensor:
    return values.coalesce().values() if values.is_sparse else values
