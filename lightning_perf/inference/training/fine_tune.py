"""`FineTuner`: trains a changed model on the real training data, and distils into it when given a teacher."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.training.distill import Distillation

if TYPE_CHECKING:
    from lightning.pytorch import LightningDataModule, Trainer
else:
    try:
        from lightning.pytorch import LightningDataModule, Trainer
    except ImportError:
        from pytorch_lightning import LightningDataModule, Trainer

__all__ = ["FineTuner"]


@dataclass(frozen=True)
class FineTuner:
    """A `FineTune` for transforms: ``FineTuner(loader)(module, teacher)`` trains a model and gives it back.

    Trains with Lightning, SGD with Nesterov momentum along a cosine, from a seed of its own, so that each variant sees
    the same batches. It leaves no logs and no checkpoints, and the random state as it was.

    Attributes:
        data: Batches ``(inputs, labels)`` as the model takes them: a ``DataLoader`` or another iterable with a length;
            or a ``LightningDataModule`` with its training data.
        epochs: Passes over the data.
        lr: Highest learning rate.
        weight_decay: L2 penalty.
        temperature: Of distillation.
        alpha: Weight of the soft labels in distillation.
        device: Where to train.
        seed: Of shuffling and dropout.
        progress: Whether to show a progress bar.
    """

    data: Any
    epochs: int = 1
    lr: float = 0.01
    weight_decay: float = 5e-4
    temperature: float = 4.0
    alpha: float = 0.5
    device: torch.device | str = "cpu"
    seed: int = 0
    progress: bool = False

    def __call__(self, module: nn.Module, teacher: nn.Module | None) -> nn.Module:
        """Train a model in place.

        Args:
            module: The model.
            teacher: A model to distil from, which stays as it is; None for the labels alone.

        Returns:
            The model, in eval mode on the CPU.

        Raises:
            VariantError: The training fails, or ends with weights that are not finite.
        """
        training = Distillation(
            module,
            teacher,
            temperature=self.temperature,
            alpha=self.alpha,
            lr=self.lr,
            weight_decay=self.weight_decay,
        )
        module.train()  # Lightning trains each layer in the mode that it finds it in
        with _quietly(), torch.random.fork_rng():
            torch.manual_seed(self.seed)
            try:
                self._fit(training)
            except Exception as error:
                raise VariantError(f"fine-tuning failed ({type(error).__name__}: {error})") from error
        module = module.cpu().eval()
        if not all(torch.isfinite(parameter).all() for parameter in module.parameters()):
            raise VariantError(f"fine-tuning at a learning rate of {self.lr} ended with weights that are not finite")
        return module

    def _fit(self, training: Distillation) -> None:
        device = torch.device(self.device)
        trainer = Trainer(
            max_epochs=self.epochs,
            accelerator=device.type,
            devices=1 if device.index is None else [device.index],
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=self.progress,
            limit_val_batches=0,
            num_sanity_val_steps=0,
        )
        if isinstance(self.data, LightningDataModule):
            trainer.fit(training, datamodule=self.data)
        else:
            trainer.fit(training, train_dataloaders=self.data)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what Lightning says and advises: that is about trainings of the user's own."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "pytorch_lightning")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
