"""Recognise how a data set of pictures is laid out: which label, capture and side each file has.

Known layouts, in a folder or a zip, at any nesting: *flat* (``a_12.png``), *pre-split* (``train_x/A_IMG_7.jpg``),
*class folders* (``A/282.jpg``), and *pre-split class folders* (``train/A/282.jpg``).
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import PurePosixPath

from recipes.signlang.data.labels import as_label
from recipes.signlang.data.sources import Source
from recipes.signlang.errors import RecipeError

__all__ = ["ORIGINAL_COPIES", "PICTURES", "Catalogue", "Item", "list_items"]

ORIGINAL_COPIES = 10
"""The original saved every capture as ten consecutively numbered copies, rotated by up to 10 degrees."""

PICTURES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".pgm", ".ppm"})
"""How names of pictures end."""

_TRAINING = re.compile(r"(^|.*[_\- ])train(ing)?([_\- ].*)?$", re.IGNORECASE)
_HELD_OUT = re.compile(r"(^|.*[_\- ])(test(ing)?|valid(ation)?|val)([_\- ].*)?$", re.IGNORECASE)
_FLAT_NAME = re.compile(r"(?P<label>[^\W_]+)_(?P<img>IMG_)?(?P<number>\d+)", re.IGNORECASE)
_TEST_NAME = re.compile(r"(?P<label>[^\W_]+)_test", re.IGNORECASE)
_COPY_SUFFIX = re.compile(r"\s*(\(\d+\)|[- ]+copy)$", re.IGNORECASE)


@dataclass(frozen=True)
class Item:
    """One picture.

    Attributes:
        name: Its name in the source.
        label: What it shows.
        capture: What it is a copy of, unique within the label.
        number: Its number in the original's numbering, or None in layouts without one.
        held_out: The side the data set puts it on, or None when the data set does not come split.
    """

    name: str
    label: str
    capture: str
    number: int | None
    held_out: bool | None


@dataclass(frozen=True)
class Catalogue:
    """The pictures of a data set.

    Attributes:
        layout: The layout in words.
        items: The pictures, by name.
        duplicates: Files left out because a doubled folder holds the same again.
    """

    layout: str
    items: tuple[Item, ...]
    duplicates: int


def list_items(source: Source) -> Catalogue:
    """Find every picture of a data set and what its name says.

    Args:
        source: The folder or zip.

    Raises:
        RecipeError: There are no pictures, or a name or folder is no known label.
    """
    names = [name for name in source.names() if PurePosixPath(name).suffix.lower() in PICTURES]
    if not names:
        raise RecipeError(source.path, "no pictures in it", "Name the folder or zip that holds the PNG or JPEG files")
    names, duplicates = _drop_doubled(source, names)
    sides: dict[bool | None, dict[PurePosixPath, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in names:
        folder = PurePosixPath(name).parent
        sides[_side(folder)][folder].append(name)
    if None in sides and len(sides) > 1:
        stray = next(iter(sides[None].values()))[0]
        problem = "lies outside the train and test folders beside it"
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
    """Some downloads hold everything twice, as ``set/A/1.png`` and ``set/set/A/1.png``: keep the first."""
    seen: dict[tuple[str, ...], str] = {}
    kept = []
    for name in sorted(names, key=lambda n: (n.count("/"), n)):
        parts = (source.path.stem, *PurePosixPath(name).parts)
        # The root may be the outer of the two folders, or their parent.
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
    """Held out, training, or not split; the innermost folder that says so decides."""
    for part in reversed(folder.parts):
        if _HELD_OUT.match(part):
            return True
        if _TRAINING.match(part):
            return False
    return None


def _folders_are_labels(folders: dict[PurePosixPath, list[str]]) -> bool:
    """Whether the folders of one side stand for classes rather than merely hold the files."""
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
