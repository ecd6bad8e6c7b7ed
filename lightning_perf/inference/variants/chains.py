"""Apply chains of transforms, and store weights in compressed form."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lightning_perf.inference.errors import InferenceError, VariantError, reason_of
from lightning_perf.inference.model.subject import Subject
from lightning_perf.inference.transforms.base import FineTune, Transform
from lightning_perf.inference.variants.build import save_subject

__all__ = [
    "Chains",
    "Storage",
    "measure_storage",
    "pack_weights",
    "unpack_weights",
]


MOST_SHARED = 256
"""Most distinct values of a tensor that is stored as indices into a codebook: an index takes at most one byte."""


PROBE = 4096
"""Number of values to check before sorting a whole tensor to find its distinct values."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Storage:
    """Sizes of a model's weights and buffers.

    Attributes:
        dense_bytes: Size in memory.
        gzip_bytes: Size after compression with zlib, level 6, as gzip uses it: zeros and repeated values compress well.
        packed_bytes: Length of the result of `pack_weights`, which is lossless: shared values as a codebook and
            indices, zeros left out.
    """

    dense_bytes: int
    gzip_bytes: int
    packed_bytes: int


def measure_storage(module: nn.Module) -> Storage:
    """Measure the size of a model's weights, dense and compressed.

    Args:
        module: The model, on any device.

    Example:
        >>> module = torch.nn.Linear(64, 64, bias=False)
        >>> _ = torch.nn.init.zeros_(module.weight)
        >>> storage = measure_storage(module)
        >>> storage.dense_bytes, storage.gzip_bytes < 100, storage.packed_bytes < 100
        (16384, True, True)
    """
    arrays = _arrays(module)
    compressor = zlib.compressobj(6)
    compressed = sum(len(compressor.compress(array.tobytes())) for array in arrays.values())
    return Storage(
        dense_bytes=sum(array.nbytes for array in arrays.values()),
        gzip_bytes=compressed + len(compressor.flush()),
        packed_bytes=len(pack_weights(module)),
    )


class _Packed(msgspec.Struct, array_like=True):
    """A tensor in one of three forms.

    Dense; as indices of a few bits into a codebook; or sparse, as one bit per element and the values that are not zero.
    """

    dtype: str
    shape: tuple[int, ...]
    form: Literal["dense", "shared", "sparse"]
    bits: int
    values: bytes
    indices: bytes


def pack_weights(module: nn.Module) -> bytes:
    """Store parameters and buffers without loss, each in its smallest form.

    A tensor with few distinct values becomes a codebook and indices of ``ceil(log2 k)`` bits. A tensor with many zeros
    becomes one bit per element and the values that are not zero. For n weights that share k values of b bits, Deep
    Compression counts ``n log2 k + k b`` bits (Han, Mao, Dally, arXiv:1510.00149, equation 1). Here the number of bits
    per index is rounded up.

    Args:
        module: The model, on any device.

    Returns:
        The packed weights, for `unpack_weights`.
    """
    return msgspec.msgpack.encode({name: _pack(array) for name, array in _arrays(module).items()})


def unpack_weights(data: bytes, module: nn.Module) -> None:
    """Load the result of `pack_weights` into a model of the same architecture.

    Args:
        data: The packed weights.
        module: The model that receives the weights, bit for bit the same.

    Raises:
        InferenceError: The weights are damaged, or belong to another architecture.
    """
    own = module.state_dict()
    first = _first_names(own)
    try:
        packed = msgspec.msgpack.decode(data, type=dict[str, _Packed])
        if set(packed) != set(first.values()):
            raise InferenceError(f"The packed weights do not belong to this {type(module).__name__}.")
        loaded = {name: torch.from_numpy(_unpack(packed[name])).view(own[name].dtype) for name in packed}
        module.load_state_dict({name: loaded[first[name]] for name in own})
    except msgspec.DecodeError as error:
        raise InferenceError(f"The packed weights are damaged ({error}). Pack them again.") from error
    except (RuntimeError, ValueError) as error:
        raise InferenceError(f"The packed weights do not belong to this {type(module).__name__}: {error}") from error


def _arrays(module: nn.Module) -> dict[str, NDArray[Any]]:
    """Return the bits of each parameter and buffer as integers; a shared one appears once, under its first name."""
    state = module.state_dict()
    first = _first_names(state)
    return {
        name: tensor.detach().cpu().contiguous().view(_INTEGERS[tensor.element_size()]).numpy()
        for name, tensor in state.items()
        if first[name] == name
    }


def _first_names(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Map each name to the first name of the same tensor."""
    seen: dict[tuple[int, tuple[int, ...]], str] = {}
    return {
        name: seen.setdefault((tensor.data_ptr(), tuple(tensor.shape)), name) if tensor.numel() else name
        for name, tensor in state.items()
    }


def _pack(array: NDArray[Any]) -> _Packed:
    flat = array.reshape(-1)
    dense = _Packed(array.dtype.str, array.shape, "dense", 0, flat.tobytes(), b"")
    candidates = [dense, _pack_sparse(array)]
    if len(np.unique(flat[:PROBE])) <= MOST_SHARED:
        candidates.append(_pack_shared(array))
    return min(candidates, key=lambda packed: len(packed.values) + len(packed.indices))


def _pack_sparse(array: NDArray[Any]) -> _Packed:
    flat = array.reshape(-1)
    there = flat != 0
    return _Packed(array.dtype.str, array.shape, "sparse", 1, flat[there].tobytes(), np.packbits(there).tobytes())


def _pack_shared(array: NDArray[Any]) -> _Packed:
    codebook, indices = np.unique(array.reshape(-1), return_inverse=True)
    bits = math.ceil(math.log2(max(1, len(codebook))))
    if len(codebook) > MOST_SHARED:
        return _Packed(array.dtype.str, array.shape, "dense", 0, array.tobytes(), b"")
    digits = np.unpackbits(indices.astype(np.uint8)[:, None], axis=1)[:, 8 - bits :]
    return _Packed(array.dtype.str, array.shape, "shared", bits, codebook.tobytes(), np.packbits(digits).tobytes())


def _unpack(packed: _Packed) -> NDArray[Any]:
    values = np.frombuffer(packed.values, dtype=packed.dtype)
    count = math.prod(packed.shape)
    stored = np.frombuffer(packed.indices, dtype=np.uint8)
    if packed.form == "sparse":
        flat = np.zeros(count, dtype=packed.dtype)
        flat[np.unpackbits(stored, count=count).astype(bool)] = values
    elif packed.form == "shared":
        if packed.bits == 0:
            return np.repeat(values, count).reshape(packed.shape)
        digits = np.unpackbits(stored, count=count * packed.bits).reshape(count, packed.bits)
        indices = np.packbits(digits, axis=1).reshape(-1) >> (8 - packed.bits)
        flat = values[indices]
    else:
        flat = values.copy()
    return flat.reshape(packed.shape)


class Chains:
    """Applies chains of transforms and keeps the resulting models.

    A transform may fine-tune for minutes, so ``prune-50+onnxruntime`` and ``prune-50+onnxruntime-int8`` share a model.

    Args:
        subject: The original.
        fine_tune: Trains a changed model; None without training data.
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
        """Return the changed model.

        Raises:
            VariantError: A transform cannot be applied; the message says which one and why.
        """
        key = tuple(transform.name for transform in transforms)
        if key not in self._modules:
            self._modules[key] = self._apply(transforms)
        made = self._modules[key]
        if isinstance(made, VariantError):
            raise made
        return made

    def subject_file(self, transforms: tuple[Transform, ...], threads: int) -> Path:
        """Return a file with the changed model as a `Subject`, for the process that builds the variant.

        Raises:
            VariantError: A transform cannot be applied, or its result cannot be saved.
        """
        key = (tuple(transform.name for transform in transforms), threads)
        if key not in self._files:
            path = self._work / f"subject{len(self._files)}.pt"
            save_subject(replace(self._subject, module=self.module(transforms), threads=threads), path)
            self._files[key] = path
        return self._files[key]

    def storage(self, transforms: tuple[Transform, ...]) -> Storage:
        """Measure the storage of the changed model's weights."""
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
        except Exception as error:  # libraries and training code may raise anything; the other variants continue
            return VariantError(f"{last.name} failed ({reason_of(error)})")
