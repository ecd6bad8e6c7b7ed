"""Levers for the number of samples per batch and per step."""

from __future__ import annotations

from dataclasses import dataclass

from torch.utils.data import DataLoader, IterableDataset

from lightning_perf.tune.levers.input import change_loader, rebuilt, training_loader
from lightning_perf.tune.levers.lever import Machine
from lightning_perf.tune.training import Training


@dataclass(frozen=True)
class BatchSize:
    """More samples per step. This is another training, so the user has to choose its learning rate again.

    Attributes:
        factor: Samples per batch, relative to the user's batch size.
    """

    factor: int

    def missing(self, training: Training, machine: Machine) -> str | None:  # noqa: ARG002
        """See `Change`."""
        return _why_fixed(training_loader(training), self.factor)

    def lines(self, training: Training) -> tuple[str, ...]:
        """See `Change`."""
        # If gradients are accumulated, a kept `FewerMicroBatches` may already have changed the batch size.
        accumulated = training.trainer.get("accumulate_grad_batches", 1) > 1
        size = f"{self.factor} * batch_size" if accumulated else self.factor * _batch_size(training_loader(training))
        return (
            f"DataLoader(…, batch_size={size})",
            f"lr = {self.factor} * lr  # linear scaling (Goyal et al. 2017, arXiv:1706.02677): check the accuracy",
        )

    def apply(self, training: Training) -> None:
        """See `Change`."""
        _enlarge(training, self.factor)


class FewerMicroBatches:
    """Accumulation over half as many batches of twice the size: the same samples per step, in larger batches."""

    def missing(self, training: Training, machine: Machine) -> str | None:  # noqa: ARG002
        """See `Change`."""
        batches = training.trainer.get("accumulate_grad_batches", 1)
        if batches < 2 or batches % 2:
            return "gradients are not accumulated over an even number of batches"
        return _why_fixed(training_loader(training), 2)

    def lines(self, training: Training) -> tuple[str, ...]:
        """See `Change`."""
        return (
            f"DataLoader(…, batch_size={2 * _batch_size(training_loader(training))})",
            f"Trainer(accumulate_grad_batches={training.trainer['accumulate_grad_batches'] // 2})",
        )

    def apply(self, training: Training) -> None:
        """See `Change`."""
        training.trainer["accumulate_grad_batches"] //= 2
        _enlarge(training, 2)


def _enlarge(training: Training, factor: int) -> None:
    change_loader(training, lambda loader: rebuilt(loader, batch_size=_batch_size(loader) * factor))


def _batch_size(loader: DataLoader[object] | str) -> int:
    return 1 if isinstance(loader, str) else loader.batch_size or 1


def _why_fixed(loader: DataLoader[object] | str, factor: int) -> str | None:
    if isinstance(loader, str):
        return loader
    if loader.batch_size is None:
        own = loader.batch_sampler is not None
        return "the DataLoader has a batch sampler of its own" if own else "the DataLoader makes no batches itself"
    if isinstance(loader.dataset, IterableDataset):
        return None
    try:
        samples = len(loader.sampler)  # type: ignore[arg-type]  # that it has one is asked here
    except (TypeError, NotImplementedError):
        return None  # an endless sampler
    return "an epoch has fewer samples than that" if samples < loader.batch_size * factor else None
