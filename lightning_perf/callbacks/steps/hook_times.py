"""The time of the Trainer's hooks in recorded steps: a trace does not show which callback or module ran."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Collection
from contextlib import AbstractContextManager
from types import TracebackType

from lightning_perf.callbacks.lightning_compat import Trainer
from lightning_perf.callbacks.steps.observers import FitObserver

MAX_HOOKS = 8
"""Hooks that are noted in a trace, the slowest first."""

_OWN = {"InjectedCallback", "PerfCallback", "PrecisionCallback"}

_HOOK = re.compile(r"^\[(?:Callback|LightningModule|LightningDataModule)\](?P<owner>\w+).*\.(?P<hook>\w+)$")


class HookTimes(FitObserver):
    """Times the hooks of callbacks and modules during a window, and notes facts about the loop."""

    def __init__(self, trainer: Trainer) -> None:
        self._facts = {
            "loggers": [type(logger).__name__ for logger in trainer.loggers],
            "log_every_n_steps": int(trainer.log_every_n_steps),
        }
        self._time_ns: defaultdict[str, int] = defaultdict(int)
        self._around_ns = 0
        self._since_ns: int | None = None
        self.timing = False
        """Whether a window records."""
        self.attached = False
        """Whether the Trainer's profiler reports hooks at all."""

    @property
    def idle(self) -> Collection[str]:
        """The one hook, unless a window records."""
        return () if self.timing else ("on_optimizer_step_end",)

    def step_starts(self) -> None:
        """Time the user's ``optimizer_step`` from here to its closure. Call it when the hook starts."""
        if self.timing:
            self._around_ns, self._since_ns = 0, time.perf_counter_ns()

    def closure_starts(self) -> None:
        """Stop to time ``optimizer_step``: its closure starts, with forward and backward."""
        if self._since_ns is not None:
            self._around_ns += time.perf_counter_ns() - self._since_ns
            self._since_ns = None

    def on_optimizer_step_end(self) -> None:
        """Time ``optimizer_step`` again: the optimizer's own step has ended."""
        if self.timing:
            self._since_ns = time.perf_counter_ns()

    def step_ends(self, action: str) -> None:
        """Note the time of ``optimizer_step`` outside its closure and the optimizer. Call it when the hook ends."""
        self.closure_starts()
        if self.timing:
            self._time_ns[action] += self._around_ns
            self._around_ns = 0

    def start(self) -> None:
        """Start to time, with all times at zero."""
        self._time_ns.clear()
        self.timing = True

    def stop(self, steps: int) -> dict[str, object]:
        """Stop to time."""
        self.timing = False
        hooks: defaultdict[str, int] = defaultdict(int)
        for action, spent_ns in self._time_ns.items():
            found = _HOOK.match(action)
            if found is not None and found["owner"] not in _OWN:
                hooks[f"{found['owner']}.{found['hook']}"] += spent_ns
        slowest = sorted(hooks, key=lambda name: (-hooks[name], name))[:MAX_HOOKS]
        times = {name: hooks[name] for name in slowest} if self.attached else None
        return {**self._facts, "steps": steps, "hooks_ns": times}

    def measure(self, action: str, inner: AbstractContextManager[str]) -> AbstractContextManager[str]:
        """Return a context that times an action of the Trainer's profiler."""
        return _Timed(action, self._time_ns, inner)


class _Timed(AbstractContextManager[str]):
    def __init__(self, action: str, time_ns: defaultdict[str, int], inner: AbstractContextManager[str]) -> None:
        self._action, self._time_ns, self._inner = action, time_ns, inner

    def __enter__(self) -> str:
        self._inner.__enter__()
        self._start_ns = time.perf_counter_ns()
        return self._action

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._time_ns[self._action] += time.perf_counter_ns() - self._start_ns
        self._inner.__exit__(kind, error, traceback)
