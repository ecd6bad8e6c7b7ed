"""Verdicts of a scaler on a step's gradients, fetched from the device without waiting for it."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["PendingVerdict"]


class PendingVerdict:
    """Whether a fused optimizer's step found inf or nan: known on the device now, on the host some time later.

    On other devices than CUDA's to read it is to wait for the device.

    Args:
        found_inf: The scaler's verdict, a scalar tensor, not zero if there was inf or nan.
    """

    def __init__(self, found_inf: torch.Tensor) -> None:
        self._event: Any = None
        if found_inf.device.type == "cuda":
            self._value = torch.empty_like(found_inf, device="cpu", pin_memory=True)
            self._value.copy_(found_inf, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(found_inf.device))
        else:
            self._value = found_inf.detach().clone()

    def read(self, *, wait: bool = False) -> bool | None:
        """Read it.

        Args:
            wait: Whether to wait for the device; only at the end of a run.

        Returns:
            Whether there was inf or nan; None when the device has not told yet.
        """
        if self._event is not None and not self._event.query():
            if not wait:
                return None
            self._event.synchronize()
        return bool(self._value.item())
