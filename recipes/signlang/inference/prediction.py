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

from lightning_perf.inference.errors import InferenceError, VariantError
from lightning_perf.inference.variants.artefact import load_artefact, read_artefact
from lightning_perf.show.terminal_text import plain, safe
from recipes.signlang.data.decoding import decode_picture, unwarned
from recipes.signlang.data.layouts import PICTURE_SUFFIXES
from recipes.signlang.data.sources import MAX_FILE_BYTES, open_source
from recipes.signlang.errors import RecipeError
from recipes.signlang.inference.variants import SOURCE
from recipes.signlang.training.checkpoint import load_checkpoint


@dataclass(frozen=True)
class PictureFile:
    """A picture to read.

    Attributes:
        name: Location for messages.
        read: Function that returns its content, or raises `OSError`.
    """

    name: str
    read: Callable[[], bytes]


def find_pictures(paths: Sequence[Path]) -> tuple[PictureFile, ...]:
    """Find pictures in files, folders and zips.

    Args:
        paths: Files, which count as pictures whatever their names are, even if they do not exist. Folders (with their
            subfolders) and zips are searched for files with a picture's suffix.

    Returns:
        The pictures in the order of the paths; within a folder, by name and number.

    Raises:
        RecipeError: A folder or zip contains no picture, or cannot be read.
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
    """Return a sort key that puts ``a_2`` before ``a_10``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


@dataclass(frozen=True, eq=False)
class Predictor:
    """A network that is ready to classify.

    Attributes:
        name: Name and origin.
        labels: The labels, in the order of the outputs.
        image_size: Width and height of its pictures in pixels.
        call: Function from grey values of 0…255, ``(n, 1, size, size)`` as float32, to logits ``(n, labels)``.
    """

    name: str
    labels: tuple[str, ...]
    image_size: int
    call: Callable[[Tensor], Tensor]

    def probabilities(self, pictures: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Return the probability of each label, by softmax.

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
    """Return a checkpoint's network, executed by PyTorch.

    Raises:
        RecipeError: The file is not a checkpoint of this recipe.
    """
    trained = load_checkpoint(path)
    return Predictor(f"{trained.model} of {path}", trained.classes, trained.image_size, trained.classifier)


def artefact_predictor(folder: Path, device: str = "cpu", threads: int = 1) -> Predictor:
    """Return an exported variant. Some variants run code from their folder: load only folders that you trust.

    Args:
        folder: Folder that ``infer --out`` wrote for the variant.
        device: The device to run on.
        threads: CPU threads.

    Raises:
        RecipeError: The folder is not an exported variant of this recipe, is damaged, or cannot run on this machine.
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
    """A label with its probability.

    Attributes:
        label: The label.
        probability: Probability by softmax, 0 to 1: the confidence of the network, not its accuracy.
    """

    label: str
    probability: float


@dataclass(frozen=True, eq=False)
class Prediction:
    """The prediction for a picture.

    Attributes:
        file: Name of the picture.
        guesses: The most probable labels, in descending order; empty for an unreadable picture.
        reason: Reason why the picture is unreadable; None if it is readable.
        picture: The network's input, ``(size, size)`` grey values; None if unreadable or not kept.
    """

    file: str
    guesses: tuple[Guess, ...]
    reason: str | None
    picture: UInt8Array | None


def predict(predictor: Predictor, files: Sequence[PictureFile], top: int = 1) -> Iterator[Prediction]:
    """Classify pictures, in batches.

    Args:
        predictor: The network.
        files: The pictures.
        top: Number of labels per picture.

    Yields:
        The predictions in the order of the files; for an unreadable file, a prediction with the reason.

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
    """Print predictions as a table with one row per guess, then the number of pictures."""
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
    where = f" in {safe(folder)}" if within else ""
    console.print(
        f"{len(predictions)} picture{'s' if len(predictions) != 1 else ''}{where}{bad}", markup=False, soft_wrap=True
    )


def to_json(predictions: Sequence[Prediction], predictor: Predictor) -> str:
    """Return predictions as JSON: the network, and for each picture its guesses, or why it is unreadable."""
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
    """Return predictions as CSV with the columns file, rank, label, probability and reason.

    Each guess has a row; an unreadable picture has one row with the reason.
    """
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
    """Return the picture, or why it cannot be read."""
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
    """Return the common folder of several files, or an empty string."""
    if len(files) < 2:
        return ""
    shared = takewhile(lambda pair: pair[0] == pair[1], zip(min(files), max(files), strict=False))
    return "".join(char for char, _ in shared).rpartition(os.sep)[0]


def _guesses(probabilities: NDArray[np.float64], labels: Sequence[str], top: int) -> tuple[Guess, ...]:
    best = np.argsort(-probabilities, kind="stable")[:top]
    return tuple(Guess(labels[index], float(probabilities[index])) for index in best)
