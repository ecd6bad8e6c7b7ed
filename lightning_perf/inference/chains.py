"""Apply chains of transforms, each beginning of a chain once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch import nn

from lightning_perf.inference.build import save_subject
from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.runtimes.faults import reason_of
from lightning_perf.inference.storage import Storage, measure_storage
from lightning_perf.inference.subject import Subject
from lightning_perf.inference.transform import FineTune, Transform

__all__ = ["Chains"]


class Chains:
    """The models that chains of transforms make.

    A transform may fine-tune for minutes: ``prune-50+onnxruntime`` and ``prune-50+onnxruntime-int8`` share one.

    Args:
        subject: The original.
        fine_tune: Trains a changed model; None when there is no training data.
        work: Folder for the models.
        on_progress: Called with each line of progress.
    """

    def __init__(
        self, subject: Subject, fine_tune: FineTune | None, work: Path, on_progress: Callable[[str], None]
    ) -> None:
        self._subject = subject
        self._fine_tune = fine_tune
        self._work = work
        self._on_progress = on_progress
        self._modules: dict[tuple[str, ...], nn.Module | VariantError] = {(): subject.module}
        self._files: dict[tuple[tuple[str, ...], int], Path] = {}

    def module(self, transforms: tuple[Transform, ...]) -> nn.Module:
        """The changed model.

        Raises:
            VariantError: A transform cannot be applied; it says which, and why.
        """
        key = tuple(transform.name for transform in transforms)
        if key not in self._modules:
            self._modules[key] = self._apply(transforms)
        made = self._modules[key]
        if isinstance(made, VariantError):
            raise made
        return made

    def subject_file(self, transforms: tuple[Transform, ...], threads: int) -> Path:
        """A file with the changed model as a `Subject`, for the process that builds.

        Raises:
            VariantError: A transform cannot be applied, or its outcome not be saved.
        """
        key = (tuple(transform.name for transform in transforms), threads)
        if key not in self._files:
            path = self._work / f"subject{len(self._files)}.pt"
            save_subject(replace(self._subject, module=self.module(transforms), threads=threads), path)
            self._files[key] = path
        return self._files[key]

    def storage(self, transforms: tuple[Transform, ...]) -> Storage:
        """How small the changed model's weights can be stored."""
        return measure_storage(self.module(transforms))

    def _apply(self, transforms: tuple[Transform, ...]) -> nn.Module | VariantError:
        *before, last = transforms
        try:
            module = self.module(tuple(before))
            if reason := last.missing():
                return VariantError(reason)
            self._on_progress(f"Changing the model: {'+'.join(transform.name for transform in transforms)}")
            return last.apply(module, self._subject, self._fine_tune)
        except VariantError as error:
            return error
        except Exception as error:  # libraries and training code raise anything; the other variants go on
            return VariantError(f"{last.name} failed ({reason_of(error)})")
