"""Reads arrays and tensors in bounded pieces, whatever their layout: nothing is copied as a whole."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from lightning_perf.objects import attributes, is_tensor

PIECE_BYTES = 2**20
"""Most memory that a copy of content takes."""

SAMPLE_ELEMENTS = 1024
RUN_ELEMENTS = 16
"""Elements of a large array that are read, in runs at even distances."""

SPREAD_BYTES = 2**28
SPREAD_SAMPLE_ELEMENTS = 128
"""Fewer are read of an array that is spread over more memory. Each may lie in another page of a memory-mapped file,
which takes 0.1 ms and adds 64 KiB of resident memory."""

CHUNK_ELEMENTS = 64
"""Elements of a sample that are read between two looks at the time."""

_SPARSE = {
    "sparse_coo": ("_indices", "_values"),
    "sparse_csr": ("crow_indices", "col_indices", "values"),
    "sparse_bsr": ("crow_indices", "col_indices", "values"),
    "sparse_csc": ("ccol_indices", "row_indices", "values"),
    "sparse_bsc": ("ccol_indices", "row_indices", "values"),
}
"""The methods that return the parts of a sparse tensor, by its layout."""

_INTEGERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
"""Types that NumPy has, by size, for elements such as bfloat16 that it lacks."""


class UnreadableError(Exception):
    """The content cannot be read within the limits. The message says why, as in "it has sparse rows"."""


class Block(Struct, frozen=True):
    """A strided block of numbers.

    Attributes:
        label: Type and shape.
        values: A plain array or, on a device, a plain tensor; None for a tensor without content.
        cost_bytes: The content or the memory that it is spread over, whichever is larger.
        contiguous: Whether the memory has the order of the content.
    """

    label: str
    values: Any
    cost_bytes: int
    contiguous: bool = True

    @property
    def spread(self) -> bool:
        """Whether neighbors in the order of the content may lie in different pages of a large memory."""
        return not self.contiguous and self.cost_bytes > SPREAD_BYTES


def array_block(array: npt.NDArray[Any]) -> Block:
    """Return an array of any class as a block. It must not hold objects."""
    plain = np.ndarray.view(array, np.ndarray)
    if plain.itemsize > PIECE_BYTES:
        raise UnreadableError(f"it has elements of more than {PIECE_BYTES // 2**20} MiB")
    label = f"{plain.dtype}\0{tuple(plain.shape)}"
    cost_bytes = _cost_bytes(plain.shape, plain.strides, plain.itemsize)
    return Block(label, plain, cost_bytes, plain.flags.c_contiguous)


def tensor_parts(tensor: Any, whole_bytes: int, most_parts: int) -> Block | dict[str, Any]:
    """Return a tensor as a block, or its parts if it is sparse, nested, quantized, or computed by a class of its own.

    No code of the class runs.
    """
    torch: Any = sys.modules["torch"]
    kind = type(tensor)
    computed = kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    if computed and not kind.__module__.startswith("torch.nested."):
        inner = {name: part for name, part in attributes(tensor).items() if is_tensor(part)}
        return {"class": kind.__qualname__, **inner}
    # With torch functions disabled, the base class's own method returns a plain tensor.
    plain = torch.Tensor.detach(tensor)
    if plain.is_nested:
        if plain.size(0) > most_parts:
            raise UnreadableError(f"it has a nested tensor of more than {most_parts:,} rows")
        return dict(enumerate(plain.unbind()))  # type: ignore[arg-type]
    layout = str(plain.layout).removeprefix("torch.")
    if layout in _SPARSE:
        if layout == "sparse_coo" and plain._values().nbytes <= whole_bytes:
            plain = plain.coalesce()
        content = {name.removeprefix("_"): getattr(plain, name)() for name in _SPARSE[layout]}
        return {"layout": layout, "shape": tuple(plain.shape), **content}
    if layout != "strided":
        raise UnreadableError(f"it has a tensor with the layout {layout}")
    if plain.is_quantized:
        return _quantized_parts(plain, torch)
    label = f"{plain.dtype}\0{tuple(plain.shape)}"
    if plain.device.type == "meta":
        return Block(label, None, 0)
    item_bytes = plain.element_size()
    strides = [stride * item_bytes for stride in plain.stride()]
    cost_bytes = _cost_bytes(plain.shape, strides, item_bytes)
    contiguous = plain.is_contiguous()
    if plain.device.type == "cpu" and not plain.is_conj() and not plain.is_neg():
        integers = _INTEGERS.get(item_bytes) if not plain.is_complex() else None
        plain = (plain.view(getattr(torch, integers)) if integers else plain).numpy()
    return Block(label, plain, cost_bytes, contiguous)


def whole_content(block: Block, check: Callable[[], None]) -> Iterator[bytes]:
    """Yield the bytes of a block in the order of a contiguous one, in pieces."""
    for piece in _pieces(block.values):
        check()
        yield _bytes(piece)


def sampled_content(block: Block, most_bytes: int, check: Callable[[], None]) -> Iterator[bytes]:
    """Yield the bytes of some elements of a block. Their positions depend on its size, and whether it is spread."""
    values = block.values
    count = int(np.prod(values.shape, dtype=object)) if len(values.shape) else 1
    item_bytes = values.itemsize if isinstance(values, np.ndarray) else values.element_size()
    most = SPREAD_SAMPLE_ELEMENTS if block.spread else SAMPLE_ELEMENTS
    positions = _positions(count, min(most, max(1, most_bytes // item_bytes)))
    if not isinstance(values, np.ndarray):
        torch: Any = sys.modules["torch"]
        check()
        places = torch.as_tensor(np.stack(np.unravel_index(positions, tuple(values.shape))), device=values.device)
        yield _bytes(values[tuple(places)])
        return
    if block.contiguous:
        check()
        yield values.reshape(-1)[positions].tobytes()
        return
    for start in range(0, len(positions), CHUNK_ELEMENTS):
        check()
        chunk = positions[start : start + CHUNK_ELEMENTS]
        yield values[np.unravel_index(chunk, values.shape)].tobytes()


def _cost_bytes(shape: Sequence[int], strides: Sequence[int], item_bytes: int) -> int:
    count = 1
    spread = item_bytes
    for length, stride in zip(shape, strides, strict=True):
        count *= int(length)
        spread += (int(length) - 1) * abs(int(stride))
    return max(count * item_bytes, spread) if count else 0


def _positions(count: int, most: int) -> npt.NDArray[np.int64]:
    if count <= most:
        return np.arange(count)
    run = min(RUN_ELEMENTS, most)
    runs = max(1, most // run)
    starts = [number * (count - run) // max(1, runs - 1) for number in range(runs)]
    return (np.array(starts, dtype=np.int64)[:, None] + np.arange(run)).ravel()


def _pieces(values: Any) -> Iterator[Any]:
    """Yield parts of at most `PIECE_BYTES`, in the order of a contiguous array."""
    shape = tuple(values.shape)
    item_bytes = values.itemsize if isinstance(values, np.ndarray) else values.element_size()
    row_bytes = item_bytes
    for length in shape[1:]:
        row_bytes *= int(length)
    if not shape or not shape[0] or not row_bytes:
        yield values
        return
    rows = max(1, PIECE_BYTES // row_bytes)
    for start in range(0, int(shape[0]), rows):
        if row_bytes > PIECE_BYTES:
            yield from _pieces(values[start])
        else:
            yield values[start : start + rows]


def _bytes(piece: Any) -> bytes:
    if isinstance(piece, np.ndarray):
        return piece.tobytes()
    torch: Any = sys.modules["torch"]
    plain = piece.resolve_conj().resolve_neg().contiguous().cpu().reshape(-1)
    content: bytes = plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return content


def _quantized_parts(plain: Any, torch: Any) -> dict[str, Any]:
    """Return the integers of a quantized tensor, from its own memory, and the numbers that scale them."""
    if str(plain.dtype) not in ("torch.quint8", "torch.qint8", "torch.qint32"):
        raise UnreadableError(f"it has a tensor of {plain.dtype}")
    integers = torch.empty(0, dtype=getattr(torch, _INTEGERS[plain.element_size()]), device=plain.device)
    integers = integers.set_(plain.untyped_storage(), plain.storage_offset(), plain.shape, plain.stride())
    if plain.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        scale: dict[str, Any] = {"scale": plain.q_scale(), "zero_point": plain.q_zero_point()}
    else:
        scale = {"scales": plain.q_per_channel_scales(), "zero_points": plain.q_per_channel_zero_points()}
    return {"dtype": str(plain.dtype), **scale, "values": integers}
