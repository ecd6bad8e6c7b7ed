"""The notes in the recording of a window beside the events of torch: processor, loader, loop, tensors and tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.recording.batch_contents import BatchContents
from lightning_perf.callbacks.recording.memory_watch import process_bytes
from lightning_perf.callbacks.recording.tensor_lists import WindowLists
from lightning_perf.callbacks.recording.tokens import TokenCounter
from lightning_perf.callbacks.steps.core_use import CoreUse
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
)
from lightning_perf.trace.tensors import TENSORS_KEY
from lightning_perf.workers.memory_limit import free_bytes


@dataclass
class WindowNotes:
    """Takes the notes of each window, from sources that observe the training.

    Attributes:
        errors: Where a failing source is reported.
        core_use: Measures the use of the cores.
        batch: Counts the contents of a batch.
    """

    errors: ErrorReporter
    page_faults: PageFaultCounter | None = None
    core_use: CoreUse | None = None
    loader: Mapping[str, object] | None = None
    hook_times: HookTimes | None = None
    tensors: WindowLists | None = None
    tokens: TokenCounter | None = None
    batch: BatchContents | None = None

    def before_window(self, device_type: str) -> Iterator[tuple[str, str]]:
        """Return the notes that are known before the warm-up, as keys with JSON."""
        processor = processor_facts(
            trains=device_type == "cpu",
            page_faults=self.page_faults.median_per_step() if self.page_faults is not None else None,
        )
        memory = {"free_bytes": free_bytes(), "used_bytes": process_bytes()} if device_type == "cpu" else {}
        use = self.core_use.facts() if self.core_use is not None else {}
        yield PROCESSOR_KEY, json.dumps(processor | use | memory)
        if self.loader:
            yield LOADER_KEY, json.dumps(self.loader)
        settings = setting_facts()
        if device_type == "cuda":
            try:
                settings |= cuda_settings()
            except Exception as error:
                self.errors.report("recordings do not name the device and its settings", error)
        yield SETTINGS_KEY, json.dumps(settings)

    def on_step_start(self) -> None:
        """A step starts that may be followed by a window, or is part of one."""
        for source in (self.page_faults, self.tokens):
            if source is not None:
                source.on_step_start()

    def add_batch(self, batch: object) -> None:
        """Count a batch of a window."""
        for source in (self.tokens, self.batch):
            if source is not None:
                source.add_batch(batch)

    def on_step_end(self) -> None:
        """The step is whole."""
        for source in (self.page_faults, self.tokens):
            if source is not None:
                source.on_step_end()

    def on_step_cut(self) -> None:
        """The step is dropped, or training pauses in it."""
        if self.page_faults is not None:
            self.page_faults.on_step_cut()

    def on_warm_up(self) -> None:
        """Start to count tokens and the contents of a batch."""
        if self.tokens is not None:
            self.tokens.start()
        if self.batch is not None:
            self.batch.start()

    def before_recording(self) -> None:
        """List the tensors of memory that the recorder does not see, because they exist already."""
        if self.tensors is not None:
            try:
                self.tensors.start()
            except Exception as error:
                self._give_up_lists(error)

    def on_recording(self) -> None:
        """Start to time hooks."""
        if self.hook_times is not None:
            self.hook_times.start()

    def of_window(self, steps: int) -> Iterator[tuple[str, str]]:
        """Return the notes of the recorded steps, as keys with JSON."""
        if self.hook_times is not None:
            yield LOOP_KEY, json.dumps(self.hook_times.stop(steps))
        if self.tensors is not None:
            try:
                lists = json.dumps(self.tensors.stop())
            except Exception as error:
                self._give_up_lists(error)
            else:
                yield TENSORS_KEY, lists
        if self.tokens is not None and (tokens := self.tokens.facts()) is not None:
            yield TOKENS_KEY, json.dumps(tokens)
        if self.batch is not None and (batch := self.batch.facts()) is not None:
            yield BATCH_KEY, json.dumps(batch)

    def after_window(self) -> None:
        """Stop to time hooks, also after a window without notes."""
        if self.hook_times is not None:
            self.hook_times.timing = False

    def _give_up_lists(self, error: Exception) -> None:
        """Leave the lists out: parameters may be of any class, and the rest of the recording does not need them."""
        self.tensors = None
        self.errors.report("recordings do not list parameters, gradients and optimizer state", error)
