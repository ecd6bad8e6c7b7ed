"""The notes in the recording of a window beside the events of torch: processor, loader, loop, tensors and tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.recording.batch_contents import count_contents
from lightning_perf.callbacks.recording.memory_watch import process_bytes
from lightning_perf.callbacks.recording.tensor_lists import WindowLists
from lightning_perf.callbacks.recording.tokens import TokenCounter
from lightning_perf.callbacks.steps.core_use import CoreUse
from lightning_perf.callbacks.steps.fit_state import FitState
from lightning_perf.callbacks.steps.hook_times import HookTimes
from lightning_perf.callbacks.steps.page_fault_counter import PageFaultCounter
from lightning_perf.machine.environment import cuda_settings, setting_facts
from lightning_perf.machine.processor import processor_facts
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
from lightning_perf.workers.memory_limit import free_bytes


class WindowNotes:
    """Takes the notes of each window, from sources that observe the training.

    A loop without hooks has no `hook_times`, and a recording without allocations no `tensors`.
    """

    def __init__(
        self,
        state: FitState,
        *,
        device_type: str,
        errors: ErrorReporter,
        core_use: CoreUse,
        loader: Mapping[str, object],
        nodes: int | None = None,
        parameters: Callable[[], int | None],
        hook_times: HookTimes | None = None,
        tensors: WindowLists | None = None,
    ) -> None:
        self._on_cpu = device_type == "cpu"
        self._on_cuda = device_type == "cuda"
        self._errors = errors
        self._core_use = core_use
        self._loader = loader
        self._nodes = nodes
        self._hook_times = hook_times
        self._tensors = tensors
        self._page_faults = PageFaultCounter(state)
        self._tokens = TokenCounter(state, parameters)
        self._state = state
        self._batch: Batch | None = None

    def before_window(self) -> Iterator[tuple[str, str]]:
        """Return the notes that are known before the warm-up, as keys with JSON."""
        page_faults = self._page_faults.median_per_step() if self._on_cpu else None
        processor = processor_facts(trains=self._on_cpu, page_faults=page_faults)
        memory = {"free_bytes": free_bytes(), "used_bytes": process_bytes()} if self._on_cpu else {}
        yield PROCESSOR_KEY, json.dumps(processor | self._core_use.facts() | memory)
        if self._loader:
            yield LOADER_KEY, json.dumps(self._loader)
        settings = setting_facts() | {"nodes": self._nodes}
        if self._on_cuda:
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
        if self._tensors is not None:
            try:
                self._tensors.start()
            except Exception as error:
                self._give_up_lists(error)

    def on_recording(self) -> None:
        """Start to time hooks."""
        if self._hook_times is not None:
            self._hook_times.start()

    def of_window(self, steps: int) -> Iterator[tuple[str, str]]:
        """Return the notes of the recorded steps, as keys with JSON."""
        if self._hook_times is not None:
            yield LOOP_KEY, json.dumps(self._hook_times.stop(steps))
        if self._tensors is not None:
            try:
                lists = json.dumps(self._tensors.stop())
            except Exception as error:
                self._give_up_lists(error)
            else:
                yield TENSORS_KEY, lists
        if (tokens := self._tokens.facts()) is not None:
            yield TOKENS_KEY, json.dumps(tokens)
        if self._batch is not None:
            yield BATCH_KEY, json.dumps(asdict(self._batch))

    def after_window(self) -> None:
        """Stop to time hooks, also after a window without notes."""
        if self._hook_times is not None:
            self._hook_times.timing = False

    def _give_up_lists(self, error: Exception) -> None:
        """Leave the lists out: parameters may be of any class, and the rest of the recording does not need them."""
        self._tensors = None
        self._errors.report("recordings do not list parameters, gradients and optimizer state", error)
