"""Follows the memory of a fit from step to step, and counts tensors when it has grown."""

from __future__ import annotations

import functools
import gc
import heapq
import itertools
import mmap
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import torch
from msgspec.structs import replace

from lightning_perf.analysis.steps.fit_time import summarize_growth
from lightning_perf.callbacks.steps.fit_state import FitContext
from lightning_perf.callbacks.steps.observers import FitObserver
from lightning_perf.run_files.fit.memory_growth import (
    GrowthRecord,
    MemorySample,
    TensorCensus,
    TensorGroup,
    WorkerGrowth,
    write_growth,
)

WARMUP_STEPS = 20
"""Steps before the first sample. They fill caches and make the state of the optimizer."""

MAX_SAMPLES = 64
"""Samples kept. When they are full, every second one is dropped, and the distance doubles."""

GPU_DISTANCE = 16
"""Steps between the first samples on a GPU: torch gathers all statistics of the allocator for each."""

GROWTH_BYTES = 16 * 2**20
GROWTH_SHARE = 0.01
"""Growth since the first sample at which tensors are counted: at least so many bytes, and this share of the level."""

CENSUS_SHARE = 0.01
"""Most time that counting may take, as a share of the time since the start. The first two censuses are free."""

KEPT_GROUPS = 200
"""Groups of a census that are saved: the largest ones and the most frequent ones."""

_STATM = Path("/proc/self/statm")


def process_bytes() -> int | None:
    """Return the resident memory of this process; None if the system does not show it."""
    with suppress(OSError), _STATM.open("rb", buffering=0) as file:
        return _resident_bytes(file.fileno())
    return None


def _resident_bytes(file: int) -> int | None:
    try:
        return int(os.pread(file, 64, 0).split()[1]) * mmap.PAGESIZE
    except (OSError, IndexError, ValueError):
        return None


class MemoryWatch(FitObserver):
    """Samples the memory at the ends of steps, outside of the profiler's windows.

    Tensors are counted when the memory has grown, and again each time that the growth has doubled. So a training with
    constant memory is never searched.
    """

    consequence = "the memory is not followed any more"

    def __init__(
        self,
        context: FitContext,
        *,
        level: Callable[[], int | None] | None = None,
        worker: Callable[[], WorkerGrowth | None] = lambda: None,
    ) -> None:
        self._context = context
        self._state = context.state
        self._worker = worker
        device = context.loop.device
        self._on_gpu = device.type == "cuda"
        self._statm: BinaryIO | None = None
        if level is None:
            level = functools.partial(torch.cuda.memory_allocated, device) if self._on_gpu else self._open()
        self._level = level
        self._samples: list[MemorySample] = []
        self._censuses: list[TensorCensus] = []
        self._lengths: dict[int, int] = {}
        self._distance = GPU_DISTANCE if self._on_gpu else 1
        self._next = WARMUP_STEPS
        self._threshold: int | None = None
        self._began_s = time.perf_counter()
        self._spent_s = 0.0

    def on_step_end(self) -> None:
        """Take a sample if it is due."""
        step = self._state.step
        if step < self._next or self._state.profiling:
            return
        self._next = step + self._distance
        level = self._level()
        if level is None:
            return
        self._samples.append(MemorySample(step, level))
        if len(self._samples) >= MAX_SAMPLES:
            self._samples = self._samples[::2]
            self._distance *= 2
        if self._threshold is None:
            self._threshold = level + self._least(level)
        elif level > self._threshold:
            first = self._samples[0].bytes
            self._threshold = first + 2 * max(level - first, self._least(first))
            self._take_census(step)

    def finish(self) -> None:
        """Write the record. If the memory grew steadily, tensors that were counted once are counted again."""
        if not self._samples or self._context.folder is None:
            return
        record = GrowthRecord(
            rank=self._context.loop.rank,
            source="allocator" if self._on_gpu else "process",
            samples=tuple(self._samples),
            censuses=(),
            worker=self._worker(),
        )
        if len(self._censuses) == 1 and self._state.step > self._censuses[0].step:
            growth = summarize_growth(record)
            if growth is not None and growth.grows:
                self._take_census(self._state.step)
        write_growth(self._context.folder, replace(record, censuses=tuple(self._censuses)))

    def close(self) -> None:
        """Close the system's file of this process."""
        if self._statm is not None:
            self._statm.close()

    def _open(self) -> Callable[[], int | None]:
        """Open the system's file of this process once: to open it takes twenty times as long as to read it."""
        try:
            self._statm = _STATM.open("rb", buffering=0)
        except OSError:
            return lambda: None
        return functools.partial(_resident_bytes, self._statm.fileno())

    @staticmethod
    def _least(level: int) -> int:
        return max(GROWTH_BYTES, int(GROWTH_SHARE * level))

    def _take_census(self, step: int) -> None:
        begin_s = time.perf_counter()
        if len(self._censuses) > 1 and self._spent_s > CENSUS_SHARE * (begin_s - self._began_s):
            return
        tracked = Tracked()
        found = containers(tracked)
        if not self._censuses:
            self._lengths = {id(each): len(each) for each in found}
        grown = [(len(each) - self._lengths.get(id(each), len(each)), each) for each in found]
        most = heapq.nlargest(MEASURED_CONTAINERS, grown, key=lambda pair: pair[0])
        sizes = ((items * bytes_per_item(each), items) for items, each in most if items > 0)
        item_bytes, items = max(sizes, default=(0, 0))
        self._censuses = [*self._censuses[:1], TensorCensus(step, count_tensors(tracked), items, item_bytes)]
        self._spent_s += time.perf_counter() - begin_s


class Tracked:
    """All objects that the garbage collector knows, with their types.

    There are mostly half a million, and to visit each takes most of the time of a census. So they are visited once.
    """

    def __init__(self) -> None:
        self.things = gc.get_objects()
        self.kinds = list(map(type, self.things))

    def of(self, kinds: Container[type]) -> Iterator[Any]:
        """Return the objects of some types, without a Python loop."""
        return itertools.compress(self.things, map(kinds.__contains__, self.kinds))


CONTAINERS = frozenset({list, dict, set})

LEAST_ITEMS = 16
"""Items of containers that are followed: there are hundreds of thousands of smaller ones."""

MEASURED_CONTAINERS = 20
"""Containers with measured items: those that got most of them."""


def containers(tracked: Tracked) -> list[list[Any] | dict[Any, Any] | set[Any]]:
    """Return the lists, dictionaries and sets of the program.

    Subclasses, such as caches, are left out, and our own lists of samples.
    """
    package = __name__.partition(".")[0]
    ours = {kind for kind in set(tracked.kinds) if str(kind.__module__).partition(".")[0] == package}
    own = {id(value) for thing in tracked.of(ours) for value in getattr(thing, "__dict__", {}).values()}
    return [each for each in tracked.of(CONTAINERS) if len(each) >= LEAST_ITEMS and id(each) not in own]


SAMPLED_ITEMS = 9
"""Last items of a container that are measured."""

MOST_OBJECTS = 10_000
"""Objects below them that are counted at most."""


def bytes_per_item(container: list[Any] | dict[Any, Any] | set[Any]) -> int:
    """Return the memory of an item with all that only it refers to, by the last ones.

    The very last item is not counted. All that it shares with the others, such as the model, is left out with it.
    """
    with suppress(RuntimeError, IndexError):  # another thread changes it
        items = container.items() if isinstance(container, dict) else container
        last = list(itertools.islice(items if isinstance(items, set) else reversed(items), SAMPLED_ITEMS))
        seen: set[int] = set()
        _new_bytes(last[0], seen)
        return sum(_new_bytes(item, seen) for item in last[1:]) // max(1, len(last) - 1)
    return 0


def _new_bytes(thing: Any, seen: set[int]) -> int:
    """Return the memory of an object and of all that it refers to, but has not been seen."""
    left, size = [thing], 0
    while left and len(seen) < MOST_OBJECTS:
        each = left.pop()
        if id(each) in seen or issubclass(type(each), type | ModuleType):  # isinstance asks proxies for their class
            continue
        seen.add(id(each))
        with suppress(Exception):  # objects of other packages
            if torch.Tensor in type(each).__mro__:
                storage = each.untyped_storage()
                size += 0 if storage.data_ptr() in seen else storage.nbytes()
                seen.add(storage.data_ptr())
            size += sys.getsizeof(each, 0)
        left += gc.get_referents(each)
    return size


def count_tensors(tracked: Tracked) -> tuple[TensorGroup, ...]:
    """Count all tensors that the garbage collector knows, by class, type, shape and device."""
    counts: dict[tuple[str, str, bool], list[int]] = defaultdict(lambda: [0, 0])
    seen: set[int] = set()
    # By type: isinstance asks each object for its class, and some proxies then compute.
    kinds = {kind for kind in set(tracked.kinds) if torch.Tensor in kind.__mro__}
    for thing in tracked.of(kinds):
        kind = type(thing)
        try:
            shape, dtype = list(thing.shape), str(thing.dtype).removeprefix("torch.")
            group = counts[f"{kind.__name__} {dtype} {shape}", str(thing.device), thing.grad_fn is not None]
            group[0] += 1
            storage = thing.untyped_storage()
            address = storage.data_ptr()
            if address and address not in seen:
                seen.add(address)
                group[1] += storage.nbytes()
        except Exception:  # a subclass of another package
            continue
    groups = [TensorGroup(*key, count, size) for key, (count, size) in counts.items()]
    largest = sorted(groups, key=lambda group: (-group.bytes, -group.count, group.kind))
    frequent = sorted(groups, key=lambda group: (-group.count, -group.bytes, group.kind))[:KEPT_GROUPS]
    return tuple(dict.fromkeys([*largest[:KEPT_GROUPS], *frequent]))
