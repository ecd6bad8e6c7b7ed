"""Switching a Trainer's precision, and the one error that a conflict raises."""

from __future__ import annotations

import sys
import warnings
from contextlib import ExitStack
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import torch

from lightning_perf.callbacks.lightning_compat import (
    REPLICATING,
    Module,
    Trainer,
    clips_as_lightning_does,
    is_lightnings_own,
)


@dataclass(frozen=True, kw_only=True)
class ScalerSettings:
    """The settings of a `torch.amp.GradScaler`. With None a setting keeps the scaler's own value.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: A value is out of range.
    """

    init_scale: float | None = None
    growth_factor: float | None = None
    backoff_factor: float | None = None
    growth_interval: int | None = None
    enabled: bool | None = None

    def __post_init__(self) -> None:
        for name, value in self.given.items():
            kind, text, low, high, limits = _SETTINGS[name]
            if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
                raise TypeError(f"{_ARGUMENTS.get(name, name)}={value!r} must be {text}")
            if not low < value < high:
                raise ValueError(f"{name}={value!r} is out of range: give {limits}")

    @property
    def given(self) -> dict[str, Any]:
        """The settings that are not None, by the argument's name in torch."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}

    def __str__(self) -> str:
        """Name the settings as arguments of the callback."""
        return ", ".join(f"{_ARGUMENTS.get(name, name)}={value!r}" for name, value in self.given.items())

    def make(self, device_type: str) -> torch.amp.GradScaler:
        """Make a scaler with these settings."""
        return torch.amp.GradScaler(device_type, **self.given)

    def apply(self, scaler: Any) -> dict[str, Any]:
        """Change a scaler that exists, before its first step.

        A scaler that has already scaled a loss keeps its scale: `init_scale` is the first one only.
        """
        before = {
            name: getattr(scaler, name) for name in (f"_{setting}" for setting in _SETTINGS) if hasattr(scaler, name)
        }
        if self.enabled and not scaler.is_enabled():
            # A scaler that was made disabled lacks all other attributes.
            torch.amp.GradScaler.__init__(scaler, getattr(scaler, "_device", "cuda"), enabled=True)
        if self.enabled is not None:
            scaler._enabled = self.enabled
        self.apply_factors(scaler)
        if self.init_scale is not None and getattr(scaler, "_scale", None) is None:
            scaler._init_scale = float(self.init_scale)
        return before

    def apply_factors(self, scaler: Any) -> None:
        """Set how the scale of a scaler changes. A checkpoint brings the saved run's factors, so this runs again."""
        if not scaler.is_enabled():
            return
        for name in self.given.keys() & {"growth_factor", "backoff_factor", "growth_interval"}:
            getattr(scaler, f"set_{name}")(self.given[name])


_NUMBER, _INFINITY = (int, float), float("inf")
_SETTINGS: dict[str, tuple[Any, str, float, float, str]] = {
    "init_scale": (_NUMBER, "a number", 0, _INFINITY, "a finite number above 0"),
    "growth_factor": (_NUMBER, "a number", 1, _INFINITY, "a finite number above 1"),
    "backoff_factor": (_NUMBER, "a number", 0, 1, "a number between 0 and 1"),
    "growth_interval": (int, "a whole number of steps", 0, _INFINITY, "1 or more steps"),
    "enabled": (bool, "True or False", -1, 2, ""),
}
"""The type of each setting and its name, the limits that are out of range themselves, and the valid range in words."""

_ARGUMENTS = {"enabled": "scaler_enabled"}
"""Arguments of the callback with another name than torch's."""


class PrecisionError(ValueError):
    """The requested precision is not possible. The message names the cause and the fix.

    Raised before the first step. Unlike an error in profiling it ends the run, since training in another precision
    than the one asked for would be a different training.

    Args:
        problem: The cause, as a clause without a full stop.
        action: The fix, as a sentence without a full stop.
    """

    def __init__(self, problem: str, action: str) -> None:
        super().__init__(f"{problem}. {action}.")
        self.problem = problem
        self.action = action

    def __reduce__(self) -> tuple[type[PrecisionError], tuple[str, str]]:
        # It crosses process boundaries under DDP; the default would lose an argument.
        return type(self), (self.problem, self.action)


PRECISIONS = ("16-mixed", "bf16-mixed", "32-true")

_DTYPES = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}

_FP16_ON_CPU = False
"""Whether ``16-mixed`` may run on the CPU. It is slow there and helps nobody, but shows the whole fp16 path."""

_OWN_PRECISION = ("precision_plugin", "setup_precision_plugin", "backward", "optimizer_step")
"""Methods that a strategy overrides if it handles precision itself."""

_CPU_NOTE = "16-mixed needs a GPU: on this CPU bf16-mixed is used instead"


class PrecisionSwitch:
    """Puts one Trainer into a mixed precision, as if it had been built with it, and back.

    The plugin is made once and installed for each run of the Trainer. So the scaler's state lives from one run to the
    next, as in a Trainer that was built with mixed precision.
    """

    def __init__(self, requested: str | None, *, scaler: ScalerSettings = ScalerSettings()) -> None:
        self.requested = requested
        self.note: str | None = None
        """A note on the choice for the user."""
        self.switched = False
        """Whether the Trainer is in a precision that it was not built with."""
        self._scaler_settings = scaler
        self._scaler: Any = None
        """The scaler of the run that has the settings: the plugin's or the Trainer's own."""
        self._plugin: Any = None
        self._plugin_place: tuple[str, str] | None = None
        self._cache_is_safe = False
        self._undo = ExitStack()
        self._warned = False

    def install(self, trainer: Trainer) -> None:
        """Switch the Trainer, or leave it be if it has the precision already. Does nothing the second time.

        Raises:
            PrecisionError: The precision is not possible with this Trainer.
        """
        if self.switched or self._scaler is not None:
            return
        precision, is_new = _choose(trainer, self.requested)
        self.note = _CPU_NOTE if self.requested not in (None, precision) else None
        if self.note is not None and not self._warned:
            self._warned = True
            if trainer.is_global_zero:
                warnings.warn(self.note, UserWarning, stacklevel=3)
        if is_new:
            plugin = self._ready_plugin(trainer, precision)
            # A manual training_step runs under one autocast from its first forward to its last, with optimizers
            # stepping in between: the cache would serve weights from before the step.
            plugin.cache_enabled = self._cache_is_safe and bool(trainer.lightning_module.automatic_optimization)
            strategy = trainer.strategy
            self._undo.callback(self._give_back, strategy, strategy.precision_plugin)
            strategy.precision_plugin, self._scaler, self.switched = plugin, plugin.scaler, True
        elif self._scaler_settings.given:
            self._adopt_scaler(trainer, precision)

    def apply_scaler_factors(self) -> None:
        """Set the scaler's factors again: a checkpoint that was loaded in between brings its own."""
        if self._scaler is not None:
            self._scaler_settings.apply_factors(self._scaler)

    def _adopt_scaler(self, trainer: Trainer, precision: str) -> None:
        if precision != "16-mixed" and self.requested is not None:
            return  # On a CPU, bf16-mixed takes the place of 16-mixed, with a warning.
        scaler = trainer.scaler
        if scaler is None:
            raise PrecisionError(
                f"{self._scaler_settings} was given, but the Trainer is in '{precision}' and scales no loss",
                "Give the callback precision='16-mixed' as well, or leave the scaler's settings out",
            )
        self._scaler = scaler
        self._undo.callback(vars(scaler).update, self._scaler_settings.apply(scaler))

    def _give_back(self, strategy: Any, original: Any) -> None:
        if strategy.precision_plugin is self._plugin:
            strategy.precision_plugin = original

    def undo(self) -> None:
        """Give the Trainer its own precision back. A second call does nothing."""
        self._undo.close()
        self._scaler, self.switched = None, False

    def add_state(self, checkpoint: dict[str, Any]) -> None:
        """Put the scaler's state into a checkpoint that is saved while the Trainer has its own precision back."""
        if self._plugin is None or self.switched:
            return
        state = self._plugin.state_dict()
        if state:
            checkpoint.setdefault(type(self._plugin).__qualname__, state)

    def __getstate__(self) -> dict[str, Any]:
        """A copy is of the settings: it has no Trainer and no scaler."""
        return PrecisionSwitch(self.requested, scaler=self._scaler_settings).__dict__

    def _ready_plugin(self, trainer: Trainer, precision: str) -> Any:
        device = trainer.strategy.root_device
        place = (precision, device.type)
        if self._plugin_place != place:
            scaler = self._scaler_settings.make(device.type) if precision == "16-mixed" else None
            mixed_precision = _cached_class(plugin_module(trainer).MixedPrecision)
            self._plugin = mixed_precision(precision, device.type, scaler)
            self._cache_is_safe = weight_cache_is_safe(device, _DTYPES[precision])
            self._plugin_place = place
        return self._plugin


def precision_of(trainer: Trainer) -> str:
    """Return the name of the precision that a Trainer is in."""
    plugin = trainer.precision_plugin
    return str(getattr(plugin, "precision", type(plugin).__name__))


def check_fit(trainer: Trainer, module: Module, precision: str, *, requested: bool) -> None:
    """Refuse weights, optimizers and clipping that cannot work in a mixed precision, before the first step does.

    A precision that nobody has requested is only observed: then clipping alone is refused, since Lightning would.
    """
    if precision not in _DTYPES:
        return
    for name, parameter in module.named_parameters() if requested else ():
        if parameter.requires_grad and parameter.dtype in _DTYPES.values():
            raise PrecisionError(
                f"precision='{precision}' keeps weights in FP32, but {name} is {parameter.dtype}",
                "Leave out .half() and .bfloat16(), or freeze that layer, or train with Trainer(precision='bf16-true')",
            )
    if (
        requested
        and precision == "16-mixed"
        and any(isinstance(each, torch.optim.LBFGS) for each in trainer.optimizers)
    ):
        raise PrecisionError(
            "precision='16-mixed' cannot work with LBFGS, which calls backward several times per step",
            "Give precision='bf16-mixed', which needs no loss scale, or another optimizer",
        )
    clip = getattr(type(trainer.precision_plugin), "clip_gradients", None)
    if not trainer.gradient_clip_val or getattr(clip, "__qualname__", "") != "MixedPrecision.clip_gradients":
        return  # the plugin does not clip as Lightning's does
    if not (module.automatic_optimization and clips_as_lightning_does(module)):
        return
    for optimizer in trainer.optimizers:
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            own = (
                "leave out gradient_clip_val"
                if precision == "16-mixed"
                else "clip in your LightningModule's configure_gradient_clipping with torch.nn.utils.clip_grad_norm_"
            )
            raise PrecisionError(
                f"precision='{precision}' cannot clip gradients (gradient_clip_val={trainer.gradient_clip_val!r}) with "
                f"a fused {type(optimizer).__name__}: Lightning refuses it because the optimizer may unscale them "
                "inside its step",
                f"Build the optimizer with fused=False, or {own}",
            )


def _choose(trainer: Trainer, requested: str | None) -> tuple[str, bool]:
    """Return the precision to train in and whether it is new to the Trainer, or raise an error that says why not."""
    plugins = plugin_module(trainer)
    plugin = trainer.strategy.precision_plugin
    present = precision_of(trainer)
    device = trainer.strategy.root_device
    if requested is None:
        return present, False
    on_cpu = requested == "16-mixed" and device.type == "cpu" and not _FP16_ON_CPU
    wanted = "bf16-mixed" if on_cpu else requested
    # Under a plugin of the other package, Lightning would clip no gradients, and say nothing.
    if present == wanted and isinstance(plugin, plugins.Precision):
        return wanted, False
    if type(plugin) is not plugins.Precision or wanted == "32-true":
        raise PrecisionError(
            f"the callback was given precision='{requested}', but the Trainer is in '{present}' "
            f"({type(plugin).__module__}.{type(plugin).__qualname__})",
            f"Leave the precision out of the Trainer, or build it with Trainer(precision='{requested}')"
            if wanted in _DTYPES
            else "Leave the precision out of the Trainer, or out of the callback",
        )
    check_strategy(trainer, requested)
    check_device(device, wanted)
    return wanted, True


def check_strategy(trainer: Trainer, precision: str) -> None:
    """Refuse a strategy that handles precision itself."""
    strategy = type(trainer.strategy)
    for base in strategy.__mro__:
        # The first of Lightning's own classes decides, and a user's class on top of it may do anything but handle
        # precision.
        if is_lightnings_own(base):
            if base.__name__ in REPLICATING:
                return
            break
        if any(name in vars(base) for name in _OWN_PRECISION):
            break
    raise PrecisionError(
        f"{strategy.__name__} handles precision itself and cannot be switched by a callback",
        f"Build it with Trainer(precision='{precision}'): the callback then monitors its precision",
    )


def check_device(device: torch.device, precision: str) -> None:
    """Refuse a device that does not compute in the precision."""
    if not torch.amp.is_autocast_available(device.type):
        raise PrecisionError(
            f"torch has no autocast for the device {device}", "Train in FP32, or on a CUDA, ROCm, MPS or CPU device"
        )
    if precision == "bf16-mixed" and device.type == "cuda":
        with torch.cuda.device(device):
            has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        if not has_bf16:
            raise PrecisionError(
                f"{torch.cuda.get_device_name(device)} does not compute in bf16", "Give precision='16-mixed'"
            )


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

    # The class's name is the key of the scaler's state in checkpoints. Under another name, a run with Lightning's class
    # would silently lose the state of a run with this one, and vice versa.
    CachedMixedPrecision.__qualname__ = mixed_precision.__qualname__
    return CachedMixedPrecision


def weight_cache_is_safe(device: torch.device, dtype: torch.dtype) -> bool:
    """Test whether a weight that was first used without gradients still gets one afterwards.

    In some versions of torch the cast made under `torch.no_grad` was reused with gradients on, and cut the weight off
    its gradient (https://github.com/Lightning-AI/pytorch-lightning/issues/20921).
    """
    # Filled, not drawn: the random numbers of the training must not change.
    weight = torch.ones(8, 8, device=device, requires_grad=True)
    inputs = torch.ones(8, 8, device=device)
    for without_gradients in (torch.no_grad, torch.inference_mode):
        with torch.enable_grad(), torch.autocast(device.type, dtype=dtype, cache_enabled=True):
            with without_gradients():
                torch.nn.functional.linear(inputs, weight)
            if not torch.nn.functional.linear(inputs, weight).requires_grad:
                return False
    return True
