"""Decode every picture once, into one array of bytes."""

from __future__ import annotations

import io
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps
from tqdm import tqdm

from recipes.signlang.data.sources import Source
from recipes.signlang.errors import RecipeError
from recipes.signlang.machine import available_memory_bytes, usable_cores

UInt8Array = NDArray[np.uint8]

MOST_PIXELS = 89_478_485
"""Most pixels of a picture; a larger one is a decompression bomb or a mistake. Pillow warns above this number, too."""

_MEMORY_SHARE = 0.25
"""Share of the available memory for decoded pictures. Larger sets go to a temporary file."""


@dataclass(frozen=True, eq=False)
class Decoded:
    """Decoded pictures.

    Attributes:
        pictures: ``(n, size, size)`` grey values; the rows of unreadable files are undefined.
        unreadable: Row and reason of each file that could not be read.
    """

    pictures: UInt8Array
    unreadable: tuple[tuple[int, str], ...]


def decode_picture(content: bytes, size: int) -> UInt8Array:
    """Decode a picture to grey values, upright and scaled to a square like in the original training.

    Args:
        content: A file in a format Pillow reads: colour, palette, 8 or 16 bits.
        size: Width and height in pixels.

    Returns:
        ``(size, size)`` grey values.

    Raises:
        OSError: The file is not a picture, is truncated, has more than `MOST_PIXELS`, or its range of values is
            unknown.
    """
    try:
        image = Image.open(io.BytesIO(content))
        if image.width * image.height > MOST_PIXELS:
            raise Image.DecompressionBombError
        # JPEG can be decoded at a fraction of its size for a fraction of the time.
        image.draft("L", (2 * size, 2 * size))
        upright = ImageOps.exif_transpose(image)
        if upright.mode == "F":
            raise OSError("its pixels are floating-point numbers, and which one is white is unknown")
        if upright.mode.startswith("I"):
            upright = Image.fromarray((np.asarray(upright, np.float64) / 256).clip(0, 255).astype(np.uint8))
        grey = upright.convert("L")
    except Image.DecompressionBombError as error:
        raise OSError(f"more than {MOST_PIXELS:,} pixels") from error
    except (ValueError, SyntaxError, EOFError, MemoryError, TypeError, IndexError) as error:
        # Pillow's readers raise these errors for damaged files.
        raise OSError(f"damaged picture: {error}") from error
    if grey.size != (size, size):
        grey = grey.resize((size, size), Image.Resampling.BILINEAR, reducing_gap=3.0)
    return np.asarray(grey)


@contextmanager
def unwarned() -> Iterator[None]:
    """Silence Pillow's warnings about odd files: unreadable ones raise errors. For one thread at a time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def decode_all(source: Source, names: Sequence[str], size: int, *, on_picture: Callable[[], object]) -> Decoded:
    """Read and decode pictures in as many threads as there are cores (Pillow decodes outside the interpreter lock).

    Args:
        source: Source of the files.
        names: Names of the files.
        size: Width and height in pixels.
        on_picture: Called after each picture, in this thread.

    Returns:
        The pictures in the order of the names.

    Raises:
        RecipeError: The pictures fit neither into memory nor into the temporary folder.
    """
    pictures = empty_pictures(len(names), size)
    unreadable = []
    with unwarned(), ThreadPoolExecutor(usable_cores()) as pool:
        for row, reason in enumerate(pool.map(partial(_decode_into, source, size, pictures), range(len(names)), names)):
            if reason is not None:
                unreadable.append((row, reason))
            on_picture()
    return Decoded(pictures, tuple(unreadable))


def _decode_into(source: Source, size: int, pictures: UInt8Array, row: int, name: str) -> str | None:
    try:
        pictures[row] = decode_picture(source.read(name), size)
    except OSError as error:
        return error.strerror or str(error)
    return None


def empty_pictures(count: int, size: int) -> UInt8Array:
    """Return an array for pictures: in memory, or memory-mapped from a temporary file if memory is too small.

    Args:
        count: Number of pictures.
        size: Width and height in pixels.

    Raises:
        RecipeError: The temporary folder has no room.
    """
    needed_bytes = count * size * size
    limit_bytes = available_memory_bytes() * _MEMORY_SHARE
    if limit_bytes == 0 or needed_bytes <= limit_bytes:
        return np.empty((count, size, size), np.uint8)
    try:
        with tempfile.TemporaryFile() as file:
            if hasattr(os, "posix_fallocate"):
                # A sparse file would kill the process when it writes to a full disk.
                os.posix_fallocate(file.fileno(), 0, needed_bytes)
            return np.memmap(file, np.uint8, mode="w+", shape=(count, size, size))
    except OSError as error:
        folder = Path(tempfile.gettempdir())
        problem = f"no room for {needed_bytes / 1e9:.1f} GB of decoded pictures ({error.strerror})"
        raise RecipeError(folder, problem, "Choose a smaller --image-size, or set TMPDIR to a larger disk") from error


def progress(total: int) -> tqdm[object]:
    """Return a progress bar for decoding; short jobs finish before it appears."""
    return tqdm(total=total, desc="Reading pictures", unit="image", delay=1.0, leave=False)
