"""`Judge`: how right each variant is on the validation data."""

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
    """Compares the classes that variants give with the right ones, and with the original's.

    The original is judged first.

    Args:
        validation: Held-out inputs with their labels.
        input_shape: Shape of one input that the model takes.
        output_shape: Shape of the original's outputs, with the batch.
        work: Folder for the inputs, which the processes read from there.

    Raises:
        InferenceError: The data do not fit the model.
    """

    def __init__(
        self, validation: Validation, input_shape: tuple[int, ...], output_shape: tuple[int, ...], work: Path
    ) -> None:
        shape = tuple(validation.inputs.shape[1:])
        if shape != input_shape:
            raise InferenceError(f"validation: inputs of shape {shape}, the model is given {input_shape}.")
        if len(output_shape) != 2:
            raise InferenceError(
                f"the model gives {output_shape} for a batch: accuracy needs (n, classes). "
                "Leave the validation data out."
            )
        least, most, classes = int(validation.labels.min()), int(validation.labels.max()), output_shape[1]
        if most >= classes or least < 0:
            raise InferenceError(
                f"validation: labels from {least} to {most}, but the model has {classes} outputs. "
                "Is this another model's checkpoint, or another data set?"
            )
        self._path = work / "validation.npy"
        np.save(self._path, validation.inputs.float().numpy())
        self._labels: NDArray[np.int64] = validation.labels.numpy().astype(np.int64)
        self._units = validation.units
        self._classes = classes
        self._original: NDArray[np.int64] | None = None

    @property
    def n(self) -> int:
        """Inputs it judges by."""
        return len(self._labels)

    def judge(self, process: Running) -> Accuracy:
        """Let a variant classify all inputs.

        Raises:
            VariantError: It fails.
        """
        classes: NDArray[np.int64] = process.predict(self._path).argmax(axis=1).astype(np.int64)
        first = self._original is None
        if self._original is None:
            self._original = classes
        return compare_accuracy(classes, self._original, self._labels, self._units, is_original=first)

    def notes(self) -> tuple[str, ...]:
        """What to say of the original's accuracy."""
        if self._original is None:
            return ()
        share = float((self._original == self._labels).mean())
        low, _ = wilson_interval(share, self._units or self.n)
        if low > 1 / self._classes:
            return ()
        note = (
            f"The original is right on {100 * share:.1f} % of the validation data, no better than guessing among "
            f"{self._classes} classes. Do weights, scaling of the inputs and order of the classes belong together?"
        )
        return (note,)
