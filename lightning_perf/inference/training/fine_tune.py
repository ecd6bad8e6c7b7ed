"""`FineTuner`: train a changed model on real training data, with or without a teacher."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.training.distill import Distillation

if TYPE_CHECKING:
    from lightning.pytorch import LightningDataModule, Trainer
else:
    try:
        from lightning.pytorch import LightningDataModule, Trainer
    except ImportError:
        from pytorch_lightning import LightningDataModule, Trainer

TEMPERATURES = (1.0, 2.0, 4.0)
"""Temperatures that `FineTuner.choose_temperature` tries. Hinton et al. used 2 to 20; low ones suit small students."""


@dataclass(frozen=True)
class FineTuner:
    """Trains changed models on real training data: ``FineTuner(loader)(module, teacher)`` returns the trained model.

    It trains with Lightning and `Distillation`: SGD with Nesterov momentum, a warm-up, and a rate that falls along a
    cosine. The seed is fixed, so each variant sees the same batches. It writes no logs and no checkpoints, and restores
    the state of the random number generators.

    Attributes:
        data: Training batches ``(inputs, labels)``: a ``DataLoader``, another iterable with a length, or a
            ``LightningDataModule``.
        epochs: Passes over the data.
        lr: Highest learning rate; `Distillation` lowers it for distilled students.
        weight_decay: L2 penalty.
        temperature: Temperature for distillation; see `choose_temperature`.
        alpha: Weight of the soft labels for distillation.
        device: The device to train on.
        seed: Seed for shuffling and dropout.
        progress: Whether to show a progress bar.
    """

    data: Any
    epochs: int = 1
    lr: float = 0.01
    weight_decay: float = 5e-4
    temperature: float = 2.0
    alpha: float = 0.5
    device: torch.device | str = "cpu"
    seed: int = 0
    progress: bool = False

    def __call__(self, module: nn.Module, teacher: nn.Module | None) -> nn.Module:
        """Train a model in place.

        Args:
            module: The model.
            teacher: A model to distil from, which stays unchanged; None to train on the labels alone.

        Returns:
            The model, in eval mode on the CPU.

        Raises:
            VariantError: The training fails or diverges.
        """
        training = Distillation(
            module,
            teacher,
            temperature=self.temperature,
            alpha=self.alpha,
            lr=self.lr,
            weight_decay=self.weight_decay,
        )
        module.train()  # Lightning keeps the mode of each layer as it finds it
        with _quietly(), torch.random.fork_rng():
            torch.manual_seed(self.seed)
            try:
                self._fit(training)
            except Exception as error:
                raise VariantError(f"fine-tuning failed ({type(error).__name__}: {error})") from error
        module = module.cpu().eval()
        if training.divergence is not None:
            raise VariantError(
                f"its training diverged at a learning rate of {training.peak_lr:.3g}: {training.divergence}"
            )
        if not all(torch.isfinite(parameter).all() for parameter in module.parameters()):
            raise VariantError(
                f"its training at a learning rate of {training.peak_lr:.3g} left NaN or infinite weights"
            )
        return module

    def choose_temperature(
        self,
        module: nn.Module,
        teacher: nn.Module,
        held_out: Iterable[tuple[Tensor, Tensor]],
        temperatures: Sequence[float] = TEMPERATURES,
    ) -> float:
        """Return the temperature that gives the most accurate student on held-out data.

        Each temperature trains a copy of the student on `data`. Hold the data out from the training data, not from the
        data that you judge the final model on.

        Args:
            module: The untrained student, which stays unchanged.
            teacher: The model to distil from.
            held_out: Batches ``(inputs, labels)``.
            temperatures: Temperatures to try.

        Raises:
            VariantError: The training fails or diverges at every temperature.
        """
        scores: list[tuple[float, float, float]] = []
        problem: VariantError | None = None
        batches = list(held_out)
        for temperature in temperatures:
            try:
                student = replace(self, temperature=temperature)(copy.deepcopy(module), teacher)
            except VariantError as error:
                problem = error
                continue
            scores.append((*_score(student, batches), temperature))
        if not scores:
            assert problem is not None
            raise problem
        return max(scores)[-1]

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


@torch.inference_mode()
def _score(module: nn.Module, batches: Sequence[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """Return the accuracy of a model, and its negative cross-entropy, which decides between equal accuracies."""
    outputs = [(module(inputs.clone()), labels) for inputs, labels in batches]
    logits, labels = torch.cat([logits for logits, _ in outputs]), torch.cat([labels for _, labels in outputs])
    return float((logits.argmax(1) == labels).float().mean()), -float(functional.cross_entropy(logits, labels))


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence Lightning's messages and warnings: its advice is for the user's own trainings."""
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
