"""Measures calls and optimizers in settings that alternate in rounds, and decides which are worth the time.

A training updates its parameters after a backward pass, which leaves neither them nor the optimizer's code in the
caches. So the variants here alternate, between the passes over the probed calls.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import cycle
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_perf.analysis.model.operators import OperatorCalls
from lightning_perf.machine.page_faults import count_page_faults
from lightning_perf.probe.replay.arguments import TYPES, Bound
from lightning_perf.probe.replay.measure import Pool, Prepared, count_faults, run_pass
from lightning_perf.probe.replay.messages import FUSED, THREADS, OptimizerTask, Setting, Task, Times

IMPLEMENTATIONS = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
"""Arguments of the optimizers of ``torch.optim`` for each implementation."""

MOST_ELEMENTS = 1 << 24
"""Elements of all parameters together. Of larger ones a part is updated, and the time is scaled up."""

LARGE_ELEMENTS = (1 << 23) + (1 << 12)
"""Elements of a large parameter, over 32 MiB: glibc returns such blocks to the system, so temporaries cost page faults
(mallopt(3), M_MMAP_THRESHOLD). The part that is updated has parameters of this size if the recording has."""

COPIES = 9
"""Tensors of a parameter's size that two Adam optimizers need at most: the parameter, its gradient, three states of
each, and a temporary."""

SHARE = 0.2
"""Most of the time for steps of the optimizer, after the least number of timer."""

LEAST_STEPS = 3


class _Variant(NamedTuple):
    """A variant of the optimizer step: its name, its implementation and its threads."""

    name: str
    implementation: str
    threads: int


class OptimizerTimer:
    """Optimizers over parameters of the recorded sizes. They step alternately: as recorded, fused, with more threads.

    Raises:
        ValueError: The parameters need more memory than the task has, or torch has no such optimizer.
    """

    def __init__(self, task: Task) -> None:
        assert task.optimizer is not None
        self._task = task
        recorded = task.optimizer.implementation
        threads = next((setting.threads for setting in task.settings if setting.threads is not None), None)
        variants = [_Variant(recorded, recorded, task.threads), _Variant(FUSED, FUSED, task.threads)]
        if threads is not None:
            variants.append(_Variant(THREADS, recorded, threads))
        self._times: defaultdict[str, list[float]] = defaultdict(list)
        self._parameters, self._scale = _parameters(task)
        make = getattr(torch.optim, task.optimizer.name)
        options = _options(task.optimizer)
        self._optimizers = {
            implementation: make(self._parameters, **options, **IMPLEMENTATIONS[implementation])
            for implementation in {variant.implementation for variant in variants}
        }
        for optimizer in self._optimizers.values():
            optimizer.step()  # makes the states
        self._variants = cycle(variants)
        self._begin_s = time.perf_counter()
        self._spent_s = 0.0
        self._left = LEAST_STEPS * len(variants)
        self.seconds = sum(self._step(variant) for variant in variants) / len(variants)
        """Time of a step, about."""
        before = count_page_faults() or 0
        self._optimizers[recorded].step()
        self.page_faults = self._scale * ((count_page_faults() or 0) - before)
        """Page faults of a step in the recorded implementation, for all elements of the recorded parameters."""

    def step_next(self) -> None:
        """Run a step of the next variant, unless the steps take too much of the time."""
        if self._left <= 0 and self._spent_s > SHARE * (time.perf_counter() - self._begin_s):
            return
        self._left -= 1
        variant = next(self._variants)
        taken_s = self._step(variant)
        self._spent_s += taken_s
        self._times[variant.name].append(self._scale * taken_s * 1e9)

    def reserved_s(self, steps: int, left_s: float) -> float:
        """Return the time to reserve for some steps, in seconds, at most a share of the time left."""
        return min(steps * self.seconds, SHARE * left_s)

    def times_ns(self) -> dict[str, tuple[float, ...]]:
        """Return the times of all steps by variant, for all elements of the recorded parameters."""
        return {name: tuple(times) for name, times in self._times.items()}

    def _step(self, variant: _Variant) -> float:
        """Run a step and return its time in seconds."""
        torch.set_num_threads(variant.threads)
        on_device = self._task.device != "cpu"
        # Other programs lengthen the processor time of a thread less than the time on the clock.
        clock = time.perf_counter if on_device or variant.threads > 1 else time.thread_time
        if on_device:
            torch.cuda.synchronize()
        start_s = clock()
        self._optimizers[variant.implementation].step()
        if on_device:
            torch.cuda.synchronize()
        taken_s = clock() - start_s
        torch.set_num_threads(self._task.threads)
        return taken_s


def _parameters(task: Task) -> tuple[list[Tensor], float]:
    """Return parameters with gradients, and the number of all recorded elements over theirs."""
    recorded = [
        (prod(parameter.shape), TYPES[parameter.type])
        for parameter in task.calls.parameters
        if parameter.type in TYPES
        for _ in range(parameter.count)
    ]
    parts: list[tuple[int, torch.dtype]] = []
    for dtype in dict.fromkeys(dtype for _, dtype in recorded):
        sizes = [size for size, each in recorded if each == dtype]
        share = sum(sizes) / max(1, sum(size for size, _ in recorded))
        parts += [(size, dtype) for size in sample_sizes(sizes, int(share * MOST_ELEMENTS), LARGE_ELEMENTS)]
    if not parts or sum(size * dtype.itemsize for size, dtype in parts) * COPIES > task.memory_bytes:
        raise ValueError("its parameters need too much memory")
    parameters = []
    for size, dtype in parts:
        parameter = torch.full((size,), 0.5, dtype=dtype, device=task.device, requires_grad=True)
        parameter.grad = torch.full_like(parameter, 0.01)
        parameters.append(parameter)
    return parameters, sum(size for size, _ in recorded) / sum(size for size, _ in parts)


def sample_sizes(sizes: Sequence[int], whole: int, large: int) -> list[int]:
    """Return sizes that add up to about ``whole``, in which large and small ones have the shares that they had.

    Args:
        large: A large size. There is at least one of it if there was any.
    """
    if sum(sizes) <= whole:
        return list(sizes)
    small = [size for size in sizes if size < large]
    large_sum = sum(sizes) - sum(small)
    if not large_sum:
        most = largest_size(small, whole)
        return [min(size, most) for size in small]
    number = max(1, round(whole * large_sum / sum(sizes) / large))
    most = largest_size(small, round(number * large / large_sum * sum(small)))
    return [large] * number + [size for each in small if (size := min(each, most))]


def largest_size(sizes: Sequence[int], whole: int) -> int:
    """Return the largest size of a part with which all parts, cut to it, add up to at most ``whole``.

    Example:
        >>> largest_size([10, 100, 1000], 310), largest_size([10, 100], 310)
        (200, 100)
    """
    left = whole
    ordered = sorted(sizes)
    for number, size in enumerate(ordered):
        share = left // (len(ordered) - number)
        if size > share:
            return share
        left -= size
    return max(ordered, default=0)


def _options(task: OptimizerTask) -> dict[str, Any]:
    options: dict[str, Any] = {"lr": 1e-4}
    if task.name == "SGD":
        options |= {"momentum": 0.9 if task.momentum else 0.0, "nesterov": task.nesterov}
    if task.name in ("Adam", "AdamW"):
        options["amsgrad"] = task.amsgrad
    if task.weight_decay:
        options["weight_decay"] = 1e-4
    elif task.name == "AdamW":
        options["weight_decay"] = 0.0
    return options


LEAST_ROUNDS, USUAL_ROUNDS, MOST_ROUNDS = 2, 4, 30
"""Rounds after the one that warms up. Calls are chosen so that the time suffices for the usual number. If they would
cover too little, it suffices for the least number."""

USUAL_COVERAGE = 0.9
"""Share of the operators' time that the calls of the usual number of rounds should cover."""

BATCH_ROUNDS = 16
"""Rounds for a larger batch, which takes the most time."""

WARM_UP = 1.6
"""Time of the first round, which also makes tensors and loads kernels, in times of a later one."""

ENOUGH = 0.75
"""Share of the time of all measurable operators that should be measured. Otherwise the larger batch is left out."""

CLEAR_LOSS, HOPELESS = 1.25, 2.0
"""Ratios of times from which a setting is not measured again, after the least number of rounds and after one: nobody is
advised to use it. A larger batch warms up for longer than one round."""


class Rounds:
    """Measures the calls of a task until a deadline. The optimizer steps after each pass."""

    def __init__(
        self,
        task: Task,
        bound: Sequence[Mapping[str, Bound]],
        skipped: dict[int, str],
        optimizer: OptimizerTimer | None,
        deadline_s: float,
    ) -> None:
        self.skipped = skipped
        self._optimizer = optimizer
        self._task, self._bound, self._deadline_s = task, bound, deadline_s
        self._settings = task.settings
        self._current = task.settings[0]
        self._possible = [place for place, settings in enumerate(bound) if self._current.name in settings]
        self._pool = Pool(task.device, task.memory_bytes)
        self._calls: dict[str, dict[int, Prepared]] = {setting.name: {} for setting in task.settings}
        self._times: defaultdict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
        self._first_rounds: dict[tuple[int, str], int] = {}
        self._decided: set[str] = set()
        self._least_ratio: dict[str, float] = {}
        self.page_faults: float | None = None
        """Page faults of a step's calls as recorded; ``None`` on a device, or if the system does not count them."""
        self._chosen = self._choose(1.0)
        most = task.calls.share_of(select_calls(task.calls, self._possible, math.inf))
        if self._settings[-1].batch > 1 and task.calls.share_of(self._chosen) < ENOUGH * most:
            self._settings = self._settings[:-1]
            self._chosen = self._choose(1.0)
        self._prepare()

    def run(self) -> None:
        """Run a round that warms up, and then rounds until the deadline, at least two."""
        took_s = self._run_round(0)
        self._add_calls(took_s)
        for number in range(1, MOST_ROUNDS + 1):
            if number > LEAST_ROUNDS and time.perf_counter() + took_s > self._deadline_s:
                break
            took_s = self._run_round(number)
            self._decide(number)
            if number == LEAST_ROUNDS:
                self.page_faults = self._count_faults()

    def _count_faults(self) -> float | None:
        """Count the page faults of one more pass as recorded. Calls that are not measured count like those that are."""
        if self._task.device != "cpu":
            return None
        calls = self._task.calls
        counted = count_faults(self._calls[self._current.name], self._current, self._task.memory_bytes)
        share = calls.share_of(counted)
        if not share:
            return None
        return sum(faults * calls.calls[place].calls for place, faults in counted.items()) / calls.steps / share

    def times(self) -> tuple[Times, ...]:
        """Return the times of all rounds but the first one of each call, which made its tensors."""
        return tuple(
            Times(
                place,
                name,
                tuple(pair[0] for pair in pairs[1:]),
                tuple(pair[1] for pair in pairs[1:]),
                self._first_rounds[place, name] + 1,
            )
            for (place, name), pairs in sorted(self._times.items())
        )

    def step_calls(self) -> tuple[list[int], list[Prepared]]:
        """Return the places of all calls of a step that can be made, in their order, and the calls as recorded."""
        made = self._calls[self._current.name]
        places = [place for place in self._task.calls.order if self._is_possible(place)]
        for place in set(places) - made.keys():
            made[place] = self._prepared(place, self._current)
        return places, [made[place] for place in places]

    def _is_possible(self, place: int) -> bool:
        return self._current.name in self._bound[place] and place not in self.skipped

    def _choose(self, speed: float) -> tuple[int, ...]:
        """Choose the calls that the time suffices for, with the speed of this machine over that of the recording."""
        usual = self._calls_for(USUAL_ROUNDS, speed, COVERAGE)
        if self._task.calls.share_of(usual) >= USUAL_COVERAGE:
            return usual
        return self._calls_for(LEAST_ROUNDS, speed, USUAL_COVERAGE)

    def _calls_for(self, rounds: int, speed: float, coverage: float) -> tuple[int, ...]:
        """Choose the calls that the time suffices for, in a number of rounds after the one that warms up."""
        left_s = max(0.0, self._deadline_s - time.perf_counter())
        if self._optimizer is not None:
            left_s -= self._optimizer.reserved_s(len(self._settings) * (rounds + 1), left_s)
        passes = sum(setting.batch for setting in self._settings) * (rounds + WARM_UP)
        return select_calls(self._task.calls, self._possible, speed * left_s * 1e9 / passes, coverage)

    def _prepare(self) -> None:
        """Make the tensors of chosen calls that have none yet."""
        for setting in self._settings:
            made = self._calls[setting.name]
            self._calls[setting.name] = {
                place: made.get(place) or self._prepared(place, setting)
                for place in self._chosen
                if setting.name in self._bound[place] and place not in self.skipped
            }

    def _prepared(self, place: int, setting: Setting) -> Prepared:
        call = self._task.calls.calls[place]
        return Prepared(place, self._bound[place][setting.name], self._pool, has_backward=call.has_backward)

    def _run_round(self, number: int) -> float:
        """Run a pass in each setting that is not decided yet, and return the time of all in seconds."""
        task = self._task
        start_s = time.perf_counter()
        active = [setting for setting in self._settings if setting.name not in self._decided]
        for setting in active if number % 2 == 0 else reversed(active):
            calls = self._calls[setting.name]
            measured, failed = run_pass(calls, setting, task.device, task.threads, task.memory_bytes)
            for place, reason in failed.items():
                del calls[place]
                if setting is self._current:
                    self.skipped[place] = reason
            for place, pair in measured.items():
                self._times[place, setting.name].append(pair)
                self._first_rounds.setdefault((place, setting.name), number)
            if self._optimizer is not None:
                self._optimizer.step_next()
        return time.perf_counter() - start_s

    def _add_calls(self, took_s: float) -> None:
        """Choose more calls after the first round, if this machine turns out to be fast enough."""
        made = (self._task.calls.calls[place] for place in self._chosen)
        recorded_ns = sum(call.time_ns / call.calls for call in made)
        passes = sum(setting.batch for setting in self._settings) * WARM_UP
        chosen = self._choose(recorded_ns * passes / max(1.0, took_s * 1e9))
        if set(chosen) > set(self._chosen):
            self._chosen = chosen
            self._prepare()

    def _decide(self, number: int) -> None:
        """Find the settings that need no further rounds."""
        for setting in self._settings[1:]:
            enough = setting.batch > 1 and number >= BATCH_ROUNDS
            least = min(self._least_ratio.get(setting.name, math.inf), self._latest_ratio(setting))
            self._least_ratio[setting.name] = least
            limit = CLEAR_LOSS if number >= LEAST_ROUNDS else HOPELESS if setting.batch == 1 else math.inf
            if enough or least > limit:
                self._decided.add(setting.name)

    def _latest_ratio(self, setting: Setting) -> float:
        """Return the time of a step's calls in a setting, for as many samples, over that in the current setting.

        Calls that still warm up are left out. If they are most of the chosen calls, the ratio is 1.
        """
        before = after = 0.0
        warm = []
        for place in self._chosen:
            old, new = (self._times.get((place, name), []) for name in (self._current.name, setting.name))
            if min(len(old), len(new)) > 1:
                warm.append(place)
                calls = self._task.calls.calls[place].calls
                before += calls * sum(old[-1])
                after += calls * sum(new[-1]) / setting.batch
        whole = self._task.calls.share_of(self._chosen)
        return after / before if before and self._task.calls.share_of(warm) > whole / 2 else 1.0


COVERAGE = 0.97
"""Share of the operators' time from which further calls are left out, if time allows."""

SHORTEST_NS = 3_000
"""Shorter calls are left out: their time is that of calling them, which no setting changes."""

CALLING_NS = 10_000
"""Time that the probe itself takes for each call, about."""


def select_calls(
    calls: OperatorCalls, possible: Collection[int], pass_ns: float, coverage: float = COVERAGE
) -> tuple[int, ...]:
    """Choose calls that cover much of the step and take little time, because the step repeats them.

    Returns the places of the chosen ones among those that are possible, in their order: at least one if there is any.
    """
    time_ns = [call.time_ns for call in calls.calls]
    cost_ns = [whole / call.calls + CALLING_NS for whole, call in zip(time_ns, calls.calls, strict=True)]
    # The greedy solution of the knapsack problem: by value per cost (Dantzig, Operations Research 5, 1957).
    worthwhile = [place for place in possible if cost_ns[place] >= SHORTEST_NS + CALLING_NS]
    chosen: list[int] = []
    covered = spent_ns = 0.0
    for place in sorted(worthwhile, key=lambda place: -time_ns[place] / cost_ns[place]):
        if covered >= coverage * sum(time_ns):
            break
        if chosen and spent_ns + cost_ns[place] > pass_ns:
            continue
        chosen.append(place)
        spent_ns += cost_ns[place]
        covered += time_ns[place]
    return tuple(sorted(chosen))
