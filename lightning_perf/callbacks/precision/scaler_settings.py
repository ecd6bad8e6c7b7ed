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
        for name in ("init_scale", "growth_factor", "backoff_factor"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
                raise TypeError(f"{name}={value!r} must be a number")
        interval, enabled = self.growth_interval, self.enabled
        if interval is not None and (isinstance(interval, bool) or not isinstance(interval, int)):
            raise TypeError(f"growth_interval={interval!r} must be a whole number of steps")
        if enabled is not None and not isinstance(enabled, bool):
            raise TypeError(f"scaler_enabled={enabled!r} must be True or False")
        if self.init_scale is not None and not 0 < self.init_scale < float("inf"):
            raise ValueError(f"init_scale={self.init_scale!r} is out of range: give a finite number above 0")
        if self.growth_factor is not None and not 1 < self.growth_factor < float("inf"):
            raise ValueError(f"growth_factor={self.growth_factor!r} is out of range: give a finite number above 1")
        if self.backoff_factor is not None and not 0 < self.backoff_factor < 1:
            raise ValueError(f"backoff_factor={self.backoff_factor!r} is out of range: give a number between 0 and 1")
        if interval is not None and interval < 1:
            raise ValueError(f"growth_interval={interval!r} is out of range: give 1 or more steps")

    @property
    def given(self) -> dict[str, Any]:
        """The settings that are not None, by the argument's name in torch."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}

    def __str__(self) -> str:
        """Name the settings as arguments of the callback."""
        named = {"enabled": "scaler_enabled"}
        return ", ".join(f"{named.get(name, name)}={value!r}" for name, value in self.given.items())

    def make(self, device_type: str) -> torch.amp.GradScaler:
        """Make a scaler with these settings."""
        return torch.amp.GradScaler(device_type, **self.given)

    def apply(self, scaler: Any) -> dict[str, Any]:
        """Change a scaler that exists, before its first step.

        A scaler that has already scaled a loss keeps its scale: `init_scale` is the first one only.
        """
        before = {name: getattr(scaler, name) for name in _ATTRIBUTES if hasattr(scaler, name)}
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


_ATTRIBUTES = ("_enabled", "_init_scale", "_growth_factor", "_backoff_factor", "_growth_interval")

KEEP_SETTINGS = ScalerSettings()
"""Changes nothing: every setting keeps the scaler's own value."""
