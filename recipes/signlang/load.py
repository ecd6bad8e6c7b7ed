"""Read the data that settings name, and split them."""

from __future__ import annotations

import time
from collections.abc import Callable

from recipes.signlang.image_set import ImageSet, read_image_set
from recipes.signlang.settings import InputKind, TrainSettings
from recipes.signlang.split import Split, split_images
from recipes.signlang.synthetic import SyntheticSet, default_cache_dir, ensure_synthetic

__all__ = ["load_data"]


def load_data(settings: TrainSettings, on_progress: Callable[[str], None]) -> tuple[ImageSet, Split]:
    """Read the data, split them, and say what they are.

    Args:
        settings: What names and splits them.
        on_progress: Called with each line of progress.

    Raises:
        RecipeError: They cannot be used.
    """
    if settings.data is None:
        spec = SyntheticSet(seed=settings.seed_of_data, size=settings.image_size)
        path = ensure_synthetic(spec, settings.cache_dir or default_cache_dir())
    else:
        path = settings.data
    began = time.perf_counter()
    images = read_image_set(path, settings.image_size, copies=settings.copies, skip_unreadable=settings.skip_unreadable)
    seconds = time.perf_counter() - began
    split = split_images(images, settings.split, settings.validation_fraction, settings.seed_of_data)
    kind = "synthetic (rendered hands, no photographs)" if settings.data is None else images.layout
    left_out = f", {images.skipped} unreadable left out" if images.skipped else ""
    twice = f", {images.duplicates} doubled left out" if images.duplicates else ""
    store = "a temporary file" if images.on_disk else "memory"
    on_progress(f"Data    {kind}: {len(images)} pictures, {len(images.classes)} labels{left_out}{twice}, from {path}")
    if settings.input is InputKind.FILES:
        on_progress(f"        all readable, checked in {seconds:.1f} s; decoded from its file whenever one is drawn")
    else:
        on_progress(f"        decoded once into {store}: {images.pictures.nbytes / 1e6:.0f} MB in {seconds:.1f} s")
    on_progress(f"Split   {split.rule}")
    on_progress(f"        {len(split.training)} pictures train, {len(split.held_out)} are held out")
    return images, split
