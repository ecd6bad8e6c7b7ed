"""How batches are made and moved."""

from __future__ import annotations

from dataclasses import dataclass

from torch.utils.data import IterableDataset

from lightning_perf.tune.lever import Machine
from lightning_perf.tune.loaders import change_loader, rebuilt, training_loader
from lightning_perf.tune.training import Training

__all__ = ["PinnedMemory", "Workers"]


@dataclass(frozen=True)
class Workers:
    """Batches made by worker processes that live on over epochs.

    Attributes:
        count: Worker processes.
        prefetch: Batches that each of them holds ready.
    """

    count: int
    prefetch: int = 2
    family: str = "workers"
    mends: tuple[str, ...] = ("input-bound",)
    changes_training: bool = False

    @property
    def name(self) -> str:
        """See `Lever`."""
        return f"workers-{self.count}" + (f"-prefetch-{self.prefetch}" if self.prefetch != 2 else "")

    def lines(self, training: Training) -> tuple[str, ...]:  # noqa: ARG002
        """See `Lever`."""
        prefetch = f", prefetch_factor={self.prefetch}" if self.prefetch != 2 else ""
        return (f"DataLoader(…, num_workers={self.count}, persistent_workers=True{prefetch})",)

    def missing(self, training: Training, machine: Machine) -> str | None:
        """See `Lever`."""
        loader = training_loader(training)
        if isinstance(loader, str):
            return loader
        if self.count > machine.cores:
            return f"there are {machine.cores} cores"
        if self.count > 1 and isinstance(loader.dataset, IterableDataset):
            return "each worker would give all samples of an iterable data set, unless it shares them out itself"
        same = loader.num_workers == self.count and loader.persistent_workers
        return "is so already" if same and (loader.prefetch_factor or 2) == self.prefetch else None

    def apply(self, training: Training) -> None:
        """See `Lever`."""
        change_loader(
            training,
            lambda loader: rebuilt(
                loader, num_workers=self.count, persistent_workers=True, prefetch_factor=self.prefetch
            ),
        )


@dataclass(frozen=True)
class PinnedMemory:
    """Batches in page-locked memory, which a GPU copies from without waiting."""

    name: str = "pin-memory"
    family: str = "pinning"
    mends: tuple[str, ...] = ("pageable-copies",)
    changes_training: bool = False

    def missing(self, training: Training, machine: Machine) -> str | None:
        """See `Lever`."""
        if machine.device != "cuda":
            return "needs a CUDA GPU"
        loader = training_loader(training)
        if isinstance(loader, str):
            return loader
        return "is so already" if loader.pin_memory else None

    def lines(self, training: Training) -> tuple[str, ...]:  # noqa: ARG002
        """See `Lever`."""
        return ("DataLoader(…, pin_memory=True)",)

    def apply(self, training: Training) -> None:
        """See `Lever`."""
        change_loader(training, lambda loader: rebuilt(loader, pin_memory=True))
