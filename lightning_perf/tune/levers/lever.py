"""`Lever`: one change that may make a training faster."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct, field

from lightning_perf.tune.training import Training


class Machine(Struct, frozen=True):
    """The machine of the trials.

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


class Setting(Struct, frozen=True):
    """A setting for the user's code.

    Attributes:
        place: The call that takes it: ``Trainer``, ``TrainingArguments``, ``DataLoader``, ``optimizer`` or ``module``
            (the first argument of ``fit``). ``statement`` for a line before ``fit``, and empty if no file holds it.
        arguments: Keyword arguments of that call, their values as source.
        line: The line for a reader.
        code: Source of the statement; for ``module`` that of the changed module, with ``{}`` for the module.
    """

    place: str
    arguments: dict[str, str] = field(default_factory=dict)
    line: str = ""
    code: str = ""

    def __str__(self) -> str:
        """Return the line for a reader."""
        if self.line:
            return self.line
        others = "…, " if self.place in ("DataLoader", "TrainingArguments") else ""
        return f"{self.place}({others}{', '.join(f'{name}={value}' for name, value in self.arguments.items())})"


class Change(Protocol):
    """The change that a lever makes to a training."""

    def missing(self, training: Training, machine: Machine) -> str | None:
        """Return why it does not apply to this training on this machine, or None."""
        ...

    def settings(self, training: Training) -> tuple[Setting, ...]:
        """Return the settings that the user has to write, for a training that the lever applies to."""
        ...

    def apply(self, training: Training) -> None:
        """Change the training in place, before it begins.

        Raises:
            NotApplicableError: The change turns out not to apply to this training.
        """
        ...


class Lever(Struct, frozen=True):
    """One thing to change.

    Attributes:
        name: Its name in tables and in ``--levers``, e.g. ``channels-last``.
        family: At most one lever of a family is kept, e.g. one precision.
        addresses: Kinds of findings with a predicted saving that this lever may bring.
        changes_training: Whether the result is another training (batch size). Such a lever is measured, but never kept
            automatically.
        probe: Name of the change in a probe of the recorded operators that measures this lever; None without one.
        cost: Time of a trial relative to one of the unchanged training, about. Compiled code takes long to start.
    """

    name: str
    family: str
    change: Change
    addresses: tuple[str, ...] = ()
    changes_training: bool = False
    probe: str | None = None
    cost: float = 1.0
