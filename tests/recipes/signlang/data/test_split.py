"""Splits of the sign-language recipe."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from recipes.signlang.data.image_set import ImageSet, infer_copies, read_image_set
from recipes.signlang.data.split import split_images
from recipes.signlang.errors import RecipeError
from recipes.signlang.settings import SplitKind


def image_set(labels: int = 3, captures: int = 5, copies: int = 10) -> ImageSet:
    count = labels * captures * copies
    return ImageSet(
        path=Path("set"),
        layout="flat",
        classes=tuple("abcdefgh"[:labels]),
        pictures=np.zeros((count, 18, 18), np.uint8),
        labels=np.repeat(np.arange(labels), captures * copies),
        captures=np.repeat(np.arange(labels * captures), copies),
        capture_rule="rule",
        held_out=None,
    )


@pytest.mark.parametrize("seed", range(5))
def test_capture_split_keeps_captures_whole_and_labels_in_proportion(seed):
    images = image_set()
    split = split_images(images, SplitKind.CAPTURE, 0.4, seed)
    assert not set(images.captures[split.training]) & set(images.captures[split.held_out])
    assert sorted([*split.training, *split.held_out]) == list(range(len(images)))
    assert np.bincount(images.labels[split.held_out]).tolist() == [20, 20, 20]
    assert split.held_out_units == 6


def test_random_split_puts_captures_on_both_sides():
    images = image_set()
    split = split_images(images, SplitKind.RANDOM, 0.2, 0)
    assert set(images.captures[split.training]) & set(images.captures[split.held_out])
    assert np.bincount(images.labels[split.held_out]).tolist() == [10, 10, 10]
    assert split.held_out_units == 30
    assert "article" in split.rule


def test_splits_depend_on_the_seed_alone():
    images = image_set()
    first, again, other = (split_images(images, SplitKind.CAPTURE, 0.4, seed).held_out for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("fraction", [0.01, 0.99])
def test_no_side_of_a_label_is_empty(fraction):
    images = image_set(captures=2)
    split = split_images(images, SplitKind.CAPTURE, fraction, 0)
    assert np.bincount(images.labels[split.held_out]).tolist() == [10, 10, 10]


def test_a_single_capture_cannot_be_split():
    with pytest.raises(RecipeError, match=r"'a' has a single capture.*--copies"):
        split_images(image_set(captures=1), SplitKind.CAPTURE, 0.2, 0)


def test_a_data_set_that_comes_split_keeps_its_sides():
    images = image_set()
    given = np.arange(len(images)) % 7 == 0
    split = split_images(replace(images, held_out=given), SplitKind.CAPTURE, 0.2, 0)
    assert np.array_equal(split.held_out, np.flatnonzero(given))
    untrained = images.labels == 2
    with pytest.raises(RecipeError, match="'c' has test pictures, but no training pictures"):
        split_images(replace(images, held_out=untrained), SplitKind.CAPTURE, 0.2, 0)


@pytest.mark.parametrize("copies", [3, 4, 5, 8])
def test_captures_told_by_likeness(copies):
    rng = np.random.default_rng(0)
    labels, numbers, pictures = [], [], []
    for label in "abc":
        for number in range(2 * copies):
            if number % copies == 0:
                capture = rng.integers(0, 200, (18, 18))
            pictures.append((capture + rng.integers(0, 40, (18, 18))).astype(np.uint8))
            labels.append(label)
            numbers.append(number)
    assert infer_copies(np.stack(pictures), labels, numbers) == copies
    assert infer_copies(rng.integers(0, 256, (8, 18, 18)).astype(np.uint8), ["a"] * 8, list(range(8))) is None


@pytest.mark.corpus
def test_real_pictures_in_captures_of_four(corpus):
    images = read_image_set(corpus / "data" / "vector_layout_tiny", 32)
    assert (len(images), len(images.classes), len(np.unique(images.captures))) == (200, 25, 50)
    assert "runs of 4" in images.capture_rule


@pytest.mark.corpus
def test_real_digits_in_class_folders(corpus):
    images = read_image_set(corpus / "data" / "digits", 24)
    assert (len(images), images.classes) == (2062, tuple("0123456789"))
    assert images.skipped == 0
