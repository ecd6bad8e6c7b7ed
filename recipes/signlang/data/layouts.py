"""Recognise the layout of a dataset, and find the label, capture and side of each picture.

Known layouts, in a folder or a zip, at any nesting: *flat* (``a_12.png``), *pre-split* (``train_x/A_IMG_7.jpg``),
*class folders* (``A/282.jpg``), *pre-split class folders* (``train/A/282.jpg``), and the tables of Sign-Language-MNIST
(rows of ``label,pixel1,…,pixel784``).
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from string import ascii_lowercase

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from recipes.signlang.data.sources import Source
from recipes.signlang.errors import RecipeError

ORIGINAL_COPIES = 10
"""The original saved every capture as ten consecutively numbered copies, rotated by up to 10 degrees."""

PICTURE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".pgm", ".ppm"})
"""Suffixes of picture files."""

_TRAINING = re.compile(r"(^|.*[_\- ])train(ing)?([_\- ].*)?$", re.IGNORECASE)
_HELD_OUT = re.compile(r"(^|.*[_\- ])(test(ing)?|valid(ation)?|val)([_\- ].*)?$", re.IGNORECASE)
_FLAT_NAME = re.compile(r"(?P<label>[^\W_]+)_(?P<img>IMG_)?(?P<number>\d+)", re.IGNORECASE)
_TEST_NAME = re.compile(r"(?P<label>[^\W_]+)_test", re.IGNORECASE)
_COPY_SUFFIX = re.compile(r"\s*(\(\d+\)|[- ]+copy)$", re.IGNORECASE)

MNIST_LABELS = tuple(ascii_lowercase)
"""Sign-Language-MNIST numbers labels by the letter's place in the alphabet (9 and 25, ``j`` and ``z``, are unused)."""

_KNOWN = frozenset(ascii_lowercase) | frozenset("0123456789")
_SYNONYMS = {
    "background": "background",
    "nothing": "background",
    "blank": "background",
    "space": "space",
    "del": "delete",
    "delete": "delete",
}

_HEADER = ("label,pixel", '"label","pixel')
_AS_PUBLISHED = "Use the file as it was published"


def as_label(name: str) -> str | None:
    """Read a folder name or the first part of a file name as a label.

    Args:
        name: For example ``"A"``, ``"background"``, ``"7"``.

    Returns:
        The label in lower case: a letter, a digit, ``background`` (also called ``nothing`` or ``blank``), ``space`` or
        ``delete``. None for any other name.

    Examples:
        >>> as_label("A"), as_label("nothing"), as_label("cat")
        ('a', 'background', None)
    """
    key = name.strip().casefold()
    return key if key in _KNOWN else _SYNONYMS.get(key)


def ordered(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct labels in the order of the classes: digits, letters, then words.

    Examples:
        >>> ordered(["background", "b", "7", "a", "b"])
        ('7', 'a', 'b', 'background')
    """
    return tuple(sorted(set(labels), key=lambda label: (len(label) > 1, label)))


@dataclass(frozen=True)
class Item:
    """One picture.

    Attributes:
        name: Name in the source.
        label: The label.
        capture: The capture that it is a copy of, unique within the label.
        number: Number in the original's numbering; None in layouts without one.
        held_out: Whether the dataset holds it out; None if the dataset has no split.
    """

    name: str
    label: str
    capture: str
    number: int | None
    held_out: bool | None


@dataclass(frozen=True)
class Catalogue:
    """The pictures of a dataset.

    Attributes:
        layout: Name of the layout.
        items: The pictures, sorted by name.
        duplicates: Number of files that were left out because a nested folder repeats them.
    """

    layout: str
    items: tuple[Item, ...]
    duplicates: int


def list_items(source: Source) -> Catalogue:
    """Find every picture of a dataset, with the facts in its name.

    Args:
        source: The folder or zip.

    Raises:
        RecipeError: There are no pictures, or a name or folder is not a known label.
    """
    names = [name for name in source.names() if PurePosixPath(name).suffix.lower() in PICTURE_SUFFIXES]
    if not names:
        raise RecipeError(source.path, "no pictures in it", "Name the folder or zip that holds the PNG or JPEG files")
    names, duplicates = _drop_doubled(source, names)
    sides: dict[bool | None, dict[PurePosixPath, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in names:
        folder = PurePosixPath(name).parent
        sides[_side(folder)][folder].append(name)
    if None in sides and len(sides) > 1:
        stray = next(iter(sides[None].values()))[0]
        problem = "is outside of the train and test folders"
        raise RecipeError(source.locate(stray), problem, "Move it into one of them, or away")
    items: list[Item] = []
    by_folder = False
    for held_out, folders in sides.items():
        folder_is_label = _folders_are_labels(folders)
        by_folder |= folder_is_label
        for folder, members in folders.items():
            label_name = folder.name if folder_is_label else None
            items += [_item(source, name, label_name, held_out) for name in members]
    split = None not in sides
    shape = "class folders" if by_folder else "flat"
    return Catalogue(f"{'pre-split ' if split else ''}{shape}", tuple(sorted(items, key=lambda i: i.name)), duplicates)


def _drop_doubled(source: Source, names: list[str]) -> tuple[list[str], int]:
    """Keep the first copy of each file: some downloads have both ``set/A/1.png`` and ``set/set/A/1.png``."""
    seen: dict[tuple[str, ...], str] = {}
    kept = []
    for name in sorted(names, key=lambda n: (n.count("/"), n)):
        parts = (source.path.stem, *PurePosixPath(name).parts)
        # The root may be the outer one of the two folders, or their parent.
        key = tuple(part for i, part in enumerate(parts) if i and part != parts[i - 1])
        first = seen.setdefault(key, name)
        if first is name or not _same_content(source, first, name):
            kept.append(name)
    return kept, len(names) - len(kept)


def _same_content(source: Source, one: str, other: str) -> bool:
    try:
        return source.size_bytes(one) == source.size_bytes(other) and source.read(one) == source.read(other)
    except OSError:
        return False


def _side(folder: PurePosixPath) -> bool | None:
    """Return True for held-out, False for training, None without a split; the innermost such folder decides."""
    for part in reversed(folder.parts):
        if _HELD_OUT.match(part):
            return True
        if _TRAINING.match(part):
            return False
    return None


def _folders_are_labels(folders: dict[PurePosixPath, list[str]]) -> bool:
    """Say whether the folders of one side are classes."""
    known = [folder for folder in folders if as_label(folder.name) is not None]
    if known or len(folders) == 1:
        return bool(known)
    return not all(_flat_label(PurePosixPath(name).stem) for members in folders.values() for name in members)


def _flat_label(stem: str) -> str | None:
    match = _FLAT_NAME.fullmatch(_COPY_SUFFIX.sub("", stem)) or _TEST_NAME.fullmatch(stem)
    return as_label(match["label"]) if match else None


def _item(source: Source, name: str, folder_name: str | None, held_out: bool | None) -> Item:
    stem = _COPY_SUFFIX.sub("", PurePosixPath(name).stem)
    label = as_label(folder_name) if folder_name is not None else _flat_label(stem)
    if label is None:
        what = f"folder name {folder_name!r}" if folder_name is not None else "file name"
        raise RecipeError(
            source.locate(name),
            f"unknown label: the {what} starts with none of the letters, digits, background, space or delete"
            if folder_name is None
            else f"unknown label: the {what} is no letter, digit, background, space or delete",
            "Name pictures like a_0.png, or sort them into one folder a label, and move others away",
        )
    match = _FLAT_NAME.fullmatch(stem)
    if match and not match["img"] and held_out is None and as_label(match["label"]) == label:
        number = int(match["number"])
        return Item(name, label, str(number // ORIGINAL_COPIES), number, None)
    return Item(name, label, stem.casefold(), None, held_out)


def find_tables(source: Source) -> list[str]:
    """Return the CSV files of pictures in a dataset: the ones with a header that starts with ``label,pixel``."""
    names = [name for name in source.names() if PurePosixPath(name).suffix.lower() == ".csv"]
    return [
        name for name in names if _read(source, name)[:64].decode("utf-8-sig", "replace").lower().startswith(_HEADER)
    ]


def read_table(source: Source, name: str, size: int) -> tuple[list[str], NDArray[np.uint8]]:
    """Read one table.

    Args:
        source: Source of the file.
        name: Name of the file.
        size: Width and height of the scaled pictures.

    Returns:
        The label of each row, and ``(n, size, size)`` grey values.

    Raises:
        RecipeError: The header, a label or a pixel does not follow the format.
    """
    where = source.locate(name)
    text = io.StringIO(_read(source, name).decode("utf-8-sig", errors="replace"))
    header = next(csv.reader(text), [])
    side = math.isqrt(max(len(header) - 1, 0))
    if not side or side * side != len(header) - 1 or header[0].strip().lower() != "label":
        problem = f"the header has {len(header)} columns, not a label and a square number of pixels"
        raise RecipeError(where, problem, "Use the file as it was published: label,pixel1,…,pixel784")
    try:
        rows = np.loadtxt(text, dtype=np.int16, delimiter=",", ndmin=2)
    except ValueError as error:
        raise RecipeError(where, f"not a table of whole numbers ({error})", _AS_PUBLISHED) from error
    if rows.size == 0:
        raise RecipeError(where, "the table has no rows", _AS_PUBLISHED)
    if rows.shape[1] != len(header) or rows[:, 1:].min() < 0 or rows[:, 1:].max() > 255:
        raise RecipeError(where, "a row is too short, or a pixel is not 0 to 255", _AS_PUBLISHED)
    bad = np.flatnonzero((rows[:, 0] < 0) | (rows[:, 0] >= len(MNIST_LABELS)))
    if bad.size:
        problem = f"unknown label {rows[bad[0], 0]} in data row {bad[0] + 1}"
        raise RecipeError(where, problem, "Labels are the letters' places in the alphabet, 0 to 25")
    pictures = rows[:, 1:].astype(np.uint8).reshape(-1, side, side)
    if side != size:
        resized = [Image.fromarray(p).resize((size, size), Image.Resampling.BILINEAR) for p in pictures]
        pictures = np.stack([np.asarray(p) for p in resized])
    return [MNIST_LABELS[label] for label in rows[:, 0]], pictures


def _read(source: Source, name: str) -> bytes:
    try:
        return source.read(name)
    except OSError as error:
        problem = f"cannot be read ({error.strerror or error})"
        raise RecipeError(source.locate(name), problem, "Download it again") from error
