"""The origin of inf and NaN in a batch that is run again: its first layer, or its first operator."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Literal

import torch
from msgspec import Struct
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lightning_perf.callbacks.lightning_compat import Module
from lightning_perf.callbacks.mistakes.found import user_place
from lightning_perf.callbacks.numerics.replay import KeptBatch, Replay, leaf_outputs
from lightning_perf.callbacks.precision.fp32_layers import layer_name
from lightning_perf.callbacks.steps.observers import FitObserver
from lightning_perf.run_files.numerics.samples import OverflowOrigin

MAX_OPERATORS = 256
"""Operators that make inf or NaN to keep, at most."""

_FILLS = frozenset({"masked_fill", "fill", "full", "full_like", "new_full", "where", "scalar_tensor", "index_fill"})
"""Operators that write a value of the program, e.g. the infinity of a mask."""

_EMPTY = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize"})
"""Operators that return memory with any values in it."""

_VALUES: dict[int, Literal["inf", "nan"]] = {1: "inf", 2: "nan"}

_Seen = list[tuple[str, str, torch.Tensor]]
"""Layer, name of its values, and the verdict on them. Verdicts stay on the device until all are in."""


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

    def locate(self, optimizer: Any, scale: float) -> OverflowOrigin | None:
        """Find the origin of the overflow of the step that was just skipped. Return None if it does not show.

        In manual optimization the step cannot be run again, as it would step the optimizers: the gradients that it
        left are looked at instead.
        """
        self.left -= 1
        if not self._replay.module.automatic_optimization:
            return _origin_in_gradients(self._replay.module, optimizer)
        # All of them, though the first that overflowed is the answer: it may be another one on another rank, and all
        # ranks have to come by the same collectives.
        origins = [find_origin(self._replay, kept, scale) for kept in self._batches]
        return next((origin for origin in origins if origin is not None), None)

    def forget(self) -> None:
        """Let go of the batches: their step is over, and validation may follow, which needs their memory."""
        self._batches = []

    def close(self) -> None:
        """Let go of the batches, and look into no more overflows."""
        self.left, self._batches = 0, []


def find_origin(replay: Replay, kept: KeptBatch, scale: float) -> OverflowOrigin | None:
    """Return the first value in the order of computing that is inf or NaN, of all layers' outputs and gradients."""
    forward: _Seen = []
    backward: _Seen = []

    def watch_gradient(tensor: torch.Tensor, layer: str, what: str) -> Any:
        return tensor.register_hook(lambda gradient: backward.append((layer, what, _judge(gradient))))  # type: ignore[no-untyped-call]

    def look(layer: str, output: Any) -> None:
        for value in tree_leaves(output):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                forward.append((layer, "its output", _judge(value)))
                # Not a backward hook on the layer, which an in-place ReLU behind it breaks.
                if value.requires_grad:
                    watch_gradient(value, layer, "the gradient of its output")

    with ExitStack() as watch:
        watch.enter_context(leaf_outputs(replay.module, look))
        for name, parameter in replay.module.named_parameters():
            if parameter.requires_grad:
                owner, _, own = layer_name(name).rpartition(".")
                watch.enter_context(watch_gradient(parameter, owner, f"the gradient of its {own}"))
        replayed = replay.run(kept, scale=scale / replay.trainer.accumulate_grad_batches)
    return _first([*forward, ("", "the loss", _judge(replayed.loss)), *backward]) if replayed is not None else None


def _origin_in_gradients(module: Module, optimizer: Any) -> OverflowOrigin | None:
    """The last parameter, in the module's order, with inf or nan in its gradient: backward runs from the end."""
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    seen: _Seen = []
    for name, parameter in module.named_parameters():
        if id(parameter) in stepped and parameter.grad is not None:
            owner, _, own = layer_name(name).rpartition(".")
            seen.append((owner, f"the gradient of its {own}", _judge(parameter.grad)))
    return _first(seen[::-1])


def _first(seen: _Seen) -> OverflowOrigin | None:
    """Wait for all verdicts at once, and return the first bad one."""
    if not seen:
        return None
    verdicts = torch.stack([verdict.to("cpu", torch.int8) for *_, verdict in seen]).tolist()
    found = ((layer, what, verdict) for (layer, what, _), verdict in zip(seen, verdicts, strict=True) if verdict)
    return next((OverflowOrigin(layer, what, _VALUES[verdict]) for layer, what, verdict in found), None)


@torch.no_grad()
def _judge(values: torch.Tensor) -> torch.Tensor:
    """0 for finite values, 1 when there is an inf, 2 when there is a nan, as a scalar tensor."""
    values = _dense(values)
    return torch.where(values.isnan().any(), 2, torch.where(values.isinf().any(), 1, 0))


class NonFiniteOperator(Struct, frozen=True):
    """An operator that makes inf, or makes NaN of numbers. In the backward pass it has the name of autograd's node.

    There, layer and line are those of the forward pass. All fields but the last are also those of `BadRun`.
    """

    operator: str
    layer: str
    line: str
    backward: bool
    value: str
    dtype: str
    largest_input: float | None
    finite_inputs: bool

    @property
    def fills(self) -> bool:
        """Whether it only writes a value of the program."""
        return self.operator.rpartition(":")[2].rstrip("_") in _FILLS

    @property
    def key(self) -> tuple[str, str, str, bool]:
        """The operator's identity across replays."""
        return self.operator, self.layer, self.line, self.backward


class NonFiniteWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks at the result of every operator, and keeps those that make inf, or make NaN of numbers.

    `names` are the layers' by ``id``.
    """

    supports_higher_order_operators = True

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[NonFiniteOperator] = []
        """The operators, in the order of computing."""
        self._names = names
        self._places: dict[int, tuple[str, str]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator and look at its result."""
        kwargs = kwargs or {}
        node: Any = torch._C._current_autograd_node()  # None in the forward pass
        if node is None:
            # autograd has already numbered the node of this operator.
            self._places[torch._C._autograd._get_sequence_nr() - 1] = user_place(self._names)
        if len(self.found) >= MAX_OPERATORS or func.__name__.split(".")[0].rstrip("_") in _EMPTY:
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
        self.found.append(
            NonFiniteOperator(
                operator=name if node is None else node.name(),
                layer=layer,
                line=line,
                backward=node is not None,
                value="nan" if makes_nan else "inf",
                dtype=str(bad.dtype).removeprefix("torch."),
                largest_input=max((float(one.abs().max()) for one in finite if one.numel()), default=None),
                finite_inputs=finite_inputs,
            )
        )


def is_finite(values: torch.Tensor) -> bool:
    """Return whether a tensor holds no inf and no NaN."""
    return bool(torch.isfinite(_dense(values.detach())).all())


def _dense(values: torch.Tensor) -> torch.Tensor:
    return values.coalesce().values() if values.is_sparse else values
