"""Follows a fit from the first call that a callback sees to the last, and keeps its account."""

from __future__ import annotations

import functools
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch.utils.data import DataLoader

from lightning_perf.callbacks.account.time_stack import TimeStack
from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.lightning_compat import Trainer
from lightning_perf.callbacks.steps.fit_state import Signal
from lightning_perf.callbacks.steps.lightning_hooks import ActionPlan, ProfilerHooks
from lightning_perf.callbacks.wrapped_methods import WrappedMethods
from lightning_perf.machine.processor import process_age_ns
from lightning_perf.run_files.fit.account import (
    MAX_STARTS,
    VERSION,
    AccountFacts,
    FitAccount,
    Group,
    LoaderStart,
    write_account,
)

OWN_CALLBACKS = ("PerfCallback", "PrecisionCallback")

LOGGER_METHODS = ("log_metrics", "log_hyperparams", "log_graph", "save", "finalize", "after_save_checkpoint")
"""Methods of a logger that the Trainer calls."""

FETCH, TRANSFER, FORWARD, BACKWARD, OPTIMIZER, VALIDATION_FETCH, VALIDATION_COMPUTE = range(7)

STEP_PHASES = ("fetch", "transfer", "forward", "backward", "optimizer")

_SIGNALS = {
    Signal.TRANSFER: TRANSFER,
    Signal.FORWARD: FORWARD,
    Signal.AUTOMATIC_STEP: OPTIMIZER,
    Signal.MANUAL_STEP: OPTIMIZER,
}

_CALLBACK = re.compile(r"^\[Callback\](?P<key>.*)\.(?P<hook>\w+)$", re.DOTALL)

_DATA_HOOKS = re.compile(
    r"^\[Lightning(?:Module|DataModule)\].*\.(?P<hook>prepare_data|train_dataloader|val_dataloader)$"
    r"|^\[LightningDataModule\].*\.(?P<module>setup)$"
)

_fits_of_process = 0

Method = TypeVar("Method", bound=Callable[..., None])


def _guarded(method: Method) -> Method:
    """Let an error of a method end the account. From then on, the method does nothing."""

    @functools.wraps(method)
    def guarded(account: FitAccountant, *arguments: Any) -> None:
        if not account._failed:
            try:
                method(account, *arguments)
            except Exception as error:
                account._fail(error)

    return guarded  # type: ignore[return-value]


class FitAccountant:
    """Divides the time of a fit among entries, from the Trainer's calls of its profiler and our own hooks.

    The Trainer calls its profiler around every hook and most of its own actions. Each such action is pushed on a stack.
    Time outside of all actions belongs to the stack's base, the part of the fit that is active. The parts are set-up,
    sanity check, first step, training steps, epoch boundaries, validation, and tear-down.

    An error in here ends the account, and the training continues.
    """

    def __init__(self, trainer: Trainer, *, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        global _fits_of_process
        self.stack = stack = TimeStack("set-up", "Trainer and strategy", now_ns)
        stack.enter(stack.entry("own cost", "hooks"))
        self._before_ns = process_age_ns() if not _fits_of_process else None
        _fits_of_process += 1
        self.errors = ErrorReporter()
        self.folder: Path | None = None
        """Where the account goes; None before training has started."""
        self.complete_report: Callable[[FitAccount], None] = lambda _: None
        """Called with the account of the whole fit when `Trainer.fit` ends."""
        self.totals: dict[str, Any] = {}
        """Fields of `FitAccount` that only the observers of steps know."""
        self._trainer = trainer
        self._failed = False
        self.closed = False
        self._training = False
        self._validating = False
        self._first = True
        self._watches_fetch = True
        self._epochs = self._validations = 0
        self._first_step_end_ns: int | None = None
        self._compile_ns: int | None = None
        self._compiled_before_ns = compile_ns()
        self._global_step = int(trainer.global_step)
        self._starts: list[LoaderStart] = []
        self._base_before: int | None = None
        self._start: _Start | None = None

        entry = stack.entry
        self._boundary = entry("epoch boundaries", "")
        self._validation = entry("validation", "metrics and loop")
        self._windows = entry("own cost", "step timer and profiler windows")
        self._bases = {group: entry(group, "loop") for group in ("first step", "training steps")}
        self._step_phases = {
            group: [*(entry(group, name) for name in STEP_PHASES), -1, -1] for group in ("first step", "training steps")
        }
        transfer, fetch, compute = (entry("validation", name) for name in ("transfer", "fetch", "compute"))
        # In a step, or before the first one after epochs and validations.
        self._flags = [entry("training steps", "stop flag"), entry("epoch boundaries", "stop flag")]
        self._phases_ns: tuple[int, int] | None = None
        self._validation_phases = [-1, transfer, -1, -1, -1, fetch, compute]
        self._no_phases = [-1] * 7
        stack.phases = self._no_phases

        self._wrapped = WrappedMethods()
        self._signal_plans = {
            Signal.FETCH: ActionPlan(
                self._fetch_announced, functools.partial(self._own_work_becomes, FETCH), stopped=self._fetch_stopped
            ),
            Signal.EPOCH: ActionPlan(
                self._epoch_starts,
                stopping=functools.partial(stack.enter, self._windows),
                stopped=self._epoch_stopped,
            ),
            Signal.CHECKPOINT: self._entry_plan(entry("checkpoints", "gather")),
            **{signal: self._phase_plan(phase) for signal, phase in _SIGNALS.items()},
        }
        self.hooks = ProfilerHooks(trainer.profiler, self.plan)
        """Whoever else listens to the Trainer's profiler uses these: two layers of hooks would cost twice."""
        self._wrapped.wrap(trainer.profiler, "describe", self._describing)
        self._wrap(trainer.strategy, "save_checkpoint", functools.partial(entry, "checkpoints", "write"))
        for logger in trainer.loggers:
            for name in LOGGER_METHODS:
                self._wrap(logger, name, functools.partial(entry, "logging", f"{type(logger).__name__}.{name}"))
        if trainer.world_size > 1:
            # Where Lightning tells every rank before each batch whether rank 0 has to stop (2.5.6 and later).
            loop = getattr(getattr(trainer, "fit_loop", None), "epoch_loop", None)
            self._wrap(loop, "_broadcast_sigterm_tensor", lambda: self._flags[self._watches_fetch])
        # The Trainer announces no start of worker processes.
        self._wrapped.wrap(DataLoader, "__iter__", self._iterating)
        stack.leave()

    @property
    def began_ns(self) -> int:
        """Start of the account on the clock `time.time_ns`, by which torch dates its compilations."""
        return time.time_ns() - (time.perf_counter_ns() - self.stack.start_ns)

    # The parts of a fit. The callback's own hooks and some actions of the Trainer mark their limits.

    @_guarded
    def sanity_check(self, runs: bool) -> None:
        """The sanity check starts, or has ended, and the training set is loaded next."""
        group: tuple[Group, str] = ("sanity check", "") if runs else ("set-up", "Trainer and strategy")
        self._set_base(self.stack.entry(*group))

    @_guarded
    def training_starts(self) -> None:
        """Training starts (`on_train_start`)."""
        self._training = True
        self._compiled_before_ns = compile_ns()  # without compilations of the sanity check
        self._set_base(self._boundary)

    @_guarded
    def training_ends(self) -> None:
        """Training has ended (`on_train_end`)."""
        self._end_of_first_step(always=True)
        self._training = self._validating = False
        self._set_base(self.stack.entry("tear-down", ""))
        self.stack.phases = self._no_phases

    def mark_steps(self, steps: int) -> None:
        """Keep the time of the first steps apart."""
        if self.stack.is_own_thread:
            self.stack.mark(steps)

    def step_phases_ns(self) -> tuple[int | None, int | None]:
        """Return the time since the last call of transfer, forward and optimizer, and of phases that wait for ranks.

        They are unknown in the first step, which has entries of its own.
        """
        if self._failed:
            return None, None
        times_ns, numbers, before = self.stack.times_ns, self._step_phases["training steps"], self._phases_ns
        compute_ns = times_ns[numbers[TRANSFER]] + times_ns[numbers[FORWARD]] + times_ns[numbers[OPTIMIZER]]
        wait_ns = times_ns[numbers[BACKWARD]] + times_ns[self._flags[0]]
        self._phases_ns = compute_ns, wait_ns
        return (None, None) if before is None else (compute_ns - before[0], wait_ns - before[1])

    def save(self, end: Literal["returned", "report", "exception"]) -> None:
        """Save the account until now."""
        account = self.snapshot(end)
        if account is not None and self.folder is not None:
            with self.errors.instead("the account of the fit is not saved"):
                write_account(self.folder, account)

    def snapshot(self, end: Literal["returned", "report", "exception"]) -> FitAccount | None:
        """Return the account until now; None if it has failed."""
        if self._failed:
            return None
        self._end_of_first_step(always=True)
        wall_ns = self.stack.close()
        phases = (self._step_phases["first step"][FORWARD], self._step_phases["training steps"][FORWARD])
        steps = max(0, self.totals.get("steps", int(self._trainer.global_step) - self._global_step))
        return FitAccount(
            version=VERSION,
            rank=int(self._trainer.global_rank),
            wall_ns=wall_ns,
            end=end,
            before_ns=self._before_ns,
            first_step_end_ns=self._first_step_end_ns,
            compile_ns=self._compile_ns,
            batches=sum(self.stack.counts[number] for number in phases),
            epochs=self._epochs,
            validations=self._validations,
            entries=self.stack.entries(steps),
            starts=tuple(self._starts),
            facts=self._facts(),
            **{"samples": None, **self.totals, "steps": steps},
        )

    def close(self) -> None:
        """Give the Trainer and its parts their own methods back. Does nothing the second time."""
        if self.closed:
            return
        self.closed = True
        self.hooks.remove()
        self._wrapped.restore()

    # Actions of the Trainer.

    def plan(self, action: str, signal: Signal | None) -> ActionPlan:
        """Return the functions to call around an action of the Trainer: none for one that belongs to others."""
        try:
            return self._plan(action, signal)
        except Exception as error:
            self._fail(error)
            return ActionPlan()

    def _plan(self, action: str, signal: Signal | None) -> ActionPlan:
        stack = self.stack
        data = _DATA_HOOKS.match(action)
        if signal is Signal.VALIDATION:
            announced = self._validation_announced
            if action.endswith(".val_next"):
                started = functools.partial(self._own_work_becomes, VALIDATION_FETCH)
                return ActionPlan(announced, started, stopped=self._fetch_stopped)
            if data is None:
                return ActionPlan(announced, stack.leave)
            number = stack.entry("data preparation", data["hook"])
            return ActionPlan(announced, functools.partial(stack.replace, number), stopped=stack.leave)
        if signal is not None:
            return self._signal_plans.get(signal, ActionPlan())
        if action.startswith("[Strategy]"):
            phases = {"backward": BACKWARD, "validation_step": VALIDATION_COMPUTE}
            phase = phases.get(action.rpartition(".")[2])
            return ActionPlan() if phase is None else self._phase_plan(phase)
        if data is not None:
            return self._entry_plan(stack.entry("data preparation", data["hook"] or data["module"]))
        callback = _CALLBACK.match(action)
        return ActionPlan() if callback is None else self._callback_plan(callback["key"], callback["hook"])

    def _entry_plan(self, number: int) -> ActionPlan:
        return ActionPlan(started=functools.partial(self.stack.enter, number), stopped=self.stack.leave)

    def _phase_plan(self, phase: int) -> ActionPlan:
        return ActionPlan(started=functools.partial(self.stack.enter_phase, phase), stopped=self.stack.leave)

    def _callback_plan(self, key: str, hook: str) -> ActionPlan:
        callback = next((each for each in self._trainer.callbacks if each.state_key == key), None)
        name = type(callback).__name__ if callback is not None else key.partition("{")[0]
        if callback is not None and not _overrides(callback, hook):
            return ActionPlan()
        owners = [base.__name__ for base in type(callback).__mro__] if callback is not None else [name]
        if any(owner in OWN_CALLBACKS for owner in owners):
            part = {"on_train_start": "run record", "on_fit_end": "report", "on_exception": "report"}.get(hook, "hooks")
            return self._entry_plan(self.stack.entry("own cost", part))
        return self._entry_plan(self.stack.entry("callbacks", f"{name}.{hook}"))

    # A fetch begins with our own work for the step before and the next one: windows open and close there.

    def _fetch_announced(self) -> None:
        if self.stack.is_own_thread:
            if self._watches_fetch:
                self._before_fetch()
            self.stack.enter(self._windows)

    @_guarded
    def _before_fetch(self) -> None:
        if not self._training:
            return
        self._end_of_first_step()
        self._validating = False
        group: Group = "first step" if self._first else "training steps"
        self._set_base(self._bases[group])
        self.stack.phases = self._step_phases[group]
        self._watches_fetch = self._first

    def _own_work_becomes(self, phase: int) -> None:
        """End our own work, and start a fetch with the same reading of the clock."""
        stack = self.stack
        if stack.is_own_thread:
            number = stack.phases[phase]
            start = self._start
            if start is not None and start.stage == ("validation" if phase == VALIDATION_FETCH else "training"):
                number = stack.entry("worker start-up", f"{start.stage}: first batch")
                start.fetch_since_ns = stack.charge()
            stack.replace(number)

    def _fetch_stopped(self) -> None:
        self.stack.leave()
        if self._start is not None and self.stack.is_own_thread:
            self._note_first_batch()

    @_guarded
    def _note_first_batch(self) -> None:
        start = self._start
        if start is None or start.fetch_since_ns is None:
            return
        self._start = None
        if len(self._starts) < MAX_STARTS:
            facts = (start.stage, start.epoch, start.workers, start.persistent, start.start_ns or 0)
            self._starts.append(LoaderStart(*facts, self.stack.charge() - start.fetch_since_ns))

    def _validation_announced(self) -> None:
        if self.stack.is_own_thread:
            self._before_validation()
            self.stack.enter(self._windows)

    @_guarded
    def _before_validation(self) -> None:
        if self._base_before is not None:
            self._set_base(self._base_before)
        if self._training and not self._validating:
            self._end_of_first_step()
            self._validating = self._watches_fetch = True
            self._validations += 1
            self._set_base(self._validation)
            self.stack.phases = self._validation_phases

    @_guarded
    def _epoch_starts(self) -> None:
        if self._training and self.stack.is_own_thread:
            self._epochs += 1
            self._set_base(self._boundary, collapse=True)

    @_guarded
    def _epoch_stopped(self) -> None:
        self.stack.leave()
        if self._training and self.stack.is_own_thread:
            self._end_of_first_step(always=self._trainer.global_step != self._global_step)
            self._validating, self._watches_fetch = False, True
            self._set_base(self._boundary)
            self.stack.phases = self._no_phases

    def _end_of_first_step(self, *, always: bool = False) -> None:
        """Note the end of the first step if an optimizer has stepped, or would have without accumulation."""
        if not self._first or not self._training:
            return
        trainer = self._trainer
        batches = self.stack.counts[self._step_phases["first step"][FORWARD]]
        if not batches:
            return
        automatic = bool(trainer.lightning_module.automatic_optimization)
        wanted = int(trainer.accumulate_grad_batches) if automatic else 1
        if always or trainer.global_step != self._global_step or batches >= wanted:
            self._first = False
            self._first_step_end_ns = self.stack.charge() - self.stack.start_ns
            compiled_ns = compile_ns() - self._compiled_before_ns
            self._compile_ns = compiled_ns if compiled_ns > 0 else None

    # Worker processes.

    def _iterating(self, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Account for the start of the workers of a data loader.

        The time until the loop continues counts as well: the workers of the last iterator are stopped in it.
        """

        def __iter__(loader: Any) -> Any:  # noqa: N807
            if loader.num_workers and not self.closed and self.stack.is_own_thread:
                self._before_start(loader)
            return make(loader)

        return __iter__

    @_guarded
    def _before_start(self, loader: Any) -> None:
        # Only the loop itself starts workers of the fit, not the program in one of its hooks.
        if self.stack.depth or self._trainer.state.fn != "fit":
            return
        stage: Literal["training", "validation"] = "training" if self._trainer.training else "validation"
        if stage == "validation" and self._training:
            self._before_validation()
        if self._base_before is None:
            self._base_before = self.stack.base
        entry = self.stack.entry("worker start-up", stage)
        self.stack.set_base(entry)
        self.stack.counts[entry] += 1
        self._start = _Start(
            stage,
            int(self._trainer.current_epoch),
            int(loader.num_workers),
            bool(loader.persistent_workers),
            self.stack.times_ns[entry],
        )

    # Helpers.

    def _set_base(self, number: int, *, collapse: bool = False) -> None:
        self._base_before = None
        self.stack.set_base(number, collapse=collapse)
        start = self._start
        if start is not None and start.start_ns is None:
            start.start_ns = self.stack.times_ns[self.stack.entry("worker start-up", start.stage)] - start.before_ns

    def _wrap(self, owner: Any, name: str, number: Callable[[], int]) -> None:
        """Time a method as an entry."""
        self._wrapped.wrap(owner, name, functools.partial(self._timed, number))

    def _timed(self, number: Callable[[], int], method: Callable[..., Any]) -> Callable[..., Any]:
        stack = self.stack

        def timed(*args: Any, **kwargs: Any) -> Any:
            stack.enter(number())
            try:
                return method(*args, **kwargs)
            finally:
                stack.leave()

        return timed

    def _describing(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def describe(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            if not self.closed:  # describing the profile is the last thing that `Trainer.fit` does
                self.stack.enter(self.stack.entry("own cost", "report"))
                try:
                    self._complete()
                except Exception as error:
                    self._fail(error)
            return result

        return describe

    def _complete(self) -> None:
        """Save the account of the whole fit, in place of the one until the report."""
        self.close()
        account = self.snapshot("returned")
        if account is not None:
            self.complete_report(account)
        self.save("returned")  # last, so that it includes the time to write the report again

    def _facts(self) -> AccountFacts:
        trainer = self._trainer
        interval = getattr(trainer, "val_check_interval", None)
        every = getattr(trainer, "check_val_every_n_epoch", None)
        return AccountFacts(
            check_val_every_n_epoch=every if isinstance(every, int) else None,
            val_check_interval=float(interval) if isinstance(interval, (int, float)) else None,
            log_every_n_steps=int(trainer.log_every_n_steps),
            loggers=tuple(type(logger).__name__ for logger in trainer.loggers),
            device=str(trainer.strategy.root_device.type),
            cudnn_benchmark=bool(torch.backends.cudnn.benchmark),
        )

    def _fail(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            self.errors.report("the account of the fit is left out", error)


@dataclass
class _Start:
    """A start of worker processes, until its first batch has come. `LoaderStart` describes most fields.

    Attributes:
        before_ns: Time of earlier starts in the same entry.
        fetch_since_ns: When the fetch of the first batch began.
    """

    stage: Literal["training", "validation"]
    epoch: int
    workers: int
    persistent: bool
    before_ns: int
    start_ns: int | None = None
    fetch_since_ns: int | None = None


def compile_ns() -> int:
    """Return the time that ``torch.compile`` has taken in this process; 0 if torch no longer says so.

    It reads ``torch._dynamo.utils.cumulative_time_spent_ns``, as torch 2.11 to 2.15 have it.
    """
    utils = sys.modules.get("torch._dynamo.utils")
    spent = getattr(utils, "cumulative_time_spent_ns", None)
    if not isinstance(spent, dict):
        return 0
    names = ("entire_frame_compile", "entire_backward_compile")
    return sum(int(spent.get(name, 0)) for name in names)


def _is_lightnings(kind: type[Any]) -> bool:
    return kind.__module__.split(".")[0] in ("lightning", "pytorch_lightning")


def _overrides(callback: Any, hook: str) -> bool:
    """Whether a callback has a hook of its own, or only the empty one of its base class."""
    kind = type(callback)
    bases = [base for base in kind.__mro__ if base.__name__ == "Callback" and _is_lightnings(base)]
    own = getattr(kind, hook, None)
    return hook in vars(callback) or all(own is not getattr(base, hook, None) for base in bases)
