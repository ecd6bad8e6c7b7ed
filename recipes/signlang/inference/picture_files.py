"""The pictures that a user names one by one, by their folder, or in a zip."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from recipes.signlang.data.layouts import PICTURES
from recipes.signlang.data.sources import MAX_FILE_BYTES, open_source
from recipes.signlang.errors import RecipeError

__all__ = ["PictureFile", "find_pictures"]


@dataclass(frozen=True)
class PictureFile:
    """A picture to read.

    Attributes:
        name: As a person would look for it.
        read: Gives its content; raises `OSError` when it cannot be read.
    """

    name: str
    read: Callable[[], bytes]


def find_pictures(paths: Sequence[Path]) -> tuple[PictureFile, ...]:
    """Find pictures. What is named by itself counts as one whatever its name and whether it is there.

    Args:
        paths: Files; folders, looked into all the way down, and zips, for files that are named as pictures.

    Returns:
        The pictures in the order of the paths, those of a folder by name and number.

    Raises:
        RecipeError: A folder or zip holds no picture, or cannot be read.
    """
    return tuple(picture for path in paths for picture in _pictures_of(path))


def _pictures_of(path: Path) -> Iterator[PictureFile]:
    if not (path.is_dir() or (path.is_file() and zipfile.is_zipfile(path))):
        yield PictureFile(str(path), partial(_read, path))
        return
    source = open_source(path)
    names = [name for name in source.names() if PurePosixPath(name).suffix.lower() in PICTURES]
    if not names:
        raise RecipeError(path, "no pictures in it", f"Pictures are {', '.join(sorted(PICTURES))}")
    for name in sorted(names, key=_natural):
        yield PictureFile(source.locate(name), partial(source.read, name))


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise OSError(f"larger than {MAX_FILE_BYTES // 1024**2} MB")
    return content


def _natural(name: str) -> list[tuple[int, str]]:
    """``a_2`` before ``a_10``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
