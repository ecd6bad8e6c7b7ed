"""`Training`: the user's module, data and Trainer settings, as a trial's own process builds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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
