"""A tensor on its way from the device to the host, without a wait of the training."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch


class HostCopy:
    """A copy of a tensor that the host reads once it has arrived. A tensor on the host is not copied."""

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


GROUP = 8
"""Scalars that one event of a device covers."""


@dataclass
class _Group:
    """Scalars that are copied to the host, with the event of the device after the last one; None on the host."""

    values: torch.Tensor
    steps: list[int] = field(default_factory=list)
    on_cuda: bool = False
    complete: bool = False
    event: Any = None


class ScalarCopies:
    """A scalar of each step on its way to the host: one copy per step, and one event per `GROUP` of them.

    On other devices than CUDA's, a scalar is read at once.
    """

    def __init__(self) -> None:
        self._groups: deque[_Group] = deque()

    def add(self, step: int, scalar: torch.Tensor) -> None:
        """Start to copy the scalar of a step."""
        on_cuda = scalar.device.type == "cuda"
        if not self._groups or self._groups[-1].complete:
            self._groups.append(_Group(torch.empty(GROUP, dtype=scalar.dtype, pin_memory=on_cuda)))
        group = self._groups[-1]
        group.values[len(group.steps)].copy_(scalar.detach().reshape(()), non_blocking=True)
        group.steps.append(step)
        group.on_cuda = on_cuda
        if len(group.steps) == GROUP or not on_cuda:
            self._complete(group)

    def arrived(self, *, wait: bool = False) -> Iterator[tuple[int, float]]:
        """Yield each step with its scalar once, as far as they have arrived. With `wait`, wait for all."""
        if wait and self._groups:
            self._complete(self._groups[-1])
        while self._groups and self._groups[0].complete:
            event = self._groups[0].event
            if event is not None and not wait and not event.query():
                return
            if event is not None:
                event.synchronize()
            group = self._groups.popleft()
            yield from zip(group.steps, group.values.tolist(), strict=False)

    @staticmethod
    def _complete(group: _Group) -> None:
        if not group.complete and group.on_cuda:
            group.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            group.event.record()
        group.complete = True


def copy_scalars(scalars: Sequence[torch.Tensor]) -> HostCopy:
    """Start to copy scalars of one device, as one tensor in double precision."""
    return HostCopy(torch.stack([scalar.double() for scalar in scalars]))
