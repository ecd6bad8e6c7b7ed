"""The tensors of a batch, and its size. A batch may be any object: none of its own code runs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from msgspec import Struct

from lightning_perf.objects import attributes, is_tensor, parts, size

MOST_OBJECTS = 1000
"""Objects of a batch that are looked at: enough to find its first tensors, and less than a millisecond of work."""

USUAL_DEPTH = 4
"""Most batches are plain containers that begin with a tensor, so many levels down. Nothing has to be searched."""


class _Shaped:
    """The shape and type of a tensor of a class that computes its content, or of an object that stores its shape."""

    def __init__(self, shape: tuple[int, ...], dtype: object) -> None:
        self.shape = shape
        self.dtype = dtype


def named_tensors(batch: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tensors and arrays of a batch with their names, which are empty in lists.

    A ``TensorDict`` without tensors that have a size of their own comes as one object with a shape.
    """
    stack: list[tuple[str, Any]] = [("", batch)]
    seen: set[int] = set()
    for _ in range(MOST_OBJECTS):
        if not stack:
            return
        name, value = stack.pop()
        if is_tensor(value):
            yield name, _plain_tensor(value)
        elif issubclass(type(value), np.ndarray):
            yield name, np.ndarray.view(value, np.ndarray)
        elif id(value) not in seen:
            seen.add(id(value))
            stack += reversed(list(islice(_members(value), MOST_OBJECTS)))


def batch_samples(batch: Any) -> int | None:
    """Count the samples of a batch: the first dimension of the first tensor in it, or the size that it stores.

    Returns:
        The samples, or None when the batch has no tensor with a dimension.
    """
    first = batch
    for _ in range(USUAL_DEPTH):
        kind = type(first)
        if kind is torch.Tensor and first.dim():
            return int(first.shape[0])
        if kind not in (tuple, list, dict) or not first:
            break
        first = next(iter(first.values())) if kind is dict else first[0]
    stored = _stored_shape(batch)
    if stored:
        return int(stored[0])
    return next((int(tensor.shape[0]) for _, tensor in named_tensors(batch) if len(tensor.shape)), None)


def _plain_tensor(value: torch.Tensor) -> Any:
    kind = type(value)
    if kind is torch.Tensor:
        return value
    with torch._C.DisableTorchFunctionSubclass():
        if kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__:
            return torch.Tensor.detach(value)
        return _Shaped(torch.Tensor.shape.__get__(value), torch.Tensor.dtype.__get__(value))  # type: ignore[attr-defined]


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    if size(value) is not None:
        for key, part in parts(value):
            yield key if type(key) is str else "", part
        return
    own = attributes(value)
    if "_tensordict" in own:  # a TensorDict, or a class of one
        yield "", own["_tensordict"]
    elif any("__dataclass_fields__" in vars(base) for base in type(value).__mro__):
        yield from own.items()


def _stored_shape(value: Any) -> tuple[int, ...]:
    """Return the shape that an object stores, as a ``TensorDict`` does."""
    own = attributes(value)
    shape = own.get("shape", own.get("_batch_size"))
    if shape is None and "_tensordict" in own:
        return _stored_shape(own["_tensordict"])
    return shape if isinstance(shape, tuple) and all(type(length) is int for length in shape) else ()


IGNORED_LABEL = -100
"""Label that ``torch.nn.functional.cross_entropy`` ignores by default."""

TOKENS = "input_ids"
MASK = "attention_mask"
LABELS = "labels"
"""Names of the parts of a batch, as Hugging Face and most language models use them."""

MOST_PARTS = 32
"""Tensors of a batch that are looked at. Batches of many small tensors hold no tokens."""

TOKEN_TYPES = frozenset({"int16", "int32", "int64"})


class Sequences(Struct, frozen=True):
    """The token sequences of a batch.

    Attributes:
        mask: Attention mask of the same shape, 0 at padding; None without one.
        labels: Labels of the same shape; None without them.
    """

    rows: int
    length: int
    mask: Any = None
    labels: Any = None

    @property
    def tokens(self) -> int:
        """Tokens of the batch, padding included."""
        return self.rows * self.length


class Padding(Struct, frozen=True):
    """The padding of some batches.

    Attributes:
        beyond_longest: Padding that no row of its batch needs: columns in which all rows are padded.
    """

    tokens: int = 0
    padding: int = 0
    beyond_longest: int = 0

    def __add__(self, other: Padding) -> Padding:
        return Padding(
            self.tokens + other.tokens,
            self.padding + other.padding,
            self.beyond_longest + other.beyond_longest,
        )


def find_sequences(batch: Any) -> Sequences | None:
    """Find the token sequences of a batch.

    They are the tensor named ``input_ids``. Without that name, they are the first tensor of the batch, if it has
    integers and two dimensions. Beside other tensors, labels or a mask of the same shape must be there: the categories
    in the rows of a table are no tokens.
    """
    plain = type(batch) in (list, tuple) and all(type(part) is torch.Tensor for part in batch)  # usual
    tensors = (("", part) for part in batch) if plain else named_tensors(batch)
    parts = list(islice((part for part in tensors if len(part[1].shape)), MOST_PARTS))
    named = next((tensor for name, tensor in parts if name == TOKENS), None)
    found = named if named is not None else parts[0][1] if parts else None
    if found is None or not _is_integer(found) or len(found.shape) != 2 or found.shape[1] < 2:
        return None
    shape = tuple(found.shape)
    like = [(name, tensor) for name, tensor in parts if tensor is not found and tuple(tensor.shape) == shape]
    mask = next((tensor for name, tensor in like if name == MASK), None)
    labels = next((tensor for name, tensor in like if name == LABELS and _is_integer(tensor)), None)
    if labels is None:
        labels = next((tensor for name, tensor in like if name != MASK and _is_integer(tensor)), None)
    if named is None and labels is None and mask is None and len(parts) > 1:
        return None
    return Sequences(int(shape[0]), int(shape[1]), mask, labels)


def count_tokens(batch: Any) -> int | None:
    """Return the tokens of a batch, padding included, as `find_sequences` finds them; None without any.

    Example:
        >>> count_tokens({"input_ids": torch.zeros(4, 16, dtype=torch.int64)})
        64
    """
    if type(batch) is dict and type(named := batch.get(TOKENS)) is torch.Tensor:  # usual, and nothing to search
        shape = named.shape
        return shape[0] * shape[1] if len(shape) == 2 and shape[1] > 1 and _is_integer(named) else None
    found = find_sequences(batch)
    return None if found is None else found.tokens


def count_padding(real: npt.NDArray[Any], *, labels: bool) -> Padding:
    """Count the padding of a batch.

    Args:
        real: The attention mask of the batch, or its labels, ``(rows, length)``.
        labels: Whether `real` holds labels. Then padding is a run of `IGNORED_LABEL` at the end of a row: the labels of
            a prompt are often ignored, too, and come first.
    """
    rows, length = real.shape
    if labels:
        used = real != IGNORED_LABEL
        lengths = np.where(used.any(axis=1), length - np.argmax(used[:, ::-1], axis=1), 0)
    else:
        lengths = np.count_nonzero(real, axis=1)
    return Padding(
        tokens=rows * length,
        padding=int(rows * length - lengths.sum()),
        beyond_longest=int(rows * (length - lengths.max(initial=0))),
    )


def _is_integer(tensor: Any) -> bool:
    if type(tensor) is torch.Tensor:
        return tensor.dtype in (torch.int64, torch.int32, torch.int16)
    return str(getattr(tensor, "dtype", "")).rpartition(".")[2] in TOKEN_TYPES
