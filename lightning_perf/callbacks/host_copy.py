"""A tensor on its way from the device to the host, without a wait of the training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class HostCopy:
    """A copy of a tensor that the host reads once it has arrived.

    Args:
        values: The tensor. If it is on the host already, it is not copied.
    """

    def __init__(self, values: torch.Tensor) -> None:
        self._values = values
        self._event: Any = None
        if values.device.type == "cuda":
            self._values = torch.empty_like(values, device="cpu", pin_memory=True).copy_(values, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(values.device))

    @property
    def arrived(self) -> bool:
        """Whether the values are on the host."""
        return self._event is None or bool(self._event.query())

    def read(self) -> torch.Tensor:
        """Return the values on the host. Waits until they have arrived."""
        if self._event is not None:
            self._event.synchronize()
        return self._values


def copy_scalars(scalars: Sequence[torch.Tensor]) -> HostCopy:
    """Start to copy scalars of one device, as one tensor in double precision."""
    return HostCopy(torch.stack([scalar.double() for scalar in scalars]))
