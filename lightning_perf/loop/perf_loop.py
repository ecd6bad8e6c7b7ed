"""`PerfLoop`, which measures a training loop without a Trainer."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar, get_args

import torch

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.fit import Fit
from lightning_perf.callbacks.out_of_memory import report_out_of_memory
from lightning_perf.callbacks.recording.recording_plan import CaptureOptions, Recording, check_choice
from lightning_perf.callbacks.recording.schedule import check_number
from lightning_perf.callbacks.report import ReportLength, report_fit
from lightning_perf.callbacks.run_record.fit_record import LoopRecord
from lightning_perf.callbacks.run_record.run_facts import dataset_facts, loop_facts, model_facts
from lightning_perf.callbacks.run_record.run_folder import RankFiles, claim_folder
from lightning_perf.callbacks.steps.fit_state import FitContext, Signal
from lightning_perf.callbacks.steps.observers import Observers
from lightning_perf.loop.hooks import CallHooks
from lightning_perf.loop.plain_loop import PlainLoop, model_device
from lightning_perf.run_files.launch import OwnMeasurement, leave_note
from lightning_perf.run_files.run_record import study_folder

Batch = TypeVar("Batch")


class PerfLoop:
    """Finds out where the step time of your own training loop goes. It needs no Trainer and no Lightning.

    Use it for a loop in plain PyTorch, with Fabric or with Accelerate. Like `PerfCallback`, it times every step,
    profiles a few, and reports at the end. It leaves the same files, so ``analyze``, ``diff``, ``compare`` and
    ``study`` work with them. Your precision stays unchanged. An error in here causes one warning. Training
    continues, with the same results as without it.

    Iterate over your loader with `steps`. In a loop without a loader, call `step` at the end of each step. With several
    ranks, connect them first (``init_process_group`` or ``fabric.launch``), and enter the loop on each of them.

    Args:
        model: The model, for the run record: its size and a hash of its initial weights. Its device is the one that is
            measured.
        optimizer: The optimizer, or a sequence of optimizers, for the run record.
        total_steps: The optimizer steps that you expect. If they are few, the schedule is shortened for them. Default:
            those of the first pass through the loader.
        skip_first: Steps to skip at the start. Default: 10, or fewer in a short training.
        wait: Steps to skip at the start of each cycle. Default: 0.
        warmup: Steps in each cycle in which the profiler runs but keeps nothing. Default: 3, or fewer in a short
            training.
        active: Steps recorded in each cycle.
        repeat: Number of cycles, each with its own trace file; 0 to repeat until the training ends.
        record_shapes: Record shapes and types of operator inputs.
        profile_memory: Record allocations. The report then shows the memory at its peak by category and operator, and
            the memory that larger batches need.
        with_stack: Record the Python code that called each operator; slows down the recorded steps. Under Python 3.12
            and later, torch before 2.12 can crash in that while other threads run. There it is left out.
        with_flops: Record the floating-point operations of matrix products and convolutions, by formula.
        capture_slow_steps: Record more steps when steps become slow, or on demand: True for the defaults, or a
            `CaptureOptions`.
        max_overhead: The most that the profiler may cost: a fraction of the training's time (0.02) or a
            `datetime.timedelta`. None for no limit.
        ranks: Ranks that record; None for all. Rank 0 reports in any case.
        hang_after: Seconds without the end of a step or a batch after which a warning says where each rank is, and its
            Python stacks go to ``hang.rank0.txt``. The training is left alone. None for no such watch.
        dirpath: Folder for traces, step times, ``run.jsonl`` and ``report.json``; with the suffix ``_1``, ``_2``, … if
            it is not empty.
        fingerprint: ``full`` hashes the initial weights and the data sets for the run record. ``light`` skips these
            hashes. Then ``compare`` cannot tell whether two runs had the same data and weights.
        report: How much to print at the end: ``short``, ``full`` or ``none``.

    Raises:
        TypeError: A number of steps is not an integer, or an option has the wrong type.
        ValueError: A number of steps or a rank is negative, `active` is 0, `max_overhead` is not between 0 and 1, or an
            option has an unknown value.

    Example:
        >>> with PerfLoop(model, optimizer) as perf:  # doctest: +SKIP
        ...     for inputs, labels in perf.steps(loader):
        ...         loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        ...         loss.backward()
        ...         optimizer.step()
        ...         optimizer.zero_grad()
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: Any = None,
        *,
        total_steps: int | None = None,
        skip_first: int | None = None,
        wait: int | None = None,
        warmup: int | None = None,
        active: int = Recording.active,
        repeat: int = Recording.repeat,
        record_shapes: bool = True,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        capture_slow_steps: CaptureOptions | bool = False,
        max_overhead: float | timedelta | None = None,
        ranks: Sequence[int] | None = None,
        hang_after: float | None = None,
        dirpath: str | os.PathLike[str] = "perf",
        fingerprint: Literal["full", "light"] = "full",
        report: ReportLength = "short",
    ) -> None:
        if model is not None and not isinstance(model, torch.nn.Module):
            raise TypeError(f"PerfLoop(model=…) takes a torch.nn.Module, not {type(model).__name__}")
        self._recording = Recording.given(locals())
        if total_steps is not None:
            check_number("total_steps", total_steps, least=1)
        check_choice("report", report, get_args(ReportLength))
        check_choice("fingerprint", fingerprint, ("full", "light"))
        self._report: ReportLength = report
        self._hashed = fingerprint == "full"
        self._dirpath = os.fspath(dirpath)
        self._model = model
        several = isinstance(optimizer, (list, tuple))
        self._optimizers = list(optimizer) if several else [optimizer] if optimizer is not None else []
        self._total_steps = total_steps
        self._entered = False
        self._reset()

    def _reset(self) -> None:
        self._errors = errors = ErrorReporter("PerfLoop")
        self._observers = Observers(errors)
        self._loop = PlainLoop(self._model, self._optimizers)
        self._folder: Path | None = None
        self._context = FitContext(self._loop, None, errors)
        self._record = LoopRecord(self._context)
        self._rank_files = RankFiles(None, rank=0, world_size=1, errors=errors)
        self._fit: Fit | None = None
        self._hooks: list[CallHooks] = []
        self._started = False
        self._entered_ns = 0
        self._in_batch = False
        self._iterating = False
        self._accumulate: int | None = None
        self._batches = 0
        self._stepped = False
        self._epoch = 0
        self._epoch_ended = False
        self._metrics: dict[str, object] = {}

    @property
    def folder(self) -> Path | None:
        """The folder with the files of this run; None before you enter the loop, or if it could not be made."""
        return self._folder

    def __enter__(self) -> PerfLoop:
        """Make the folder, and take the fingerprint of the model."""
        if self._entered:
            raise RuntimeError("this PerfLoop is open already: leave its 'with' block first, or make another PerfLoop")
        self._reset()
        self._entered = True
        with self._errors.instead("this loop is not measured"):
            self._claim()
        self._entered_ns = time.perf_counter_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Save all files, analyze the recorded steps, and print the report. An error of the training passes on."""
        self._entered = False
        loop, steps = self._loop, self._fit.whole_steps if self._fit is not None else None
        if error is not None:
            report_out_of_memory(error, loop.tensor_source, self._errors, show=self._report, rank=loop.rank, step=steps)
        for hooks in self._hooks:
            hooks.remove()
        self._observers.finish(may_wait=error is None or loop.world_size == 1 or loop.device.type == "cpu")
        self._epoch_ended |= bool(self._metrics)
        self._complete_epoch()
        self._record.ends(error)
        self._rank_files.ends()
        fit, self._fit = self._fit, None
        if fit is not None and loop.rank == 0:
            report_fit(fit, self._rank_files, None, error=error, show=self._report)

    def steps(self, loader: Iterable[Batch], *, accumulate: int | None = None) -> Generator[Batch, None, None]:
        """Iterate over a loader, and measure the steps of the loop.

        A step starts with the fetch of its first batch. It is whole when your optimizer has stepped and the body of the
        loop has ended. So it has all batches of an accumulation. Call it once per epoch.

        Args:
            loader: Your loader, or any other iterable.
            accumulate: Batches per optimizer step. You need it only if your optimizer is not derived from
                `torch.optim.Optimizer`: the steps of other optimizers cannot be seen.

        Returns:
            An iterator over the same batches. One iterator is measured at a time: to start another one earlier, call
            its method ``close`` first.

        Raises:
            RuntimeError: You have not entered the loop.
            TypeError: `accumulate` is not an integer.
            ValueError: `accumulate` is less than 1.
        """
        self._check_entered("steps")
        if accumulate is not None:
            check_number("accumulate", accumulate, least=1)
        return self._follow(loader, accumulate)

    def step(self) -> None:
        """Mark the end of a step, in a loop that does not iterate over `steps`.

        Call it once per optimizer step, as the last line of the body. The first step starts where you enter the loop.
        Within `steps`, it says that the optimizer has stepped, in case your optimizer is not derived from
        `torch.optim.Optimizer`.

        Raises:
            RuntimeError: You have not entered the loop.
        """
        self._check_entered("step")
        if self._iterating:
            self._stepped = True
            return
        if not self._started:
            first_ns = time.perf_counter_ns() - self._entered_ns
            self._start(None, None)
            if self._fit is not None:
                self._fit.add_step(first_ns)
            self._record.first_batch_ended()
        else:
            self._loop.global_step += 1
            self._end_step(automatic=True)
        self._observers.on_batch_start(None, 0)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Leave the work inside out of all steps, e.g. a validation between two steps.

        Use it at the end of the loop's body. The step ends where the pause starts.

        Example:
            >>> with perf.pause():  # doctest: +SKIP
            ...     validate(model)
        """
        self._check_entered("pause")
        between = self._started and not self._iterating
        if between:
            self._end_step(automatic=True)
        self._end_batch()
        self._observers.on_action_start(Signal.VALIDATION)
        yield
        if between:
            self._observers.on_batch_start(None, 0)

    def log(self, metrics: Mapping[str, object]) -> None:
        """Record metrics of the epoch that has just ended, for ``lightning-perf compare``.

        Args:
            metrics: Numbers by name, e.g. ``{"val_acc": 0.9}``. Tensors with one element are numbers, too.

        Raises:
            RuntimeError: You have not entered the loop.
        """
        self._check_entered("log")
        self._metrics.update(metrics)

    def _check_entered(self, method: str) -> None:
        if not self._entered:
            raise RuntimeError(f"PerfLoop.{method}() was called outside of the loop: use 'with PerfLoop(…) as perf:'")

    def _claim(self) -> None:
        loop = self._loop
        loop.find_place()
        # A collective call: every rank makes it. Without a connection, only rank 0 knows the folder.
        alone = loop.world_size > 1 and not loop.connected
        if loop.rank == 0 or not alone:
            path = study_folder() or self._dirpath
            self._folder = self._errors.folder = claim_folder(path, loop.rank, loop.broadcast, self._errors)
        if loop.rank == 0:
            leave_note(OwnMeasurement("PerfLoop"))
            if alone:
                self._errors.messages.append(
                    "Only rank 0 is measured: call torch.distributed.init_process_group, or fabric.launch, before the "
                    "'with' block of PerfLoop."
                )
        self._context = FitContext(loop, self._folder, self._errors)
        self._record = LoopRecord(self._context)
        if (model := self._model) is not None:
            self._record.add_facts({"the model": lambda: model_facts(model, hashed=self._hashed)})

    def _start(self, loader: Any, accumulate: int | None) -> None:
        """Start to observe, at the first step."""
        self._started = True
        with self._errors.instead("this loop is not profiled"):
            self._observe(loader, accumulate)
        self._record.training_begins()

    def _observe(self, loader: Any, accumulate: int | None) -> None:
        loop = self._loop
        loop.device = model_device(self._model)  # it may have moved
        loop.loader = loader
        loop.expected_steps = self._total_steps
        if self._total_steps is None:
            with suppress(Exception):  # a loader without a length may raise any exception
                loop.expected_steps = max(len(loader) // (accumulate or 1), 1)
        world_size = loop.world_size
        self._record.add_facts(
            {
                "the training": lambda: loop_facts(
                    loader, self._optimizers, world_size=world_size, accumulate=accumulate
                ),
                "the data": lambda: {} if loader is None else dataset_facts("data.", loader, hashed=self._hashed),
            }
        )
        connected = loop.world_size if loop.connected else 1
        self._rank_files = RankFiles(self._folder, rank=loop.rank, world_size=connected, errors=self._errors)
        self._fit = Fit(self._context, self._recording, self._observers)
        self._hooks.append(CallHooks(self._observers))

    def _follow(self, loader: Iterable[Batch], accumulate: int | None) -> Generator[Batch, None, None]:
        if self._iterating:
            self._errors.report(
                "only one loader at a time is measured", RuntimeError("steps() was called inside of steps()")
            )
            yield from loader
            return
        if not self._started:
            self._start(loader, accumulate)
        self._accumulate = accumulate
        self._complete_epoch()
        self._iterating = True
        self._loop.iterator = iterator = iter(loader)
        observers = self._observers
        try:
            while True:
                observers.on_action_start(Signal.FETCH)
                try:
                    batch = next(iterator)
                except StopIteration:
                    break
                finally:
                    observers.on_action_end(Signal.FETCH)
                self._start_batch(batch)
                yield batch
                self._end_batch()
        finally:
            self._end_batch()
            observers.on_action_end(Signal.EPOCH)
            self._loop.iterator = None  # otherwise its workers would stay
            self._iterating = False
            self._epoch_ended = True

    def _start_batch(self, batch: Any) -> None:
        self._in_batch = True
        self._record.on_batch_start(batch, 0)
        self._observers.on_batch_start(batch, 0)
        self._observers.on_action_start(Signal.FORWARD)

    def _end_batch(self) -> None:
        if not self._in_batch or self._fit is None:
            return
        self._in_batch = False
        self._batches += 1
        self._observers.on_action_end(Signal.FORWARD)
        # The last group of an epoch may be shorter.
        stepped = self._fit.tracker.optimizer_stepped
        if self._accumulate is not None and (self._batches >= self._accumulate or stepped):
            self._stepped = True
        if self._stepped:
            self._stepped = False
            self._batches = 0
            self._loop.global_step += 1
        self._end_step(automatic=self._accumulate is not None)

    def _end_step(self, *, automatic: bool) -> None:
        """End a batch, and with it perhaps the step."""
        self._loop.automatic = automatic
        self._observers.on_batch_end(None)

    def _complete_epoch(self) -> None:
        """Record the epoch that has ended, if one has, with the metrics that were logged since."""
        if not self._epoch_ended:
            return
        self._epoch_ended = False
        metrics, self._metrics = self._metrics, {}
        self._record.epoch(self._epoch, self._fit.whole_steps if self._fit is not None else 0, metrics)
        self._epoch += 1
