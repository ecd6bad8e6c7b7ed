"""Hash the inputs of a run: files, tensors, nested batches. The same content gives the same hash on any machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["hash_files", "hash_tensors"]

DIGITS = 16
"""Hexadecimal digits kept: 64 bits, enough that two runs do not agree by chance."""

WHOLE_BYTES = 2**30
"""Content up to this size is hashed completely. Of larger content a sample of each part is hashed, and the hash has the
suffix ``-sampled``."""

SAMPLE_BYTES = 2**16

PLAIN = (str, bytes, int, float, bool, type(None))

_SPARSE = {
    "sparse_coo": ("indices", "values"),
    "sparse_csr": ("crow_indices", "col_indices", "values"),
    "sparse_bsr": ("crow_indices", "col_indices", "values"),
    "sparse_csc": ("ccol_indices", "row_indices", "values"),
    "sparse_bsc": ("ccol_indices", "row_indices", "values"),
}
"""The parts of a sparse tensor, by its layout."""


def hash_files(paths: Iterable[str | Path], root: str | Path) -> str:
    """Hash the files of a data set: their names below a root, their sizes and their content.

    Args:
        paths: The files, in any order.
        root: Folder that names are relative to, so that a copy of the data in another place has the same hash.

    Returns:
        The hash. If the files together are too large to read completely, it covers the first and last 64 KiB of each
        and has the suffix ``-sampled``.

    Raises:
        OSError: A file cannot be read.
    """
    root = Path(root)
    files = sorted({Path(path) for path in paths})
    sizes = {file: file.stat().st_size for file in files}
    whole = sum(sizes.values()) <= WHOLE_BYTES
    digest = hashlib.blake2b(digest_size=DIGITS // 2)
    for file in files:
        name = file.relative_to(root).as_posix() if file.is_relative_to(root) else file.name
        digest.update(f"{name}\0{sizes[file]}\0".encode())
        with file.open("rb") as stream:
            if whole or sizes[file] <= 2 * SAMPLE_BYTES:
                digest.update(stream.read())
            else:
                digest.update(stream.read(SAMPLE_BYTES))
                stream.seek(-SAMPLE_BYTES, 2)
                digest.update(stream.read())
    return digest.hexdigest() + ("" if whole else "-sampled")


def hash_tensors(value: Any) -> str | None:
    """Hash the tensors, arrays and plain values in a nested structure.

    Args:
        value: For example a batch or a state dict: tensors, arrays, numbers and strings in mappings and sequences.

    Returns:
        The hash, or None if the value has no tensor or array. The suffix ``-sampled`` is as in `hash_files`.

    Example:
        >>> hash_tensors({"x": np.zeros(3)}) == hash_tensors({"x": np.zeros(3)}) != hash_tensors({"x": np.ones(3)})
        True
    """
    parts: list[tuple[str, Any]] = []
    _flatten("", value, parts, within=())
    arrays = [part for _, part in parts if _is_array(part)]
    if not arrays:
        return None
    whole = sum(_size_bytes(array) for array in arrays) <= WHOLE_BYTES
    digest = hashlib.blake2b(digest_size=DIGITS // 2)
    for name, part in parts:
        if _is_array(part):
            digest.update(f"{name}\0{part.dtype}\0{tuple(part.shape)}\0".encode())
            digest.update(_content(part, whole))
        else:
            digest.update(f"{name}\0{part!r}\0".encode())
    return digest.hexdigest() + ("" if whole else "-sampled")


def _flatten(name: str, value: Any, parts: list[tuple[str, Any]], within: tuple[int, ...]) -> None:
    if id(value) in within:  # an object that contains itself
        return
    within = (*within, id(value))
    if _is_array(value) and (pieces := _pieces(value)) is not None:
        _flatten(name, pieces, parts, within)
    elif _is_array(value) or isinstance(value, PLAIN):
        parts.append((name, value))
    elif isinstance(value, Mapping):
        for key in value:
            _flatten(f"{name}.{key}", value[key], parts, within)
    elif isinstance(value, Sequence):
        for position, item in enumerate(value):
            _flatten(f"{name}.{position}", item, parts, within)
    elif hasattr(value, "__dict__"):
        _flatten(name, vars(value), parts, within)


def _pieces(array: Any) -> Any | None:
    """Return the parts of an array of objects, or of a nested or sparse tensor; None for a plain block of numbers."""
    if isinstance(array, np.ndarray):
        if not array.dtype.hasobject:
            return None
        items = array.reshape(-1).tolist()  # the array itself holds addresses, which differ in every process
        if not all(isinstance(item, PLAIN) for item in items):
            return [array.shape, items]
        return [array.shape, np.frombuffer("\0".join(map(repr, items)).encode(), np.uint8)]
    array = array.detach()
    if array.is_nested:
        return list(array.unbind())
    layout = str(array.layout).removeprefix("torch.")
    names = _SPARSE.get(layout)
    if names is None:
        return None
    array = array.coalesce() if layout == "sparse_coo" else array
    return {"layout": layout, "shape": tuple(array.shape), **{name: getattr(array, name)() for name in names}}


def _is_array(value: Any) -> bool:
    # Recognize tensors by their methods, so that this module does not import torch.
    return isinstance(value, np.ndarray) or (hasattr(value, "detach") and hasattr(value, "element_size"))


def _size_bytes(array: Any) -> int:
    return int(array.nbytes)


def _content(array: Any, whole: bool) -> bytes:
    if isinstance(array, np.ndarray):
        flat = np.ascontiguousarray(array).reshape(-1)
        if not whole:
            flat = flat[:: max(1, flat.nbytes // SAMPLE_BYTES)]
        return flat.tobytes()
    flat = array.detach().resolve_conj().reshape(-1)
    if not whole and flat.numel():
        flat = flat[:: max(1, int(flat.nbytes) // SAMPLE_BYTES)]
    # As bytes, because numpy has no bfloat16.
    import torch

    return flat.contiguous().cpu().view(torch.uint8).numpy().tobytes() if flat.numel() else b""
