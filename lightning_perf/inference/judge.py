"""`Judge`: measures the accuracy of each variant on the validation data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.measurement.accuracy import Accuracy, compare_accuracy, wilson_interval
from lightning_perf.inference.model.samples import Validation
from lightning_perf.inference.variants.running import Running

__all__ = ["Judge"]


class Judge:
    """Compares the classes that variants predict with the labels, and with the original's predictions.

    Judge the original first.

    Args:
        validation: Held-out inputs with their labels.
        input_shape: Shape of one input that the model takes.
        output_shape: Shape of the original's outputs, with the batch.
        work: Folder for the file of inputs that the worker processes read.

    Raises:
        InferenceError: The data do not fit the model.
    """

    def __init__(
        self, validation: Validation, input_shape: tuple[int, ...], output_shape: tuple[int, ...], work: Path
    ) -> None:
        shape = tuple(validation.inputs.shape[1:])
        if shape != input_shape:
            raise InferenceError(
                f"validation: inputs have the shape {shape}, but the model takes {input_shape}. "
                "Give validation inputs of that shape."
            )
        if len(output_shape) != 2:
            raise InferenceError(
                f"The model returns {output_shape} for a batch, but accuracy needs (n, classes). "
                "Leave out the validation data."
            )
        least, most, classes = int(validation.labels.min()), int(validation.labels.max()), output_shape[1]
        if most >= classes or least < 0:
            raise InferenceError(
                f"validation: labels from {least} to {most}, but the model has {classes} outputs. "
                "Check that the checkpoint and the dataset belong together."
            )
        self._path = work / "validation.npy"
        np.save(self._path, validation.inputs.float().numpy())
        self._labels: NDArray[np.int64] = validation.labels.numpy().astype(np.int64)
        self._units = validation.units
        self._classes = classes
        self._original: NDArray[np.int64] | None = None

    @property
    def n(self) -> int:
        """Number of validation inputs."""
        return len(self._labels)

    def judge(self, process: Running) -> Accuracy:
        """Let a variant classify all inputs, and return its accuracy.

        Raises:
            VariantError: The variant fails.
        """
        classes: NDArray[np.int64] = process.predict(self._path).argmax(axis=1).astype(np.int64)
        first = self._original is None
        if self._original is None:
            self._original = classes
        return compare_accuracy(classes, self._original, self._labels, self._units, is_original=first)

    def notes(self) -> tuple[str, ...]:
        """Return a warning if the original is no better than guessing."""
        if self._original is None:
            return ()
        share = float((self._original == self._labels).mean())
        low, _ = wilson_interval(share, self._units or self.n)
        if low > 1 / self._classes:
            return ()
        note = (
            f"The accuracy of the original on the validation data is {100 * share:.1f} %, no better than guessing "
            f"among {self._classes} classes. Check the weights, the scaling of the inputs and the order of the classes."
        )
        return (note,)
