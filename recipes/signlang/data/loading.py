"""Load and split the pictures that settings name, and record which of them trained."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recipes.signlang.data.image_set import ImageSet, read_image_set
from recipes.signlang.data.split import Split, split_images
from recipes.signlang.settings import InputKind, SplitKind, TrainSettings
from recipes.signlang.synthetic.dataset import SyntheticSet, default_cache_dir, ensure_synthetic


def load_data(settings: TrainSettings, say: Callable[[str], None]) -> tuple[ImageSet, Split]:
    """Read and split the data, and describe them.

    Args:
        settings: Settings of the data and the split.
        say: Called with each line of the description.

    Raises:
        RecipeError: The data cannot be used.
    """
    images, split, seconds = read_data(settings)
    kind = "synthetic (rendered hands, no photographs)" if settings.data is None else images.layout
    left_out = f", without {images.skipped} unreadable ones" if images.skipped else ""
    twice = f", without {images.duplicates} repeated ones" if images.duplicates else ""
    store = "a temporary file" if images.on_disk else "memory"
    say(f"Data    {kind}: {len(images)} pictures, {len(images.classes)} labels{left_out}{twice}, from {images.path}")
    if settings.input is InputKind.FILES:
        say(f"        all readable, checked in {seconds:.1f} s; decoded from its file whenever one is drawn")
    else:
        say(f"        decoded once into {store}: {images.pictures.nbytes / 1e6:.0f} MB in {seconds:.1f} s")
    say(f"Split   {split.rule}")
    say(f"        {len(split.training)} pictures train, {len(split.held_out)} are held out")
    return images, split


def read_data(settings: TrainSettings) -> tuple[ImageSet, Split, float]:
    """Read and split the data; if needed, render the synthetic set first.

    Args:
        settings: The training.

    Returns:
        The pictures, their split, and the time to read them in seconds.

    Raises:
        RecipeError: The data cannot be used.
    """
    path = settings.data
    if path is None:
        spec = SyntheticSet(seed=settings.seed_of_data, size=settings.image_size)
        path = ensure_synthetic(spec, settings.cache_dir or default_cache_dir())
    began = time.perf_counter()
    images = read_image_set(path, settings.image_size, copies=settings.copies, skip_unreadable=settings.skip_unreadable)
    seconds = time.perf_counter() - began
    return images, split_images(images, settings.split, settings.validation_fraction, settings.seed_of_data), seconds


@dataclass(frozen=True, kw_only=True)
class DataRecord:
    """Facts to find the same training and held-out pictures again, and to check that they are the same.

    Attributes:
        data: Folder or zip; None for the embedded synthetic set.
        copies: As in `TrainSettings`.
        skip_unreadable: As in `TrainSettings`.
        image_size: As in `TrainSettings`.
        split: Value of a `SplitKind`.
        validation_fraction: As in `TrainSettings`.
        data_seed: Seed of the embedded data and the split.
        augment: Whether training pictures were rotated and shifted slightly.
        digest: `training_digest` of the training pictures.
    """

    data: str | None
    copies: int | None
    skip_unreadable: bool
    image_size: int
    split: str
    validation_fraction: float
    data_seed: int
    augment: bool
    digest: str

    @classmethod
    def of(cls, settings: TrainSettings, images: ImageSet, split: Split) -> DataRecord:
        """Make the record of a training."""
        return cls(
            data=None if settings.data is None else str(settings.data.absolute()),
            copies=settings.copies,
            skip_unreadable=settings.skip_unreadable,
            image_size=settings.image_size,
            split=settings.split.value,
            validation_fraction=settings.validation_fraction,
            data_seed=settings.seed_of_data,
            augment=settings.augment,
            digest=training_digest(images, split),
        )

    def settings(self, *, data: Path | None = None, cache_dir: Path | None = None) -> TrainSettings:
        """Return settings that find the pictures again.

        Args:
            data: Path of the data now; None for the recorded path.
            cache_dir: Folder of the cached synthetic set.
        """
        return TrainSettings(
            data=data or (None if self.data is None else Path(self.data)),
            cache_dir=cache_dir,
            copies=self.copies,
            skip_unreadable=self.skip_unreadable,
            image_size=self.image_size,
            split=SplitKind(self.split),
            validation_fraction=self.validation_fraction,
            data_seed=self.data_seed,
            augment=self.augment,
        )

    def as_state(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> DataRecord:
        """Read the result of `as_state`.

        Raises:
            TypeError: A field is missing, or this version does not know it.
        """
        return cls(**state)


def training_digest(images: ImageSet, split: Split) -> str:
    """Return a digest of the training pictures and their labels: BLAKE2b with 128 bits.

    Args:
        images: The dataset.
        split: Its training and held-out pictures.
    """
    digest = hashlib.blake2b(digest_size=16)
    for row in split.training:
        digest.update(images.pictures[row].tobytes())
        digest.update(images.classes[images.labels[row]].encode())
    return digest.hexdigest()
