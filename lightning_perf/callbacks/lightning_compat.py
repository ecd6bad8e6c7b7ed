"""What differs between `lightning.pytorch` and `pytorch_lightning`, and what Lightning offers no public name for.

The two packages install side by side and share no class: each Trainer accepts callbacks of its own package only, so a
callback for both inherits from both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

__all__ = [
    "REPLICATING",
    "LightningCallback",
    "Module",
    "Trainer",
    "holds_whole_model",
    "is_lightnings_own",
    "step_number",
]

Trainer: TypeAlias = Any
"""A `Trainer` of either package; they have no common type."""

Module: TypeAlias = Any
"""A `LightningModule` of either package."""

if TYPE_CHECKING:
    from lightning.pytorch import Callback as LightningCallback
else:
    _BASES = []
    try:
        from lightning.pytorch import Callback as _Callback

        _BASES.append(_Callback)
    except ImportError:
        pass
    try:
        from pytorch_lightning import Callback as _Callback

        _BASES.append(_Callback)
    except ImportError:
        pass
    if not _BASES:
        raise ImportError('PerfCallback needs Lightning. Install it with: pip install "lightning-perf[train]"')

    class LightningCallback(*_BASES):
        """A callback that is one of `lightning.pytorch` and of `pytorch_lightning`, whichever are installed."""


def step_number(trainer: Trainer) -> int:
    """Return the number of the step under way, on the axis of the Trainer's own logs."""
    try:
        return int(trainer.fit_loop.epoch_loop._batches_that_stepped)
    except AttributeError:
        return int(trainer.global_step)


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
