"""Apply chains of transforms, and measure the size of the resulting weights."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import nn

from lightning_perf.errors import reason_of
from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.model.subject import Subject
from lightning_perf.inference.transforms.base import FineTune, Transform


class Storage(Struct, frozen=True):
    """Sizes of a model's weights and buffers.

    Attributes:
        gzip_bytes: Size after compression with zlib, level 6, as gzip uses it: zeros and repeated values compress well.
    """

    dense_bytes: int
    gzip_bytes: int


def measure_storage(module: nn.Module) -> Storage:
    """Measure the size of a model's weights, dense and compressed. Shared weights count once.

    Args:
        module: The model, on any device.

    Returns:
        Both sizes, in bytes.

    Example:
        >>> module = torch.nn.Linear(64, 64, bias=False)
        >>> _ = torch.nn.init.zeros_(module.weight)
        >>> storage = measure_storage(module)
        >>> storage.dense_bytes, storage.gzip_bytes < 100
        (16384, True)
    """
    state = module.state_dict().values()
    distinct = {(tensor.data_ptr(), tensor.shape): tensor for tensor in state if tensor.numel()}
    compressor = zlib.compressobj(6)
    dense = compressed = 0
    for tensor in distinct.values():
        data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        dense += len(data)
        compressed += len(compressor.compress(data))
    return Storage(dense, compressed + len(compressor.flush()))


class Chains:
    """Applies chains of transforms and keeps the resulting models.

    A transform may fine-tune for minutes, so ``prune-50+onnxruntime`` and ``prune-50+onnxruntime-int8`` share a model.

    Args:
        fine_tune: Trains a changed model; None without training data.
    """

    def __init__(
        self, subject: Subject, fine_tune: FineTune | None, work: Path, on_progress: Callable[[str], None]
    ) -> None:
        self._subject = subject
        self._fine_tune = fine_tune
        self._work = work
        self._on_progress = on_progress
        self._modules: dict[str, nn.Module | VariantError] = {"": subject.module}
        self._files: dict[tuple[str, int], Path] = {}

    def module(self, transforms: Sequence[Transform]) -> nn.Module:
        """Return the changed model, or raise the `VariantError` of the transform that cannot be applied."""
        chain = _name(transforms)
        if chain not in self._modules:
            self._modules[chain] = self._apply(transforms)
        made = self._modules[chain]
        if isinstance(made, VariantError):
            raise made
        return made

    def subject_file(self, transforms: Sequence[Transform], threads: int) -> Path:
        """Return a file with the changed model as a `Subject`, for the process that builds the variant."""
        key = _name(transforms), threads
        if key not in self._files:
            subject = replace(self._subject, module=self.module(transforms), threads=threads)
            path = self._work / f"subject{len(self._files)}.pt"
            _save_subject(subject, path)
            self._files[key] = path
        return self._files[key]

    def _apply(self, transforms: Sequence[Transform]) -> nn.Module | VariantError:
        *before, last = transforms
        try:
            module = self.module(before)
            if reason := last.missing():
                return VariantError(reason)
            self._on_progress(f"Changing the model: {_name(transforms)}")
            return last.apply(module, self._subject, self._fine_tune)
        except VariantError as error:
            return error
        except Exception as error:  # libraries and training code may raise anything; the other variants continue
            return VariantError(f"{last.name} failed ({reason_of(error)})")


def _name(transforms: Sequence[Transform]) -> str:
    return "+".join(transform.name for transform in transforms)


def _save_subject(subject: Subject, path: Path) -> None:
    homeless = sorted({type(m).__name__ for m in subject.module.modules() if type(m).__module__ == "__main__"})
    if homeless:
        raise VariantError(
            f"{', '.join(homeless)} is defined in the main script, which a fresh process cannot import. "
            "Move the class to a module."
        )
    try:
        torch.save(subject, path)
    except Exception as error:  # pickling runs code of the model's, which may raise anything
        raise VariantError(f"the model cannot be saved as a whole ({reason_of(error)})") from error
