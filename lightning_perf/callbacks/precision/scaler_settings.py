"""Settings of the gradient scaler of ``16-mixed``, and applying them to a scaler that exists."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch


@dataclass(frozen=True, kw_only=True)
class ScalerSettings:
    """The settings of a `torch.amp.GradScaler`. With None a setting keeps the scaler's own value.

    Attributes:
        init_scale: First loss scale; torch's default is 65536.
        growth_factor: Factor by which the scale grows; torch's default is 2.
        backoff_factor: Factor by which the scale shrinks after an overflow; torch's default is 0.5.
        growth_interval: Steps without overflow after which the scale grows; torch's default is 2000.
        enabled: Whether to scale the loss at all; torch's default is True.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: A value is out of range.

    Example:
        >>> ScalerSettings(growth_interval=100).given
        {'growth_interval': 100}
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
        if self.growth_factor is not None:
            scaler.set_growth_factor(float(self.growth_factor))
        if self.backoff_factor is not None:
            scaler.set_backoff_factor(float(self.backoff_factor))
        if self.growth_interval is not None:
            scaler.set_growth_interval(self.growth_interval)


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

KEEP_SETTINGS = ScalerSettings()
"""Changes nothing: every setting keeps the scaler's own value."""
