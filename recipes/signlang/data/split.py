"""Split pictures into a training and a held-out side.

The copies of a capture are near-duplicates. A random split puts some of them on both sides, and the held-out accuracy
then measures memory, not how well the network reads new hands. So captures stay whole by default.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recipes.signlang.data.image_set import ImageSet
from recipes.signlang.errors import RecipeError
from recipes.signlang.settings import SplitKind


@dataclass(frozen=True, eq=False)
class Split:
    """The training and the held-out pictures.

    Attributes:
        training: Rows of the training pictures, ascending.
        held_out: Rows of the held-out pictures, ascending.
        rule: The rule of the split, in words.
        held_out_units: Number of independent held-out units: captures, or pictures after a random split.
    """

    training: NDArray[np.int64]
    held_out: NDArray[np.int64]
    rule: str
    held_out_units: int


def split_images(images: ImageSet, kind: SplitKind, fraction: float, seed: int) -> Split:
    """Split a dataset, with the same share of every label.

    Args:
        images: The dataset. If it has a split of its own, it keeps that, except for a random split.
        kind: By capture, or at random as in the article.
        fraction: Share of each label's captures or pictures to hold out; at least one, and never all of them.
        seed: Seed of the split.

    Raises:
        RecipeError: A label has a single capture or picture, or a held-out label has no training pictures.
    """
    if kind is SplitKind.CAPTURE and images.held_out is not None:
        return _as_given(images)
    units = images.captures if kind is SplitKind.CAPTURE else np.arange(len(images))
    chosen = np.zeros(len(images), bool)
    for number, label in enumerate(images.classes):
        own = np.unique(units[images.labels == number])
        if len(own) < 2:
            what = "capture" if kind is SplitKind.CAPTURE else "picture"
            problem = f"label {label!r} has a single {what}, so none can be held out"
            by_capture = "Use --split random, or --copies N if N numbers make a capture"
            raise RecipeError(images.path, problem, by_capture if what == "capture" else "Add pictures of it")
        count = min(max(1, round(fraction * len(own))), len(own) - 1)
        # Each label has its own random stream, so that pictures of other labels do not change its split.
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,)))
        chosen |= np.isin(units, rng.choice(own, count, replace=False))
    if kind is SplitKind.CAPTURE:
        rule = f"by capture ({images.capture_rule})"
    else:
        rule = "random, as in the article: copies of one capture are on both sides, so the accuracy is too high"
    return _sides(chosen, rule, units)


def _as_given(images: ImageSet) -> Split:
    assert images.held_out is not None
    missing = np.setdiff1d(images.labels[images.held_out], images.labels[~images.held_out])
    if missing.size:
        problem = f"label {images.classes[missing[0]]!r} has test pictures, but no training pictures"
        raise RecipeError(images.path, problem, "Add training pictures of it, or use --split random")
    return _sides(images.held_out, "as the data set comes, by its train and test parts", images.captures)


def _sides(held_out: NDArray[np.bool_], rule: str, units: NDArray[np.int64]) -> Split:
    return Split(np.flatnonzero(~held_out), np.flatnonzero(held_out), rule, len(np.unique(units[held_out])))
