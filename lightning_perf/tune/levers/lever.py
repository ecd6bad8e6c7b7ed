"""`Lever`: one thing about a training that may make it faster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lightning_perf.tune.training import Training

__all__ = ["Change", "Lever", "Machine"]


@dataclass(frozen=True)
class Machine:
    """Where the trials run.

    Attributes:
        device: ``cpu``, ``cuda`` or ``mps``.
        capability: CUDA compute capability, or None.
        cores: CPU cores that this process may use.
        name: Name of the device, for people.
        fetch_cpu_share: Share of the time of loading samples in which the processor works; None if unknown.
    """

    device: str
    capability: tuple[int, int] | None
    cores: int
    name: str
    fetch_cpu_share: float | None = None


class Change(Protocol):
    """What a lever does to a training."""

    def missing(self, training: Training, machine: Machine) -> str | None:
        """Say why it does not apply to this training on this machine, or None."""
        ...

    def lines(self, training: Training) -> tuple[str, ...]:
        """What to write into one's own code, a line each, for a training that it applies to."""
        ...

    def apply(self, training: Training) -> None:
        """Change the training in place, before it begins.

        Raises:
            NotApplicableError: It turns out not to be for this training.
        """
        ...


@dataclass(frozen=True)
class Lever:
    """One thing to change.

    Attributes:
        name: Its name in tables and in ``--levers``, as ``channels-last``.
        family: Of levers of one family one at most holds, as of precisions.
        change: What it does to a training.
        addresses: Kinds of findings whose predicted saving is this lever's.
        changes_training: Whether it makes another training of it (batch size): then it is measured, and never kept by
            itself.
    """

    name: str
    family: str
    change: Change
    addresses: tuple[str, ...] = ()
    changes_training: bool = False
