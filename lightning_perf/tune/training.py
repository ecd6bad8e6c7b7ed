"""`Training`: the user's module, data and Trainer settings, as a trial's own process builds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from lightning_perf.tune.levers.lever import Change, Lever
    from lightning_perf.tune.messages import Arguments, Site


@dataclass
class Training:
    """The training that the trials run. Levers change it in place: each process has its own.

    Attributes:
        data: A DataLoader, a LightningDataModule, or None where the module itself has ``train_dataloader``.
        trainer: Keyword arguments of the Trainer, as ``{"accelerator": "gpu", "accumulate_grad_batches": 2}``.
        loader: The training's DataLoader, or the reason why it cannot be changed; None until it is looked up.
    """

    module: Any
    data: Any = None
    trainer: dict[str, Any] = field(default_factory=dict)
    loader: Any = field(default=None, init=False, repr=False)


class TrialTrainer(Protocol):
    """A Trainer in a trial: that of Lightning or of Hugging Face."""

    training: Training

    def fit(self, callback: Any, folder: str, max_steps: int = ...) -> None:
        """Train, until a callback with Lightning's hooks stops it. None for no callback."""
        ...

    def record(self, folder: str, *, skip_first: int, warmup: int, active: int, probe_s: float) -> None:
        """Train some steps, record the last of them, and probe their operators."""
        ...

    def change(self, lever: Lever) -> Change:
        """Return the change that a lever makes to this kind of training."""
        ...

    def device(self) -> torch.device:
        """Return the device of the training."""
        ...

    def arguments(self) -> Arguments:
        """Return the simple arguments of the calls that made the training."""
        ...

    def parameters(self) -> dict[str, tuple[tuple[str, ...], ...]]:
        """Return the parameters of the classes that may pass values on to the calls, by the place of a `Setting`."""
        ...

    def sites(self, calls: Any) -> dict[str, tuple[Site | str, ...]]:
        """Return the noted calls, by the place of a `Setting`."""
        ...

    def refused(self) -> str:
        """Return a file that makes LightningCLI refuse to run the script; empty without one. Trials ignore it."""
        ...


def as_training(made: Any) -> Training:
    """Convert the return value of the user's function.

    Example:
        >>> as_training(("module", "data", {"max_epochs": 1})).trainer
        {'max_epochs': 1}
    """
    if isinstance(made, Training):
        return made
    parts = made if isinstance(made, tuple) else (made,)
    if not 1 <= len(parts) <= 3 or (len(parts) == 3 and not isinstance(parts[2], Mapping)):
        raise TypeError(
            "a training is a module, or a tuple (module, data) or (module, data, Trainer's arguments), and this is "
            f"{made!r}"
        )
    return Training(parts[0], parts[1] if len(parts) > 1 else None, dict(parts[2]) if len(parts) > 2 else {})
