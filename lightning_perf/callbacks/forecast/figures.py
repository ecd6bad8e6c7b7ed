"""Figures on their way from the device to the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["DeviceFigures"]


class DeviceFigures:
    """Scalars that the host reads once they have arrived, without waiting for the device.

    Args:
        figures: Scalar tensors on one device.
    """

    def __init__(self, figures: Sequence[torch.Tensor]) -> None:
        stacked = torch.stack([figure.double() for figure in figures])
        self._event: Any = None
        if stacked.device.type == "cuda":
            self._figures = torch.empty_like(stacked, device="cpu", pin_memory=True).copy_(stacked, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(stacked.device))
        else:
            self._figures = stacked

    @property
    def arrived(self) -> bool:
        """Whether the figures are on the host."""
        return self._event is None or bool(self._event.query())

    def read(self) -> list[float]:
        """Return the figures. Waits until they have arrived."""
        if self._event is not None:
            self._event.synchronize()
        return [float(value) for value in self._figures.tolist()]
