"""Settings of a training."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal

PRECISIONS = ("32-true", "tf32", "16-mixed", "bf16-mixed")
"""Precisions for ``compare``. ``32-true`` is FP32 without TF32; ``tf32`` is FP32 with it."""


class InputKind(str, Enum):
    """Source of the batches."""

    MEMORY = "memory"
    FILES = "files"


class SplitKind(str, Enum):
    """Rule for holding out pictures."""

    CAPTURE = "capture"
    RANDOM = "random"


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """One training; the defaults take about two minutes on two CPU cores.

    Attributes:
        precision: Lightning's name of the precision.
        data: Folder or zip of pictures; None for the synthetic set.
        cache_dir: Folder of the cached synthetic set; None for the user's cache folder.
        copies: Consecutive numbers of one capture in the flat layout; None to infer it from the data.
        skip_unreadable: Leave out unreadable pictures instead of raising an error.
        model: A key of `recipes.signlang.training.model.MODELS`.
        epochs: Passes over the training pictures.
        image_size: Width and height in pixels.
        batch_size: Pictures per batch.
        lr: Learning rate of SGD.
        split: Rule for holding out pictures.
        validation_fraction: Share of each label to hold out.
        seed: Seed of the weights and the order; without `data_seed` also of the synthetic data and the split.
        data_seed: Seed of the synthetic data and the split; None means `seed`.
        tf32: ``on`` or ``off`` sets TF32 for FP32 operations; None keeps PyTorch's setting.
        checkpoints: Save checkpoints.
        resume: Checkpoint of an interrupted training to resume.
        input: Pictures decoded once into memory, or from their files each time they are drawn.
        augment: Rotate and shift training pictures slightly, by new amounts each time.
        workers: DataLoader worker processes; None chooses a number that fits the cores.
        accelerator: Lightning's name of the accelerator.
        devices: Number of devices.
        log_dir: Folder for the logs.
    """

    precision: str = "32-true"
    data: Path | None = None
    cache_dir: Path | None = None
    copies: int | None = None
    skip_unreadable: bool = False
    model: str = "resnet18"
    epochs: int = 3
    image_size: int = 64
    batch_size: int = 32
    lr: float = 0.01
    split: SplitKind = SplitKind.CAPTURE
    validation_fraction: float = 0.2
    seed: int = 0
    data_seed: int | None = None
    tf32: Literal["on", "off"] | None = None
    checkpoints: bool = True
    resume: Path | None = None
    input: InputKind = InputKind.MEMORY
    augment: bool = False
    workers: int | None = None
    accelerator: str = "auto"
    devices: int = 1
    log_dir: Path = Path("lightning_logs")

    @property
    def seed_of_data(self) -> int:
        """The seed of the synthetic data and the split."""
        return self.seed if self.data_seed is None else self.data_seed
