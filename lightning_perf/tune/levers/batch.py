"""How many samples a batch and a step hold."""

from __future__ import annotations

from dataclasses import dataclass

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from lightning_perf.tune.lever import Machine
from lightning_perf.tune.loaders import change_loader, rebuilt, training_loader
from lightning_perf.tune.training import Training

__all__ = ["BatchSize", "FewerMicroBatches"]


@dataclass(frozen=True)
class BatchSize:
    """More samples a step: another training, so its learning rate has to be chosen anew.

    Attributes:
        factor: Samples of a batch over those of the user's.
    """

    factor: int
    family: str = "batch size"
    mends: tuple[str, ...] = ("memory-spare",)
    changes_training: bool = True

    @property
    def name(self) -> str:
        """See `Lever`."""
        return f"batch-size-x{self.factor}"

    @property
    def lines(self) -> tuple[str, ...]:
        """See `Lever`."""
        return (
            f"DataLoader(…, batch_size={self.factor} × batch_size)",
            f"lr = {self.factor} × lr  # linear scaling (Goyal et al. 2017, arXiv:1706.02677); check the accuracy",
        )

    def missing(self, training: Training, machine: Machine) -> str | None:  # noqa: ARG002
        """See `Lever`."""
        return _why_fixed(training_loader(training), self.factor)

    def apply(self, training: Training) -> None:
        """See `Lever`."""
        change_loader(training, lambda loader: rebuilt(loader, batch_size=(loader.batch_size or 1) * self.factor))


@dataclass(frozen=True)
class FewerMicroBatches:
    """Accumulation over half as many batches of twice the size: the same samples a step, in larger pieces."""

    name: str = "fewer-micro-batches"
    family: str = "accumulation"
    lines: tuple[str, ...] = (
        "DataLoader(…, batch_size=2 × batch_size)",
        "Trainer(accumulate_grad_batches=accumulate_grad_batches // 2)",
    )
    mends: tuple[str, ...] = ()
    changes_training: bool = False

    def missing(self, training: Training, machine: Machine) -> str | None:  # noqa: ARG002
        """See `Lever`."""
        batches = training.trainer.get("accumulate_grad_batches", 1)
        if batches < 2 or batches % 2:
            return "gradients are not accumulated over an even number of batches"
        return _why_fixed(training_loader(training), 2)

    def apply(self, training: Training) -> None:
        """See `Lever`."""
        training.trainer["accumulate_grad_batches"] //= 2
        change_loader(training, lambda loader: rebuilt(loader, batch_size=(loader.batch_size or 1) * 2))


def _why_fixed(loader: DataLoader[object] | None, factor: int) -> str | None:
    if loader is None:
        return "the training data do not come from a plain DataLoader"
    if loader.batch_size is None:
        return "the DataLoader makes no batches itself"
    if isinstance(loader.dataset, IterableDataset):
        return None
    if type(loader.batch_sampler) is not BatchSampler:
        return "the DataLoader has a batch sampler of its own"
    if len(loader.dataset) < loader.batch_size * factor:  # type: ignore[arg-type]
        return "the data set has fewer samples than that"
    return None
