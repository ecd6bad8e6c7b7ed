"""The precision plugin that the callback installs: Lightning's own, with autocast's weight cache on."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import torch

from lightning_perf.callbacks.lightning_compat import Trainer

__all__ = ["make_mixed_precision", "plugin_module", "weight_cache_is_safe"]


def plugin_module(trainer: Trainer) -> Any:
    """The module of precision plugins in the package that the Trainer comes from.

    A plugin of the other package would be accepted and then silently skip gradient clipping: it asks whether the
    module is a `LightningModule` of its own package.
    """
    for base in type(trainer).__mro__:
        package, _, rest = base.__module__.partition(".trainer.")
        if rest and base.__name__ == "Trainer" and package in ("lightning.pytorch", "pytorch_lightning"):
            return sys.modules[f"{package}.plugins.precision"]
    raise TypeError(
        f"{type(trainer).__module__}.{type(trainer).__qualname__} is no Trainer of lightning.pytorch or "
        "pytorch_lightning"
    )


def make_mixed_precision(trainer: Trainer, precision: str, device_type: str, *, init_scale: float | None) -> Any:
    """Make the plugin for a Trainer.

    Args:
        trainer: The Trainer it is for.
        precision: ``16-mixed`` or ``bf16-mixed``.
        device_type: Device type of autocast and scaler, as ``cuda``.
        init_scale: First loss scale; None for torch's own. Only for ``16-mixed``.

    Returns:
        An instance of a subclass of the package's `MixedPrecision`; its ``cache_enabled`` turns autocast's weight
        cache on or off.
    """
    scaler = None
    if precision == "16-mixed":
        scaler = torch.amp.GradScaler(device_type)
        if init_scale is not None:
            scaler = torch.amp.GradScaler(device_type, init_scale=init_scale)
    return _cached_class(plugin_module(trainer).MixedPrecision)(precision, device_type, scaler)


@cache
def _cached_class(mixed_precision: Any) -> Any:
    class CachedMixedPrecision(mixed_precision):  # type: ignore[misc]
        """Lightning's mixed precision, with a switch for autocast's weight cache, which plain torch has on.

        Lightning turns the cache off (since 2.5.6, for the bug that `weight_cache_is_safe` looks for), so that a
        weight used n times in a forward pass is cast n times.
        """

        cache_enabled = False

        def autocast_context_manager(self) -> torch.autocast:
            dtype = torch.bfloat16 if self.precision == "bf16-mixed" else torch.half
            return torch.autocast(self.device, dtype=dtype, cache_enabled=self.cache_enabled)

    # The class's name is the key of the scaler's state in checkpoints: with another one the state would be lost,
    # silently, between a run with this class and one with Lightning's.
    CachedMixedPrecision.__qualname__ = mixed_precision.__qualname__
    return CachedMixedPrecision


def weight_cache_is_safe(device: torch.device, dtype: torch.dtype) -> bool:
    """Try whether a weight that was first used without gradients still gets one afterwards.

    In some versions of torch the cast made under `torch.no_grad` was reused with gradients on, and cut the weight off
    its gradient (https://github.com/Lightning-AI/pytorch-lightning/issues/20921).

    Args:
        device: Where to try.
        dtype: Autocast's type.
    """
    # Filled, not drawn: a training run's random numbers stay as they are.
    weight = torch.ones(8, 8, device=device, requires_grad=True)
    inputs = torch.ones(8, 8, device=device)
    for without_gradients in (torch.no_grad, torch.inference_mode):
        with torch.enable_grad(), torch.autocast(device.type, dtype=dtype, cache_enabled=True):
            with without_gradients():
                torch.nn.functional.linear(inputs, weight)
            if not torch.nn.functional.linear(inputs, weight).requires_grad:
                return False
    return True
