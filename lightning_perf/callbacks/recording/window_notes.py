"""The notes in the recording of a window beside the events of torch: processor, loader, loop, tensors and tokens."""

from __future__ import annotations

import json
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from msgspec.structs import asdict

from lightning_perf.callbacks.host_copy import HostCopy
from lightning_perf.callbacks.recording.memory_watch import process_bytes
from lightning_perf.callbacks.recording.tensor_lists import WindowLists
from lightning_perf.callbacks.steps.batch_parts import Padding, count_padding, find_sequences
from lightning_perf.callbacks.steps.core_use import CoreUse
from lightning_perf.callbacks.steps.fit_state import FitContext, FitState
from lightning_perf.machine.environment import cuda_settings, setting_facts
from lightning_perf.machine.page_faults import count_page_faults
from lightning_perf.machine.processor import processor_facts
from lightning_perf.objects import attributes
from lightning_perf.run_files.steps import WARMUP_STEPS
from lightning_perf.trace.description import (
    BATCH_KEY,
    LOADER_KEY,
    LOOP_KEY,
    PROCESSOR_KEY,
    SETTINGS_KEY,
    TOKENS_KEY,
    Batch,
)
from lightning_perf.trace.tensors import TENSORS_KEY
from lightning_perf.workers.limits import free_bytes

LAST_STEPS = 20
LEAST_STEPS = 3
"""So many steps after the warm-up are the least that a median is taken of."""

LATEST_STEPS = 3
"""If these have fewer faults than the others, the run is still settling."""


class PageFaultCounter:
    """Counts the page faults of whole steps after the warm-up, except where the profiler runs.

    The profiler's own faults are not the training's. Those of the first steps do not come back: they compile, and take
    the memory that later steps use again.
    """

    def __init__(self, state: FitState, *, count: Callable[[], int | None] = count_page_faults) -> None:
        self._state = state
        self._count = count
        self._before: int | None = None
        self._steps: deque[int] = deque(maxlen=LAST_STEPS)

    def on_step_start(self) -> None:
        """Count from here."""
        warming_up = self._state.step < WARMUP_STEPS
        self._before = None if self._state.profiling or warming_up else self._count()

    def on_step_end(self) -> None:
        """Keep the difference."""
        now = self._count() if self._before is not None else None
        if now is not None and self._before is not None:
            self._steps.append(now - self._before)
        self._before = None

    def on_step_cut(self) -> None:
        """Forget a step that is dropped or interrupted: validation has page faults of its own."""
        self._before = None

    def median_per_step(self) -> float | None:
        """Return the median of the last steps, that of the latest if it is lower, or None when they are too few."""
        steps = list(self._steps)
        if len(steps) < LEAST_STEPS:
            return None
        return min(statistics.median(steps), statistics.median(steps[-LATEST_STEPS:]))


MAX_OBJECTS = 2_000
"""Objects of a batch that are counted, in a few milliseconds of a step that is not recorded."""

SMALL = (bool, int, float, complex, type(None))


def count_contents(batch: Any) -> Batch:
    """Count the tensors of a batch, its other objects and their bytes.

    A batch may be any object, and no code of it runs. Plain containers are read by the methods of their base class, and
    objects by their ``__dict__``. Everything else, such as a generator, counts as one object.
    """
    waiting, seen = [batch], set[int]()
    tensors = tensor_bytes = objects = object_bytes = 0
    while waiting and tensors + objects < MAX_OBJECTS:
        value = waiting.pop()
        kind = type(value)
        if issubclass(kind, torch.Tensor):
            tensors += 1
            tensor_bytes += _tensor_bytes(value)
        else:
            objects += 1
            object_bytes += _own_bytes(value, kind)
        if id(value) not in seen:
            seen.add(id(value))
            waiting += _parts(value, kind)
    return Batch(tensors, tensor_bytes, objects, object_bytes, complete=not waiting)


def _tensor_bytes(tensor: Any) -> int:
    try:
        with torch._C.DisableTorchFunctionSubclass():
            return int(tensor.numel()) * int(tensor.element_size())
    except Exception:  # e.g. a nested tensor of some layouts has no size
        return 0


def _own_bytes(value: Any, kind: type) -> int:
    """Return the bytes that go through the pipe unchanged."""
    if kind is np.ndarray:
        return int(value.nbytes)
    return len(value) if kind in (str, bytes, bytearray) else 0


def _parts(value: Any, kind: type) -> list[Any]:
    """Return the objects that are sent with an object, at most `MAX_OBJECTS` of them."""
    if issubclass(kind, (*SMALL, torch.nn.Module)):
        return []
    parts: list[Any] = []
    for plain in (list, tuple, set, frozenset):
        if issubclass(kind, plain):
            parts += islice(plain.__iter__(value), MAX_OBJECTS)
    if issubclass(kind, dict):
        parts += islice(chain.from_iterable(dict.items(value)), MAX_OBJECTS)
    if not issubclass(kind, torch.Tensor):
        parts += islice(attributes(value).values(), MAX_OBJECTS)
    return parts


MOST_BATCHES = 16
"""Batches of a window in which padding is counted."""


class TokenCounter:
    """Counts tokens while the profiler runs. It adds no operator to the recording, and never waits for a device.

    The padding of batches on the host is counted in recorded steps and during the warm-up. Batches on a device are
    copied to the host during the warm-up only, because the copies would be in the recording. A model may have many
    layers, so its parameters are not counted before there are tokens.
    """

    def __init__(self, context: FitContext) -> None:
        self._state = context.state
        self._context = context
        self.start()

    def start(self) -> None:
        """Start to count for a new window."""
        self._steps = 0
        self._tokens = 0
        self._open_tokens: int | None = 0
        self._marks: list[tuple[HostCopy, bool]] = []

    def add_batch(self, batch: Any) -> None:
        """Count a batch of the open step, if the profiler runs."""
        if not self._state.profiling:
            return
        try:
            found = find_sequences(batch)
        except Exception:  # a batch may be any object, even one that contains itself
            found = None
        if found is None:
            self._open_tokens = None
            return
        if self._open_tokens is not None:
            self._open_tokens += found.tokens
        marks = found.mask if found.mask is not None else found.labels
        if not isinstance(marks, torch.Tensor) or len(self._marks) >= MOST_BATCHES:
            return
        if marks.device.type == "cpu" or (marks.device.type == "cuda" and not self._state.recording):
            self._marks.append((HostCopy(marks.detach()), found.mask is None))

    def on_step_start(self) -> None:
        """Start a step."""
        self._open_tokens = 0

    def on_step_end(self) -> None:
        """Add the step if it was recorded."""
        if self._state.recording and self._open_tokens:
            self._steps += 1
            self._tokens += self._open_tokens
        self._open_tokens = 0

    def facts(self) -> dict[str, int | None] | None:
        """Return the counts of the window, as `lightning_perf.trace.description.Tokens` reads them."""
        if not self._steps:
            return None
        padding = sum((count_padding(copy.read().numpy(), labels=labels) for copy, labels in self._marks), Padding())
        facts: dict[str, int | None] = {
            "parameters": self._parameters(),
            "steps": self._steps,
            "tokens": self._tokens,
        }
        # Labels without any ignored one may be padded with another token. That is no evidence of a lack of padding.
        if padding.padding or any(not labels for _, labels in self._marks):
            facts |= {
                "counted": padding.tokens,
                "padding": padding.padding,
                "beyond_longest": padding.beyond_longest,
            }
        return facts

    def _parameters(self) -> int | None:
        try:
            return self._context.loop.product_parameters()
        except Exception as error:  # a model may be any module
            self._context.errors.report("the parameters of the model are not counted", error)
            return None


def product_parameters(module: torch.nn.Module) -> int:
    """Count the parameters that each token meets in a product: all but the tables of embeddings.

    The table of an embedding is read and not multiplied. If the output layer shares it (tied weights), it counts.
    """
    counted = {
        id(parameter): parameter.numel()
        for part in module.modules()
        if not isinstance(part, torch.nn.Embedding | torch.nn.EmbeddingBag)
        for parameter in part.parameters(recurse=False)
        if not torch.nn.parameter.is_lazy(parameter)
    }
    return sum(counted.values())


class WindowNotes:
    """Takes the notes of each window, from sources that observe the training.

    A loop without hooks has no `hook_times`, and a recording without allocations no `tensors`.
    """

    def __init__(
        self,
        context: FitContext,
        core_use: CoreUse,
        loader: Mapping[str, object],
        tensors: WindowLists | None = None,
    ) -> None:
        self._loop = loop = context.loop
        self._on_cpu = loop.device.type == "cpu"
        self._errors = context.errors
        self._core_use = core_use
        self._loader = loader
        self._hook_times = loop.hook_times
        self._tensors = tensors
        self._page_faults = PageFaultCounter(context.state)
        self._tokens = TokenCounter(context)
        self._state = context.state
        self._batch: Batch | None = None

    def before_window(self) -> Iterator[tuple[str, str]]:
        """Return the notes that are known before the warm-up, as keys with JSON."""
        page_faults = self._page_faults.median_per_step() if self._on_cpu else None
        processor = processor_facts(trains=self._on_cpu, page_faults=page_faults)
        memory = {"free_bytes": free_bytes(), "used_bytes": process_bytes()} if self._on_cpu else {}
        yield PROCESSOR_KEY, json.dumps(processor | self._core_use.facts() | memory)
        if self._loader:
            yield LOADER_KEY, json.dumps(self._loader)
        settings = setting_facts() | {"nodes": self._loop.nodes}
        if self._loop.device.type == "cuda":
            with self._errors.instead("recordings do not name the device and its settings"):
                settings |= cuda_settings()
        yield SETTINGS_KEY, json.dumps(settings)

    def on_step_start(self) -> None:
        """A step starts that may be followed by a window, or is part of one."""
        if self._on_cpu:
            self._page_faults.on_step_start()
        self._tokens.on_step_start()

    def add_batch(self, batch: object) -> None:
        """Count a batch of a window."""
        self._tokens.add_batch(batch)
        if self._batch is None and self._state.profiling and batch is not None:
            self._batch = count_contents(batch)

    def on_step_end(self) -> None:
        """The step is whole."""
        if self._on_cpu:
            self._page_faults.on_step_end()
        self._tokens.on_step_end()

    def on_step_cut(self) -> None:
        """The step is dropped, or training pauses in it."""
        self._page_faults.on_step_cut()

    def on_warm_up(self) -> None:
        """Start to count tokens, and the contents of the first batch of the window."""
        self._tokens.start()
        self._batch = None

    def before_recording(self) -> None:
        """List the tensors of memory that the recorder does not see, because they exist already."""
        self._listed(WindowLists.start)

    def on_recording(self) -> None:
        """Start to time hooks."""
        if self._hook_times is not None:
            self._hook_times.start()

    def of_window(self, steps: int) -> Iterator[tuple[str, str]]:
        """Return the notes of the recorded steps, as keys with JSON."""
        if self._hook_times is not None:
            yield LOOP_KEY, json.dumps(self._hook_times.stop(steps))
        if lists := self._listed(lambda tensors: json.dumps(tensors.stop())):
            yield TENSORS_KEY, lists
        if (tokens := self._tokens.facts()) is not None:
            yield TOKENS_KEY, json.dumps(tokens)
        if self._batch is not None:
            yield BATCH_KEY, json.dumps(asdict(self._batch))

    def after_window(self) -> None:
        """Stop to time hooks, also after a window without notes."""
        if self._hook_times is not None:
            self._hook_times.timing = False

    def _listed(self, use: Callable[[WindowLists], str | None]) -> str | None:
        """Use the lists. If they fail they are left out: parameters may be of any class, and the rest needs none."""
        try:
            return use(self._tensors) if self._tensors is not None else None
        except Exception as error:
            self._tensors = None
            self._errors.report("recordings do not list parameters, gradients and optimizer state", error)
            return None
