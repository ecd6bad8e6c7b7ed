"""Which pictures train and which are held out.

A capture's copies are near-duplicates: a random split puts some on both sides, and the held-out accuracy then tells how
well the network remembers, not how well it reads new hands. Hence captures stay whole by default.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recipes.signlang.data.image_set import ImageSet
from recipes.signlang.errors import RecipeError
from recipes.signlang.settings import SplitKind

__all__ = ["Split", "split_images"]


@dataclass(frozen=True, eq=False)
class Split:
    """Two sides.

    Attributes:
        training: Rows of the pictures that train, ascending.
        held_out: Rows of the pictures held out, ascending.
        rule: How they were chosen, in words.
        held_out_units: Independent pictures among the held out: captures, or pictures after a random split.
    """

    training: NDArray[np.int64]
    held_out: NDArray[np.int64]
    rule: str
    held_out_units: int


def split_images(images: ImageSet, kind: SplitKind, fraction: float, seed: int) -> Split:
    """Split a data set, every label in the same proportion.

    Args:
        images: The data set. One that comes split keeps its sides, unless a random split is asked for.
        kind: By capture, or at random as the article did.
        fraction: Share of each label to hold out, of its captures or pictures; at least one, and never all.
        seed: Seed of the choice.

    Raises:
        RecipeError: A label has a single capture or picture, or a label is held out that is not trained.
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
        # A stream of its own for each label: another label's pictures do not change this one's choice.
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
