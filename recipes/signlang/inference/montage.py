"""Draw a montage of pictures with their predicted labels."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from recipes.signlang.errors import RecipeError
from recipes.signlang.inference.prediction import Prediction

MOST = 100
"""Most pictures in one montage."""

TILE = 120
CAPTION = 34
GAP = 8
MOST_COLUMNS = 10
_LABEL = 13
"""Font size of labels; ``background`` and its probability fit into a tile."""

_SURE, _UNSURE, _BAD, _INK, _PAPER = "#1a7f37", "#9a6700", "#cf222e", "#57606a", "#ffffff"
_SURE_FROM, _UNSURE_FROM = 0.9, 0.5
"""Least probabilities for a green and for an amber label; below, it is red."""


def shown_places(count: int) -> tuple[int, ...]:
    """Return the indices of the predictions that a montage shows: all, or `MOST` of them evenly spread."""
    return tuple(round(place) for place in np.linspace(0, count - 1, min(MOST, count)))


def draw_montage(predictions: Sequence[Prediction]) -> Image.Image:
    """Draw pictures as the network saw them, each above its label, probability and file name.

    Args:
        predictions: At least one prediction. If there are more than `MOST`, the montage shows `MOST` evenly spread.
    """
    shown = [predictions[place] for place in shown_places(len(predictions))]
    columns = min(MOST_COLUMNS, max(1, ceil(len(shown) ** 0.5)))
    lines = ceil(len(shown) / columns)
    width, height = TILE + GAP, TILE + CAPTION + GAP
    montage = Image.new("RGB", (columns * width + GAP, lines * height + GAP), _PAPER)
    pen = ImageDraw.Draw(montage)
    for place, prediction in enumerate(shown):
        left, top = GAP + place % columns * width, GAP + place // columns * height
        _draw_tile(montage, pen, prediction, left, top)
    return montage


def save_montage(predictions: Sequence[Prediction], path: Path) -> None:
    """Save the result of `draw_montage`; the suffix of the file name chooses the format.

    Raises:
        RecipeError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draw_montage(predictions).save(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RecipeError(
            path, f"the montage cannot be written ({reason})", "Give another file, e.g. out.png"
        ) from error


def _draw_tile(montage: Image.Image, pen: ImageDraw.ImageDraw, prediction: Prediction, left: int, top: int) -> None:
    name = Path(prediction.file).name
    if prediction.picture is None:
        pen.rectangle((left, top, left + TILE - 1, top + TILE - 1), fill="#f6f8fa", outline=_BAD)
        _write(pen, left + 6, top + TILE // 2 - 14, "unreadable", _BAD, size=13, width=TILE - 12)
        _write(pen, left + 6, top + TILE // 2 + 4, prediction.reason or "", _INK, size=10, width=TILE - 12)
    else:
        picture = Image.fromarray(np.ascontiguousarray(prediction.picture)).resize((TILE, TILE))
        montage.paste(picture.convert("RGB"), (left, top))
        best = prediction.guesses[0]
        sure, unsure = best.probability >= _SURE_FROM, best.probability >= _UNSURE_FROM
        colour = _SURE if sure else _UNSURE if unsure else _BAD
        probability = f"{100 * best.probability:.0f} %"
        room = TILE - round(pen.textlength(f"  {probability}", ImageFont.load_default(_LABEL)))
        written = _write(pen, left, top + TILE + 2, best.label, colour, size=_LABEL, width=room)
        _write(pen, left + written, top + TILE + 2, f"  {probability}", colour, size=_LABEL, width=TILE - written)
    _write(pen, left, top + TILE + 20, name, _INK, size=10, width=TILE)


def _write(pen: ImageDraw.ImageDraw, left: int, top: int, text: str, colour: str, *, size: int, width: int) -> int:
    """Write a line, cut to a width in pixels, and return its width. Characters that the font lacks become ``?``."""
    font = ImageFont.load_default(size)
    line = "".join(char if char.isprintable() and char.isascii() else "?" for char in text)
    if pen.textlength(line, font) > width:
        while line and pen.textlength(f"{line}...", font) > width:
            line = line[:-1]
        line += "..."
    pen.text((left, top), line, fill=colour, font=font)
    return round(pen.textlength(line, font))
