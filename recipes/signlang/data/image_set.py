"""A data set in memory: pictures, labels and captures, from whatever the user named."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recipes.signlang.data.decoding import decode_all, progress
from recipes.signlang.data.layouts import ORIGINAL_COPIES, Catalogue, Item, find_tables, list_items, ordered, read_table
from recipes.signlang.data.sources import Source, open_source
from recipes.signlang.errors import RecipeError

__all__ = ["ImageSet", "infer_copies", "read_image_set"]


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageSet:
    """Pictures and what is known of each.

    Attributes:
        path: Where they came from.
        layout: How they were laid out, in words.
        classes: The labels, in the order of their numbers.
        pictures: ``(n, size, size)`` grey values.
        labels: ``(n,)`` number of the label.
        captures: ``(n,)`` number of the capture; pictures with the same number are copies of each other.
        capture_rule: How captures were told apart, in words.
        held_out: ``(n,)`` whether the data set itself holds a picture out, or None where it does not come split.
        skipped: Unreadable files left out.
        duplicates: Files left out because a doubled folder holds the same again.
        names: The file of each picture in the source; None where pictures lie in tables.
    """

    path: Path
    layout: str
    classes: tuple[str, ...]
    pictures: NDArray[np.uint8]
    labels: NDArray[np.int64]
    captures: NDArray[np.int64]
    capture_rule: str
    held_out: NDArray[np.bool_] | None
    skipped: int = 0
    duplicates: int = 0
    names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def on_disk(self) -> bool:
        """Whether the pictures were too many for memory and lie in a temporary file."""
        return isinstance(self.pictures, np.memmap)


def read_image_set(path: Path, size: int, *, copies: int | None = None, skip_unreadable: bool = False) -> ImageSet:
    """Read a data set: a folder or a zip, in any of the layouts that docs/data.md names.

    Args:
        path: The folder or zip.
        size: Width and height to scale pictures to.
        copies: Consecutive numbers that are copies of one capture in the flat layout. None takes the original's ten,
            or what the pictures tell where ten would leave a label with a single capture.
        skip_unreadable: Leave files out that cannot be read, with one warning, instead of refusing the data set.

    Raises:
        RecipeError: The path is wrong, `recipes.signlang.data.layouts` refuses the data, or a picture cannot be read.
    """
    source = open_source(path)
    tables = find_tables(source)
    if tables:
        return _from_tables(source, tables, size)
    return _from_files(source, list_items(source), size, copies=copies, skip_unreadable=skip_unreadable)


def _from_tables(source: Source, names: Sequence[str], size: int) -> ImageSet:
    tables = {name: read_table(source, name, size) for name in names}
    label_names = [label for labels, _ in tables.values() for label in labels]
    sides = np.concatenate([np.full(len(labels), "test" in name.lower()) for name, (labels, _) in tables.items()])
    classes = _classes(source, label_names)
    return ImageSet(
        path=source.path,
        layout="Sign-Language-MNIST tables",
        classes=classes,
        pictures=np.concatenate([pictures for _, pictures in tables.values()]),
        labels=np.array([classes.index(label) for label in label_names]),
        captures=np.arange(len(label_names)),
        capture_rule="the tables do not tell captures: every picture counts as its own",
        held_out=sides if 0 < sides.sum() < len(sides) else None,
    )


def _from_files(
    source: Source, catalogue: Catalogue, size: int, *, copies: int | None, skip_unreadable: bool
) -> ImageSet:
    items = list(catalogue.items)
    with progress(len(items)) as bar:
        decoded = decode_all(source, [item.name for item in items], size, on_picture=bar.update)
    pictures = decoded.pictures
    if decoded.unreadable:
        row, reason = decoded.unreadable[0]
        first = source.locate(items[row].name)
        others = f", and so are {len(decoded.unreadable) - 1} more" if len(decoded.unreadable) > 1 else ""
        if not skip_unreadable:
            problem = f"unreadable picture ({reason}){others}"
            raise RecipeError(first, problem, "Replace or remove it, or pass --skip-unreadable to train without")
        warnings.warn(f"left out {len(decoded.unreadable)} unreadable pictures, first {first}: {reason}", stacklevel=3)
        bad = {row for row, _ in decoded.unreadable}
        rows = np.array([row for row in range(len(items)) if row not in bad], np.int64)
        items, pictures = [items[row] for row in rows], pictures[rows]
        if not items:
            raise RecipeError(source.path, "no readable picture in it", "Download it again")
    classes = _classes(source, [item.label for item in items])
    # A train or a test part alone is not split.
    sides = np.array([bool(item.held_out) for item in items])
    captures, rule = _number_captures(Catalogue(catalogue.layout, tuple(items), 0), pictures, copies)
    return ImageSet(
        path=source.path,
        layout=catalogue.layout,
        classes=classes,
        pictures=pictures,
        labels=np.array([classes.index(item.label) for item in items]),
        captures=captures,
        capture_rule=rule,
        held_out=sides if 0 < sides.sum() < len(sides) else None,
        skipped=len(decoded.unreadable),
        duplicates=catalogue.duplicates,
        names=tuple(item.name for item in items),
    )


def _classes(source: Source, labels: Sequence[str]) -> tuple[str, ...]:
    classes = ordered(labels)
    if len(classes) < 2:
        problem = f"all pictures have one label, {classes[0]!r}"
        raise RecipeError(source.path, problem, "Name the folder that holds the pictures of all labels")
    return classes


def _number_captures(
    catalogue: Catalogue, pictures: NDArray[np.uint8], copies: int | None
) -> tuple[NDArray[np.int64], str]:
    """The number of each picture's capture, and the rule in words."""
    items = catalogue.items
    numbers = [item.number for item in items if item.number is not None]
    if not numbers:
        return _numbered([(item.label, item.capture) for item in items]), "one capture a file name"
    rule = f"captures are runs of {copies or ORIGINAL_COPIES} numbers"
    if copies is None and _fewest_captures(items) < 2 and len(numbers) == len(items):
        copies = infer_copies(pictures, [item.label for item in items], numbers)
        if copies is not None:
            rule = f"captures are runs of {copies} numbers, told by how alike the pictures are"
    if copies is not None:
        items = tuple(
            item if item.number is None else replace(item, capture=str(item.number // copies)) for item in items
        )
    return _numbered([(item.label, item.capture) for item in items]), rule


def _fewest_captures(items: Sequence[Item]) -> int:
    by_label: dict[str, set[str]] = defaultdict(set)
    for item in items:
        by_label[item.label].add(item.capture)
    return min(len(captures) for captures in by_label.values())


def _numbered(keys: Sequence[tuple[str, str]]) -> NDArray[np.int64]:
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return np.array([numbers[key] for key in keys], np.int64)


_CLEAR_DROP = 0.1
"""How much less alike pictures must be across captures than within one; rotated copies correlate above 0.9."""


def infer_copies(pictures: NDArray[np.uint8], labels: Sequence[str], numbers: Sequence[int]) -> int | None:
    """Find the length of a capture from where consecutive pictures stop to look alike.

    Args:
        pictures: ``(n, height, width)`` grey values.
        labels: The label of each.
        numbers: The number of each within its label.

    Returns:
        The number of copies of each capture, or None when no number of them is clearly right.
    """
    rows = {(label, number): row for row, (label, number) in enumerate(zip(labels, numbers, strict=True))}
    pairs = [(row, rows[label, n + 1], n + 1) for (label, n), row in rows.items() if (label, n + 1) in rows]
    if not pairs:
        return None
    alike = np.array([_correlation(pictures[a], pictures[b]) for a, b, _ in pairs])
    begins = np.array([number for _, _, number in pairs])
    drops = {}
    for copies in range(2, int(begins.max()) + 1):
        across = begins % copies == 0
        if across.any() and not across.all():
            drops[copies] = float(alike[~across].mean() - alike[across].mean())
    best = max(drops, key=lambda copies: drops[copies], default=0)
    return best if drops.get(best, 0.0) > _CLEAR_DROP else None


def _correlation(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> float:
    """Pearson's r of the grey values; 1 for two pictures of one grey."""
    x, y = a.ravel() - a.mean(), b.ravel() - b.mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale else 1.0
