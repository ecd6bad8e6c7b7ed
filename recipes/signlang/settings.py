"""What can be chosen about a training."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal

__all__ = ["PRECISIONS", "InputKind", "SplitKind", "TrainSettings"]

PRECISIONS = ("32-true", "tf32", "16-mixed", "bf16-mixed")
"""The precisions that ``compare`` trains in. ``32-true`` is without TF32, ``tf32`` with it."""


class InputKind(str, Enum):
    """Where batches come from."""

    MEMORY = "memory"
    FILES = "files"


class SplitKind(str, Enum):
    """How pictures are held out."""

    CAPTURE = "capture"
    RANDOM = "random"


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """One training; the defaults take about two minutes on two CPU cores.

    Attributes:
        precision: Lightning's name of the precision.
        data: Folder or zip of pictures; None for the embedded synthetic set.
        cache_dir: Where the embedded set is kept; None for the user's cache folder.
        copies: Consecutive numbers of one capture in the flat layout; None to tell by the data.
        skip_unreadable: Leave unreadable pictures out instead of refusing the data.
        model: A key of `recipes.signlang.training.model.MODELS`.
        epochs: Passes over the training pictures.
        image_size: Width and height in pixels.
        batch_size: Pictures a batch.
        lr: Learning rate of SGD.
        split: How pictures are held out.
        validation_fraction: Share of each label to hold out.
        seed: Seed of the weights and the order; without `data_seed` also of the embedded data and the split.
        data_seed: Seed of the embedded data and the split; None takes `seed`.
        tf32: ``on`` or ``off`` sets TF32 for what computes in FP32; None leaves it alone.
        checkpoints: Save checkpoints.
        resume: Checkpoint of an interrupted training to go on from.
        input: Pictures decoded once into memory, or from their files each time they are drawn.
        augment: Rotate and shift training pictures a little, every time anew.
        workers: DataLoader worker processes; None chooses by the cores.
        accelerator: Lightning's name of the accelerator.
        devices: Number of devices.
        log_dir: Where runs are logged.
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
        """The seed that draws the embedded data and the split."""
        return self.seed if self.data_seed is None else self.data_seed
