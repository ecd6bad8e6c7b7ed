"""Which of Lightning's own strategies a Trainer's strategy is, or comes from."""

from __future__ import annotations

from typing import Any

from lightning_perf.callbacks.lightning_compat import Trainer

__all__ = ["REPLICATING", "holds_whole_model", "is_lightnings_own"]

REPLICATING = ("SingleDeviceStrategy", "DDPStrategy")
"""Lightning's strategies under which every process has all weights and gradients, and hands precision to its plugin."""


def is_lightnings_own(strategy: type[Any]) -> bool:
    """Whether a class of strategies stands in either of Lightning's packages."""
    return strategy.__module__.startswith(("lightning.pytorch.strategies.", "pytorch_lightning.strategies."))


def holds_whole_model(trainer: Trainer) -> bool:
    """Whether each process of a Trainer holds the whole model, so that it can compute with it by itself.

    DeepSpeed's strategy is derived from DDP's, and XLA's from the single device's: the first of Lightning's own classes
    decides.

    Args:
        trainer: The Trainer.
    """
    own = next((base for base in type(trainer.strategy).__mro__ if is_lightnings_own(base)), None)
    return own is not None and own.__name__ in REPLICATING
