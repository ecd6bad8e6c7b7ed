"""`PerfTrainerCallback`, which measures a ``transformers.Trainer``."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from lightning_perf.callbacks.recording.recording_plan import CaptureOptions, Recording, check_choice
from lightning_perf.callbacks.report import ReportLength
from lightning_perf.callbacks.steps.fit_state import Signal
from lightning_perf.lazy_imports import import_extra
from lightning_perf.loop.hooks import FetchHooks
from lightning_perf.loop.perf_loop import PerfLoop
from lightning_perf.objects import attribute

if TYPE_CHECKING:
    TrainerCallback = object
else:
    try:
        from transformers import TrainerCallback
    except ImportError:
        TrainerCallback = object  # the constructor then says what to install


def _event(told: Callable[[_EventLoop, Any, dict[str, Any]], None]) -> Callable[..., None]:
    """Return a hook that tells the loop of an event, unless no training is measured."""

    def hook(callback: PerfTrainerCallback, _args: Any, state: Any, _control: Any, **more: Any) -> None:
        if callback._loop is not None:
            told(callback._loop, state, more)

    return hook


class PerfTrainerCallback(TrainerCallback):
    """Finds out where the step time of a ``transformers.Trainer`` goes, as `PerfCallback` does for Lightning's.

    It leaves the same files, so ``analyze``, ``diff``, ``compare``, ``study`` and ``top`` work with them. An error in
    here causes one warning. Training continues, with the same results as without the callback. The precision stays that
    of your `TrainingArguments`.

    Args:
        dirpath: Folder for the files. Default: ``perf`` in the Trainer's ``output_dir``.
        skip_first: Steps to skip at the start. Default: 10, or fewer in a short training.
        wait: Steps to skip at the start of each cycle. Default: 0.
        warmup: Steps in each cycle in which the profiler runs but keeps nothing. Default: 3, or fewer in a short
            training.
        active: Steps recorded in each cycle.
        repeat: Number of cycles; 0 to repeat until the training ends.
        capture_slow_steps: Record more steps when steps become slow, or on demand.
        max_overhead: The most that the profiler may cost: a fraction of the training's time or a `datetime.timedelta`.
        hang_after: Seconds without the end of a step or a batch after which a warning says where each rank is, and its
            Python stacks go to ``hang.rank0.txt``. The training is left alone. None for no such watch.
        report: How much to print at the end: ``short``, ``full`` or ``none``.

    Raises:
        MissingExtraError: transformers is not installed.
        TypeError: An option has the wrong type.
        ValueError: An option has an unknown value.

    Example:
        >>> trainer = transformers.Trainer(model, arguments, callbacks=[PerfTrainerCallback()])  # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        dirpath: str | os.PathLike[str] | None = None,
        skip_first: int | None = None,
        wait: int | None = None,
        warmup: int | None = None,
        active: int = Recording.active,
        repeat: int = Recording.repeat,
        capture_slow_steps: CaptureOptions | bool = False,
        max_overhead: float | timedelta | None = None,
        hang_after: float | None = None,
        report: ReportLength = "short",
    ) -> None:
        import_extra("transformers", "transformers")
        self._dirpath = dirpath
        check_choice("report", report, get_args(ReportLength))
        self._recording = Recording.given(locals())
        self._report: ReportLength = report
        self._loop: _EventLoop | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Start to observe the training."""
        self._end()  # an earlier training failed
        dirpath = self._dirpath if self._dirpath is not None else os.path.join(args.output_dir, "perf")  # noqa: PTH118
        remaining = max(int(state.max_steps) - int(state.global_step), 1)
        self._loop = loop = _EventLoop(
            kwargs.get("model"),
            kwargs.get("optimizer"),
            dirpath=dirpath,
            total_steps=remaining,
            report=self._report,
            **vars(self._recording),
        )
        loop.__enter__()
        loop.begin(kwargs.get("train_dataloader"), int(args.gradient_accumulation_steps), int(state.global_step))

    on_epoch_begin = _event(lambda loop, *_: loop.epoch_starts())
    on_step_begin = _event(lambda loop, *_: loop.step_starts())
    on_substep_end = _event(lambda loop, *_: loop.forward_starts())
    on_step_end = _event(lambda loop, state, _: loop.step_ends(int(state.global_step)))
    on_epoch_end = _event(lambda loop, *_: loop.epoch_ends())
    on_evaluate = _event(lambda loop, _, more: loop.log(more.get("metrics") or {}))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Save all files, analyze the recorded steps, and print the report."""
        self._end()

    def _end(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.end()


class _EventLoop(PerfLoop):
    """A loop that follows the events of a Trainer, and the fetches of its loader."""

    def begin(self, loader: Any, accumulate: int, global_step: int) -> None:
        # Of accelerate's loaders, the facts and the batches are those of torch's loader inside.
        self._start(attribute(loader, "base_dataloader") or loader, accumulate)
        self._loop.global_step = global_step
        self._group = accumulate
        self._fetched: deque[Any] = deque()
        self._fetches: FetchHooks | None = None
        dataset = getattr(loader, "dataset", None)
        if self._fit is not None and dataset is not None:
            self._fetches = FetchHooks(
                dataset,
                partial(self._observers.on_action_start, Signal.FETCH),
                self._fetch_ends,
                self._other_fetch_starts,
            )

    def _other_fetch_starts(self) -> None:
        """Pause: another loader fetches, for an evaluation."""
        self._loop.other_batches += 1
        self._observers.on_action_start(Signal.VALIDATION)

    def end(self) -> None:
        if self._fetches is not None:
            self._fetches.remove()
        self.__exit__(None, None, None)

    def epoch_starts(self) -> None:
        self._complete_epoch()

    def epoch_ends(self) -> None:
        self._epoch_ended = True

    def step_starts(self) -> None:
        # The loader may be a batch ahead of the training.
        batches = [self._fetched.popleft() for _ in range(min(self._group, len(self._fetched)))]
        for batch in batches or [None]:
            self._observers.on_batch_start(batch, 0)
        self._observers.on_action_start(Signal.FORWARD)

    def forward_starts(self) -> None:
        self._observers.on_action_end(Signal.FORWARD)
        self._observers.on_action_start(Signal.FORWARD)

    def step_ends(self, global_step: int) -> None:
        self._observers.on_action_end(Signal.FORWARD)
        self._loop.global_step = global_step
        self._end_step(automatic=True)

    def _fetch_ends(self, batch: Any) -> None:
        self._observers.on_action_end(Signal.FETCH)
        if batch is None:  # the epoch is over
            if not self._fetched:
                self._observers.on_action_end(Signal.EPOCH)
            return
        self._record.on_batch_start(batch, 0)
        self._fetched.append(batch)
