"""Hash the inputs of a run: files, tensors, nested batches. The same content gives the same hash on any machine.

Every hash has limits, so that no input can hold up a training: in objects, in bytes, and last in time. Content up to
`WHOLE_BYTES` is hashed completely. Of larger content, fixed samples are hashed. A suffix says so, and hashes with
different suffixes cannot be compared:

- ``-sampled-2``: a sample
- ``-sampled-spread-2``: a smaller sample, of very large arrays that are transposed or expanded
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from lightning_perf.compare.records.content import (
    PIECE_BYTES,
    Block,
    UnreadableError,
    array_block,
    sampled_content,
    tensor_parts,
    whole_content,
)
from lightning_perf.objects import PLAIN, attributes, is_tensor, parts, size

DIGITS = 16
"""Hexadecimal digits kept: 64 bits, enough that two runs do not agree by chance."""

WHOLE_BYTES = 2**23
"""Content up to this size is hashed completely: in about 6 ms."""

MAX_OBJECTS = 20_000
"""Most objects in a batch or a data set: they are walked through in about 20 ms."""

MAX_TEXT_BYTES = 2**23
"""Most bytes of strings, and of the names of parts."""

MAX_TENSORS = 4000
"""Most tensors and arrays in a batch: each takes longer than other objects."""

MAX_BLOCKS = 1000
"""The content of at most so many tensors and arrays is read. Of more, as many are read at even distances."""

MAX_FILES = 100
FILE_BYTES = 2**14
MAX_NAMES = 2000
"""Of a data set with more files, so many are read at even distances, up to so many bytes at both ends, and so many
names are hashed."""

CPU_LIMIT_S = 0.03
WALL_LIMIT_S = 0.1
"""Most time, each for the weights, the data sets and the first batch. The wall clock matters e.g. for
memory-mapped files on a slow disk. This is the last resort: typical content takes a tenth of it."""

NOT_HASHED = "not hashed, because "
"""A fact that starts with this is unknown."""

_LONG = 2**4096
"""Longer integers are hashed in hexadecimal: Python refuses to write very long ones in decimal."""


class Budget:
    """The objects, text and time that some hashes may still use."""

    def __init__(self) -> None:
        self._cpu_end_s = time.thread_time() + CPU_LIMIT_S
        self._wall_end_s = time.perf_counter() + WALL_LIMIT_S
        self._objects = MAX_OBJECTS
        self._text_bytes = MAX_TEXT_BYTES

    def take_objects(self, count: int) -> None:
        """Count objects."""
        self._objects -= count
        if self._objects < 0:
            raise UnreadableError(f"it has more than {MAX_OBJECTS:,} objects")

    def check_objects(self, count: int) -> None:
        """Check that so many objects are left, before they are listed."""
        if count > self._objects:
            self.take_objects(count)

    def take_text(self, length: int) -> None:
        """Count the characters of a text."""
        self._text_bytes -= length
        if self._text_bytes < 0:
            raise UnreadableError(f"it has more than {MAX_TEXT_BYTES // 2**20} MiB of text")

    def check_time(self) -> None:
        """Check the time."""
        if time.thread_time() > self._cpu_end_s or time.perf_counter() > self._wall_end_s:
            raise UnreadableError(f"reading it takes longer than {CPU_LIMIT_S * 1e3:.0f} ms")


def fact_of_hash(take: Callable[[], str | None]) -> str | None:
    """Return a hash as a fact of a run record: the hash, or the reason for a missing one."""
    try:
        return take()
    except UnreadableError as reason:
        return f"{NOT_HASHED}{reason}"
    except Exception as error:  # an odd tensor; its message may come from anywhere
        return f"{NOT_HASHED}reading it failed ({type(error).__name__})"


def hash_methods(fact: str) -> frozenset[str]:
    """Return the suffixes in a fact that is a hash. Two hashes with different ones cannot be compared."""
    return frozenset(re.findall(r"-sampled(?:-spread)?-2(?![0-9a-z])", fact))


def at_even_distances(values: Sequence[Any], most: int) -> Sequence[Any]:
    """Return all of some values, or so many of them at even distances."""
    return values if len(values) <= most else [values[number * len(values) // most] for number in range(most)]


def hash_files(paths: Iterable[str | os.PathLike[str]], root: str | os.PathLike[str], count: int | None = None) -> str:
    """Hash the files of a data set: their names below a root, their sizes and their content.

    Of many files, give a sample: `MAX_NAMES` of them. If there are too many, or too large ones, to read all of them,
    the hash covers names, and the sizes and both ends of `MAX_FILES` files.
    """
    root = Path(root)
    files = sorted({Path(path) for path in paths})
    sizes = {file: file.stat().st_size for file in at_even_distances(files, MAX_FILES)}
    whole = max(len(files), count or 0) <= MAX_FILES and sum(sizes.values()) <= WHOLE_BYTES
    digest = hashlib.blake2b(digest_size=DIGITS // 2)
    for file in files:
        name = file.relative_to(root).as_posix() if file.is_relative_to(root) else file.name
        digest.update(f"{name}\0{sizes.get(file, '')}\0".encode())
        for piece in _file_content(file, sizes[file], whole) if file in sizes else ():
            digest.update(piece)
    if not whole:
        digest.update(f"{count} files".encode())
    return digest.hexdigest() + ("" if whole else "-sampled-2")


def _file_content(file: Path, size_bytes: int, whole: bool) -> Iterator[bytes]:
    with file.open("rb") as stream:
        if whole or size_bytes <= 2 * FILE_BYTES:
            while piece := stream.read(PIECE_BYTES):
                yield piece
        else:
            yield stream.read(FILE_BYTES)
            stream.seek(-FILE_BYTES, os.SEEK_END)
            yield stream.read(FILE_BYTES)


def hash_tensors(value: Any, budget: Budget | None = None) -> str | None:
    """Hash the tensors, arrays and plain values in a nested structure; None if it has no tensor or array.

    No code of the structure's own classes runs, as `lightning_perf.objects` describes it, and no random number is
    drawn. The limits are those of `budget` if other hashes share them.
    """
    walk = _Walk(budget if budget is not None else Budget())
    with ExitStack() as stack:
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            stack.enter_context(torch.no_grad())
            stack.enter_context(torch._C.DisableTorchFunction())
        walk.flatten(value)
        return walk.digest()


class _Walk:
    """Collects the parts of a nested structure in order, each object once, and hashes them."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._parts: list[tuple[str, str | Block]] = []
        self._seen: dict[int, tuple[int, Any]] = {}
        self._blocks = 0

    def flatten(self, value: Any) -> None:
        """Collect the parts."""
        stack = [("", value)]
        visited = 0
        while stack:
            name, value = stack.pop()
            visited += 1
            if visited % 64 == 0:
                self._budget.take_objects(64)
                self._budget.check_time()
            kind = type(value)
            text = self._plain_text(value) if kind in PLAIN else self._odd_text(value)
            if text is not None:
                self._add(name, text)
                continue
            children = self._children(name, value)
            if not children:
                continue
            if not all(type(child) in PLAIN for _, child in children):
                if id(value) in self._seen:
                    self._add(name, f"→{self._seen[id(value)][0]}")
                    continue
                self._seen[id(value)] = len(self._seen), value
            labels = [_label(key, number) for number, (key, _) in enumerate(children)]
            self._budget.check_objects(len(stack) + len(children))
            self._budget.take_text(len(children) * len(name) + sum(map(len, labels)))
            stack += [(f"{name}.{label}", child) for label, (_, child) in zip(labels, children, strict=True)][::-1]

    def digest(self) -> str | None:
        """Hash the parts."""
        blocks = [part for _, part in self._parts if isinstance(part, Block)]
        if not blocks:
            return None
        most_bytes = _largest_whole([block.cost_bytes for block in blocks], WHOLE_BYTES)
        read = {id(block) for block in at_even_distances(blocks, MAX_BLOCKS)}
        digest = hashlib.blake2b(digest_size=DIGITS // 2)
        for name, part in self._parts:
            if isinstance(part, str):
                digest.update(f"{name}\0{part}\0".encode(errors="surrogatepass"))
                continue
            digest.update(f"{name}\0{part.label}\0".encode(errors="surrogatepass"))
            if part.values is None or id(part) not in read:
                continue
            check = self._budget.check_time
            whole = part.cost_bytes <= most_bytes
            for piece in whole_content(part, check) if whole else sampled_content(part, most_bytes, check):
                digest.update(piece)
        if len(blocks) <= MAX_BLOCKS and all(block.cost_bytes <= most_bytes for block in blocks):
            return digest.hexdigest()
        return digest.hexdigest() + ("-sampled-spread-2" if any(block.spread for block in blocks) else "-sampled-2")

    def _add(self, name: str, part: str | Block) -> None:
        self._blocks += isinstance(part, Block)
        if self._blocks > MAX_TENSORS:
            raise UnreadableError(f"it has more than {MAX_TENSORS:,} tensors")
        self._parts.append((name, part))
        self._budget.take_text(len(part) if isinstance(part, str) else 0)

    def _children(self, name: str, value: Any) -> list[tuple[Any, Any]]:
        """Return the parts of an object. Those that are one block are added at once."""
        kind = type(value)
        if issubclass(kind, np.ndarray):
            return self._of_array(name, value)
        if issubclass(kind, bytearray):
            self._add(name, array_block(np.frombuffer(value, np.uint8)))
            return []
        if is_tensor(value):
            found = tensor_parts(value, WHOLE_BYTES, MAX_OBJECTS)
            if isinstance(found, Block):
                self._add(name, found)
                return []
            return list(found.items())
        count = size(value)
        if count is not None:
            self._budget.check_objects(count)
            return list(parts(value))
        if issubclass(kind, (set, frozenset)):
            return self._of_set(value)
        return list(attributes(value).items())

    def _of_array(self, name: str, array: Any) -> list[tuple[Any, Any]]:
        if not array.dtype.hasobject:
            self._add(name, array_block(array))
            return []
        plain = np.ndarray.view(array, np.ndarray)
        self._budget.check_objects(plain.size)
        items = plain.reshape(-1).tolist()  # the array itself holds addresses, which differ in every process
        if not all(type(item) in PLAIN for item in items):
            return list(enumerate((plain.shape, items)))
        self._budget.take_objects(len(items))
        content = "\0".join(map(self._plain_text, items)).encode(errors="surrogatepass")
        return list(enumerate((plain.shape, np.frombuffer(content, np.uint8))))

    def _of_set(self, value: Any) -> list[tuple[Any, Any]]:
        """Return the plain values of a set in a fixed order. Others have none."""
        base = set if issubclass(type(value), set) else frozenset
        self._budget.check_objects(base.__len__(value))
        items = list(base.__iter__(value))
        texts = sorted(self._plain_text(item) for item in items if type(item) in PLAIN)
        return list(enumerate(texts))

    def _plain_text(self, value: Any) -> str:
        """Return a value of one of the types `PLAIN` as text."""
        if type(value) is int and not -_LONG < value < _LONG:
            return hex(value)
        if type(value) in (str, bytes):
            self._budget.take_text(len(value))
        return repr(value)

    def _odd_text(self, value: Any) -> str | None:
        """Return another number, string or range as text, without running code of its class; None for other objects."""
        kind = type(value)
        if kind is range or (_is_of_numpy(value, np.generic) and not issubclass(kind, np.void)):
            return repr(value)
        base = next((base for base in (str, bytes, int, float) if issubclass(kind, base)), None)
        if base is None:
            return None
        if base in (str, bytes):
            self._budget.take_text(base.__len__(value))  # before the copy
        return self._plain_text(base.__getnewargs__(value)[0])


def _label(key: Any, number: int) -> str:
    """Return the name of a part, without running code of the key's class."""
    kind = type(key)
    if kind in PLAIN or _is_of_numpy(key, np.generic) or (kind is tuple and all(type(each) in PLAIN for each in key)):
        return str(key)
    return str.__str__(key) if issubclass(kind, str) else f"<{kind.__qualname__} {number}>"


def _is_of_numpy(value: Any, kinds: Any) -> bool:
    return type(value).__module__ == "numpy" and issubclass(type(value), kinds)


def _largest_whole(costs_bytes: Sequence[int], total_bytes: int) -> int:
    """Return the largest size so that all parts together take at most a total, if larger ones are cut down to it.

    Example:
        >>> _largest_whole([10, 10], 100), _largest_whole([10, 500, 500], 110)
        (100, 50)
    """
    left = total_bytes
    for number, cost in enumerate(sorted(costs_bytes)):
        share = left // (len(costs_bytes) - number)
        if cost > share:
            return share
        left -= cost
    return total_bytes
