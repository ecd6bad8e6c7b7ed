"""Sign-Language-MNIST: pictures as rows of a CSV file, ``label,pixel1,…,pixel784``."""

from __future__ import annotations

import csv
import io
import math
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from recipes.signlang.data.labels import MNIST_LABELS
from recipes.signlang.data.sources import Source
from recipes.signlang.errors import RecipeError

__all__ = ["find_tables", "read_table"]

_HEADER = ("label,pixel", '"label","pixel')
_AS_PUBLISHED = "Use the file as it was published"


def find_tables(source: Source) -> list[str]:
    """The CSV files of pictures in a data set: those whose header begins with ``label,pixel``."""
    names = [name for name in source.names() if PurePosixPath(name).suffix.lower() == ".csv"]
    return [
        name for name in names if _read(source, name)[:64].decode("utf-8-sig", "replace").lower().startswith(_HEADER)
    ]


def read_table(source: Source, name: str, size: int) -> tuple[list[str], NDArray[np.uint8]]:
    """Read one table.

    Args:
        source: Where it is.
        name: The file.
        size: Width and height to scale the pictures to.

    Returns:
        The label of each row, and ``(n, size, size)`` grey values.

    Raises:
        RecipeError: The header, a label or a pixel is not what the format allows.
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
