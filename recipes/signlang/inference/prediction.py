"""Classify pictures and tell the outcome: `predict`."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from lightning_perf.report.console.safe import plain
from recipes.signlang.data.decoding import decode_picture, unwarned
from recipes.signlang.inference.picture_files import PictureFile
from recipes.signlang.inference.predictor import Predictor

__all__ = ["Guess", "Prediction", "predict", "print_table", "to_csv", "to_json"]

_BATCH = 32

UInt8Array = NDArray[np.uint8]


@dataclass(frozen=True)
class Guess:
    """A label and how probable the network finds it.

    Attributes:
        label: The label.
        probability: 0 to 1, by softmax: how sure the network is, not how often it is right.
    """

    label: str
    probability: float


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a picture was taken for.

    Attributes:
        file: Its name.
        guesses: The most probable labels, the first one first; empty when it could not be read.
        reason: Why it could not be read; None when it could.
        picture: What the network saw, ``(size, size)`` grey values; None when it could not be read, or is not kept.
    """

    file: str
    guesses: tuple[Guess, ...]
    reason: str | None
    picture: UInt8Array | None


def predict(predictor: Predictor, files: Sequence[PictureFile], top: int = 1) -> Iterator[Prediction]:
    """Classify pictures, some at a time.

    Args:
        predictor: The network.
        files: The pictures.
        top: How many labels to tell of each; as many as there are at most.

    Yields:
        What each was taken for, in the order of the files. One that cannot be read is one with a reason.

    Raises:
        RecipeError: The network fails.
    """
    for begin in range(0, len(files), _BATCH):
        batch = files[begin : begin + _BATCH]
        read = [_decoded(file, predictor.image_size) for file in batch]
        pictures = [picture for picture in read if not isinstance(picture, str)]
        rows = iter(predictor.probabilities(np.stack(pictures)) if pictures else ())
        for file, picture in zip(batch, read, strict=True):
            if isinstance(picture, str):
                yield Prediction(file.name, (), picture, None)
            else:
                yield Prediction(file.name, _guesses(next(rows), predictor.labels, top), None, picture)


def print_table(predictions: Sequence[Prediction], console: Console) -> None:
    """Show predictions as a table, a row a guess, and a last line with how many there are."""
    folder = _common_folder([prediction.file for prediction in predictions])
    within = len(folder) + 1 if folder else 0
    table = Table(box=None, pad_edge=False)
    table.add_column("picture", overflow="fold")
    table.add_column("label")
    table.add_column("probability", justify="right")
    for prediction in predictions:
        name = plain(prediction.file[within:])
        if prediction.reason is not None:
            table.add_row(name, plain("—", "red"), plain(f"unreadable: {prediction.reason}", "red"))
        for rank, guess in enumerate(prediction.guesses):
            table.add_row(name if rank == 0 else "", plain(guess.label), f"{100 * guess.probability:.1f} %")
    console.print(table)
    unreadable = sum(prediction.reason is not None for prediction in predictions)
    bad = f", {unreadable} unreadable" if unreadable else ""
    where = f" in {plain(folder).plain}" if within else ""
    console.print(
        f"{len(predictions)} picture{'s' if len(predictions) != 1 else ''}{where}{bad}", markup=False, soft_wrap=True
    )


def to_json(predictions: Sequence[Prediction], predictor: Predictor) -> str:
    """Predictions as JSON: the network, and for each picture its guesses or the reason why there are none."""
    rows = [
        {
            "file": prediction.file,
            "guesses": [{"label": guess.label, "probability": guess.probability} for guess in prediction.guesses],
            "reason": prediction.reason,
        }
        for prediction in predictions
    ]
    return json.dumps({"network": predictor.name, "labels": predictor.labels, "pictures": rows}, indent=2) + "\n"


def to_csv(predictions: Sequence[Prediction]) -> str:
    """Predictions as CSV: file, rank, label, probability, reason; a row a guess, or one with the reason."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("file", "rank", "label", "probability", "reason"))
    for prediction in predictions:
        if prediction.reason is not None:
            writer.writerow((prediction.file, "", "", "", prediction.reason))
        for rank, guess in enumerate(prediction.guesses, start=1):
            writer.writerow((prediction.file, rank, guess.label, f"{guess.probability:.6f}", ""))
    return text.getvalue()


def _decoded(file: PictureFile, size: int) -> UInt8Array | str:
    """The picture, or why it cannot be read."""
    try:
        with unwarned():
            return decode_picture(file.read(), size)
    except OSError as error:
        # Pillow's message repeats the buffer that it was given.
        text = error.strerror or str(error)
        return "not a picture" if text.startswith("cannot identify image file") else text
    except ValueError as error:  # a path that no file system takes
        return str(error)


def _common_folder(files: Sequence[str]) -> str:
    """The folder that all of several files lie in, or an empty text."""
    if len(files) < 2:
        return ""
    shared = takewhile(lambda pair: pair[0] == pair[1], zip(min(files), max(files), strict=False))
    return "".join(char for char, _ in shared).rpartition(os.sep)[0]


def _guesses(probabilities: NDArray[np.float64], labels: Sequence[str], top: int) -> tuple[Guess, ...]:
    best = np.argsort(-probabilities, kind="stable")[:top]
    return tuple(Guess(labels[index], float(probabilities[index])) for index in best)
