"""Read a dataset into memory: pictures, labels and captures, from a folder, a zip or tables."""

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


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageSet:
    """Pictures with their labels and captures.

    Attributes:
        path: Path of the dataset.
        layout: Name of its layout.
        classes: The labels, in the order of their numbers.
        pictures: Grey values, ``(n, size, size)``.
        labels: Number of each picture's label, ``(n,)``.
        captures: Number of each picture's capture, ``(n,)``; pictures with the same number are copies of each other.
        capture_rule: Rule that identified the captures, in words.
        held_out: Whether the dataset itself holds a picture out, ``(n,)``; None if it has no such split.
        skipped: Number of unreadable files that were left out.
        duplicates: Number of files that were left out because a nested folder repeats them.
        names: File of each picture in the source; None for pictures in tables.
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
        """Whether the pictures are in a temporary file because memory is too small."""
        return isinstance(self.pictures, np.memmap)


def read_image_set(path: Path, size: int, *, copies: int | None = None, skip_unreadable: bool = False) -> ImageSet:
    """Read a dataset: a folder or a zip, in any of the layouts in docs/data.md.

    Args:
        path: The folder or zip.
        size: Width and height of the scaled pictures.
        copies: Number of consecutive numbers that are copies of one capture in the flat layout. None means ten, as in
            the original. If ten leaves a label with a single capture, it is inferred from the pictures.
        skip_unreadable: Leave out unreadable files, with one warning, instead of raising an error.

    Raises:
        RecipeError: The path is wrong, `recipes.signlang.data.layouts` rejects the data, or a picture cannot be read.
    """
    source = open_source(path)
    tables = find_tables(source)
    if tables:
        return _from_tables(source, tables, size)
    return _from_files(source, list_items(source), size, copies=copies, skip_unreadable=skip_unreadable)


def _from_tables(source: Source, names: Sequence[str], size: int) -> ImageSet:
    tables = {name: read_table(source, name, size) for name in names}
    label_names = [label for labels, _ in tables.values() for label in labels]
    sides = np.concatenate(
        [np.full(len(labels), "test" in Path(name).name.lower()) for name, (labels, _) in tables.items()]
    )
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
    # A training or a test part alone is not a split.
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
    """Return the number of each picture's capture, and the rule in words."""
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
"""Least drop of the correlation from pictures of one capture to pictures of two; rotated copies correlate above 0.9."""


def infer_copies(pictures: NDArray[np.uint8], labels: Sequence[str], numbers: Sequence[int]) -> int | None:
    """Infer the number of copies per capture from the similarity of consecutive pictures.

    Args:
        pictures: ``(n, height, width)`` grey values.
        labels: The label of each.
        numbers: The number of each within its label.

    Returns:
        The number of copies per capture, or None if the pictures do not show it clearly.
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
    """Return Pearson's r of the grey values; 1 if a picture has a single grey value."""
    x, y = a.ravel() - a.mean(), b.ravel() - b.mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale else 1.0
