"""The tokens of a batch of a language model: their number by shape, and how many of them are padding."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lightning_perf.callbacks.steps.batch_parts import named_tensors

IGNORED_LABEL = -100
"""Label that ``torch.nn.functional.cross_entropy`` ignores by default."""

TOKENS = "input_ids"
MASK = "attention_mask"
LABELS = "labels"
"""Names of the parts of a batch, as Hugging Face and most language models use them."""

MOST_PARTS = 32
"""Tensors of a batch that are looked at. Batches of many small tensors hold no tokens."""

TOKEN_TYPES = frozenset({"int16", "int32", "int64"})


@dataclass(frozen=True)
class Sequences:
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


@dataclass(frozen=True)
class Padding:
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

    Example:
        >>> tokens, labels = np.zeros((4, 16), np.int64), np.zeros((4, 16), np.int64)
        >>> find_sequences((tokens, labels)).tokens
        64
        >>> find_sequences({"image": np.zeros((4, 3, 8, 8)), "label": np.zeros(4, np.int64)}) is None
        True
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

    Example:
        >>> count_padding(np.array([[1, 1, 0, 0], [1, 0, 0, 0]]), labels=False)
        Padding(tokens=8, padding=5, beyond_longest=4)
        >>> count_padding(np.array([[-100, 7, 8, -100], [3, 4, 5, 6]]), labels=True)
        Padding(tokens=8, padding=1, beyond_longest=0)
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
