"""Mistakes that single operators show: losses, epsilons and counts in FP16 during the first batches."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_perf.callbacks.lightning_compat import Module
from lightning_perf.callbacks.mistakes.found import FoundMistakes, user_place
from lightning_perf.callbacks.mistakes.weights import SHORT, ZERO_IN_FP16
from lightning_perf.callbacks.wrapped_methods import WrappedMethods

LARGEST_COUNT = {torch.float16: 2048, torch.bfloat16: 256}
"""The largest integer up to which a type holds every integer."""

LARGEST_FP16 = 65504.0

_TOO_LARGE = "cannot be converted to type c10::Half without overflow"
"""Part of torch's error for a constant that FP16 cannot hold."""

_LOSSES = {
    "nll_loss_forward",
    "nll_loss2d_forward",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "mse_loss",
    "smooth_l1_loss",
    "huber_loss",
    "soft_margin_loss",
    "multi_margin_loss",
    "_ctc_loss",
    "kl_div",
}
"""Losses that autocast computes in FP32. Inputs in FP16 mean that autocast is off at this place.

A softmax does not show that. It adds up in FP32, and ``cross_entropy`` asks it for a result in FP16 under autocast too.
"""

_WITH_EPSILON = {"add", "clamp_min", "clamp"}
_SUMS = {"sum", "cumsum"}

_READABLE = {
    "nll_loss_forward": "The cross entropy",
    "nll_loss2d_forward": "The cross entropy",
    "exp": "An exponential",
    "mse_loss": "The mean squared error",
    "binary_cross_entropy_with_logits": "The binary cross entropy",
    "binary_cross_entropy": "The binary cross entropy",
}


class OperatorWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks at each operator of the forward pass for a known mistake. It changes no operator and keeps no tensor."""

    supports_higher_order_operators = True

    def __init__(self, module: Module, found: FoundMistakes, *, mixed: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._module = module
        self._found = found
        self._mixed = mixed
        self._wrapped = WrappedMethods()
        self._counts: dict[int, weakref.ref[torch.Tensor]] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch.compile work as without this mode."""
        return True

    def start(self) -> None:
        """Look at the operators of the next calls of `training_step`."""
        if not self._wrapped.active:
            self._wrapped.wrap(self._module, "training_step", self._watched)

    def stop(self) -> None:
        """Give the module its own `training_step` back. A second call does nothing."""
        self._counts.clear()
        self._wrapped.restore()

    def _watched(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def watched_step(*args: Any, **kwargs: Any) -> Any:
            with self if self._wrapped.active else nullcontext():
                return step(*args, **kwargs)

        return watched_step

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator, then check it."""
        kwargs = kwargs or {}
        try:
            result = func(*args, **kwargs)
        except RuntimeError as error:
            if _TOO_LARGE in str(error):
                self._constant(func, (*args, *kwargs.values()))
            raise
        if self._wrapped.active and torch._C._current_autograd_node() is None:
            try:
                self._check(func, args, kwargs, result)
            except Exception as error:
                self.stop()
                self._found.failed(error)
        return result

    def _check(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        name = _operator(func)
        makes_half = isinstance(result, torch.Tensor) and result.dtype in SHORT
        first = args[0] if args else None
        if name == "arange":
            if makes_half:
                self._check_arange(args, result)
        elif not isinstance(first, torch.Tensor):
            return
        elif name == "_to_copy":
            if makes_half and not first.is_floating_point():
                self._counts[id(result)] = weakref.ref(result)
        elif name in _SUMS:
            if makes_half:
                self._check_sum(name, first, result)
        elif first.dtype == torch.float16:
            # Autocast computes exp in FP32 too, but only on CUDA devices.
            if name in _LOSSES or (name == "exp" and (first.device.type == "cuda" or not self._mixed)):
                self._loss(name)
            elif name in _WITH_EPSILON:
                self._check_epsilon(name, args, kwargs)

    def _add(self, kind: str, title: str, action: str, evidence: str, *, moderate: bool = False) -> None:
        """Report a mistake at the place of the operator that runs."""
        layer, line = user_place(self._found.layers)
        self._found.report(kind, title, action, evidence, moderate=moderate, layer=layer, line=line)

    def _constant(self, func: Any, values: tuple[Any, ...]) -> None:
        """Report a constant that FP16 cannot hold. torch raises an error for it."""
        numbers = [value for value in values if isinstance(value, (int, float)) and abs(value) > LARGEST_FP16]
        self._add(
            "half-constant",
            f"{f'{numbers[0]:g}' if numbers else 'A constant'} is too large for FP16",
            "Mask with the least number of the type: scores.masked_fill(mask, torch.finfo(scores.dtype).min).",
            f"{_operator(func) or 'The operator'} writes it into an FP16 tensor, and FP16 ends at 65504. torch raises "
            "an error.",
        )

    def _loss(self, name: str) -> None:
        self._add(
            "half-loss",
            f"{_READABLE.get(name, name)} is computed in FP16",
            "Compute it in FP32: call .float() on its inputs, e.g. cross_entropy(logits.float(), target)"
            + (", or move it into the autocast region." if self._mixed else "."),
            f"aten::{name} got FP16 values: autocast is off at this place. exp() overflows above 11, and a loss keeps "
            "only 3 digits.",
            moderate=name not in _LOSSES,
        )

    def _check_epsilon(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        value = args[1] if len(args) > 1 else kwargs.get("min")
        if isinstance(value, torch.Tensor) and value.dim() == 0 and value.device.type == "cpu":
            value = value.item()
        if isinstance(value, bool) or not isinstance(value, float) or not 0 < value <= ZERO_IN_FP16:
            return
        self._add(
            "epsilon-underflow",
            f"The epsilon {value:g} is zero in FP16",
            "Call .float() on the tensor first, or use an epsilon of at least 1e-4.",
            f"aten::{name} got an FP16 tensor and {value:g}. The smallest FP16 number is 6e-8, so the sum or limit can "
            "be zero, and a division by it gives inf or NaN.",
        )

    def _check_sum(self, name: str, values: torch.Tensor, result: torch.Tensor) -> None:
        reference = self._counts.get(id(values))
        counts = not values.is_floating_point() or (reference is not None and reference() is values)
        terms = values.numel() if name == "cumsum" else values.numel() // max(result.numel(), 1)
        if name == "cumsum" and values.dim():
            terms = max(values.shape)
        if counts and terms > LARGEST_COUNT[result.dtype]:
            self._half_count(f"torch.{name} adds up {terms} integers", result.dtype)

    def _check_arange(self, args: tuple[Any, ...], result: torch.Tensor) -> None:
        numbers = [abs(value) for value in args if isinstance(value, (int, float))]
        if numbers and max(numbers) > LARGEST_COUNT[result.dtype] + 1:
            self._half_count(f"torch.arange counts to {max(numbers):g}", result.dtype)

    def _half_count(self, what: str, dtype: torch.dtype) -> None:
        self._add(
            "half-counts",
            f"{what} in {SHORT[dtype]}",
            "Count in integers or FP32: mask.sum() instead of mask.half().sum(), or torch.arange(…) without a 16-bit "
            "dtype.",
            f"{SHORT[dtype]} holds every integer up to {LARGEST_COUNT[dtype]} only. Larger ones are rounded"
            + (", and FP16 ends at 65504." if dtype == torch.float16 else "."),
        )


def _operator(func: Any) -> str:
    """Return the name of an operator, empty for one that is not of torch's own kind."""
    return func._schema.name.rpartition(":")[2].rstrip("_") if hasattr(func, "_schema") else ""
