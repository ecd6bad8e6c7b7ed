"""Classify pictures with a trained network or an exported variant."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import Tensor

from lightning_perf.inference.artefact import load_artefact, read_artefact
from lightning_perf.inference.errors import InferenceError, VariantError
from lightning_perf.report.console.safe import plain
from recipes.signlang.data.decoding import decode_picture, unwarned
from recipes.signlang.data.layouts import PICTURE_SUFFIXES
from recipes.signlang.data.sources import MAX_FILE_BYTES, open_source
from recipes.signlang.errors import RecipeError
from recipes.signlang.inference.variants import SOURCE
from recipes.signlang.training.checkpoint import load_checkpoint

__all__ = [
    "Guess",
    "PictureFile",
    "Prediction",
    "Predictor",
    "artefact_predictor",
    "checkpoint_predictor",
    "find_pictures",
    "predict",
    "print_table",
    "to_csv",
    "to_json",
]


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
    names = [name for name in source.names() if PurePosixPath(name).suffix.lower() in PICTURE_SUFFIXES]
    if not names:
        raise RecipeError(path, "no pictures in it", f"Pictures are {', '.join(sorted(PICTURE_SUFFIXES))}")
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


@dataclass(frozen=True, eq=False)
class Predictor:
    """A network that is ready to classify.

    Attributes:
        name: What it is and where it came from.
        labels: The labels, in the order of the outputs.
        image_size: Width and height of its pictures in pixels.
        call: ``(n, 1, size, size)`` grey values of 0…255 as float32 to logits ``(n, labels)``.
    """

    name: str
    labels: tuple[str, ...]
    image_size: int
    call: Callable[[Tensor], Tensor]

    def probabilities(self, pictures: NDArray[np.uint8]) -> NDArray[np.float64]:
        """How probable each label is, by softmax.

        Args:
            pictures: ``(n, size, size)`` grey values.

        Returns:
            ``(n, labels)``; rows sum to 1.

        Raises:
            RecipeError: The variant fails.
        """
        try:
            with torch.inference_mode():
                logits = self.call(torch.from_numpy(pictures).unsqueeze(1).float())
        except (InferenceError, VariantError, RuntimeError) as error:
            raise RecipeError(self.name, f"fails on these pictures ({error})", "Export the variant again") from error
        probabilities: NDArray[np.float64] = logits.double().softmax(dim=1).numpy()
        return probabilities


def checkpoint_predictor(path: Path) -> Predictor:
    """A checkpoint's network, as PyTorch runs it.

    Raises:
        RecipeError: It is none of this recipe's.
    """
    trained = load_checkpoint(path)
    return Predictor(f"{trained.model} of {path}", trained.classes, trained.image_size, trained.classifier)


def artefact_predictor(folder: Path, device: str = "cpu", threads: int = 1) -> Predictor:
    """An exported variant. Some run code from their folder: load only what you trust.

    Args:
        folder: What ``infer --out`` wrote for the variant.
        device: Where to run.
        threads: CPU threads.

    Raises:
        RecipeError: It is no exported variant of this recipe's, is damaged, or cannot run here.
    """
    try:
        artefact = read_artefact(folder)
    except InferenceError as error:
        inside = sorted(path.parent.name for path in folder.glob("*/artefact.json"))
        action = f"Name one of the variants in it: {', '.join(inside)}" if inside else "Export it with infer --out"
        raise RecipeError(folder, f"no exported variant ({str(error).rstrip('.')})", action) from error
    shape = artefact.input_shape
    if not artefact.source.startswith(SOURCE) or len(shape) != 3 or shape[0] != 1 or shape[1] != shape[2]:
        problem = f"a variant of {artefact.source}, which is no network of this recipe's"
        raise RecipeError(folder, problem, "Export one with python -m recipes.signlang infer --out")
    if artefact.output_shape != (len(artefact.labels),):
        problem = f"it tells {len(artefact.labels)} labels for {artefact.output_shape} outputs"
        raise RecipeError(folder, problem, "Export it again")
    try:
        call = load_artefact(folder, device, threads)
    except (InferenceError, VariantError, RuntimeError) as error:
        raise RecipeError(folder, f"cannot be loaded here ({error})", "Choose another variant") from error
    name = f"{artefact.variant} of {artefact.source}"
    return Predictor(name, artefact.labels, shape[1], lambda pictures: call(pictures.to(device)).cpu())


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
