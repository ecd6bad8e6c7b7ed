"""The peak of a training's device memory, without that of this package's own passes over a batch.

Torch's own statistics of the peak are reset only between `start_peak` and `end_peak`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_earlier_bytes: dict[torch.device, int] = {}
"""For each device with a peak: the most before torch's statistics were last reset."""


def start_peak(device: torch.device) -> None:
    """Let the peak start now: an earlier training in the process may have taken more."""
    if device.type == "cuda":
        _earlier_bytes[device] = 0
        torch.cuda.reset_peak_memory_stats(device)


def restart_peak(device: torch.device) -> None:
    """Let a peak that has started start again: this package held memory until now."""
    if device in _earlier_bytes:
        start_peak(device)


def end_peak(device: torch.device) -> int | None:
    """Return the peak; None on a processor."""
    if device not in _earlier_bytes:
        return None
    return max(_earlier_bytes.pop(device), torch.cuda.max_memory_allocated(device))


@contextmanager
def own_memory(device: torch.device) -> Iterator[None]:
    """Leave the memory that the block takes out of the peak. Blocks may not contain each other."""
    if device not in _earlier_bytes:
        yield
        return
    _earlier_bytes[device] = max(_earlier_bytes[device], torch.cuda.max_memory_allocated(device))
    try:
        yield
    finally:
        torch.cuda.reset_peak_memory_stats(device)
