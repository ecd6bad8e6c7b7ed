"""Times calls in several settings, which alternate, as a step would make them: all forward passes, then all backward.

The outputs of the forward passes stay until their backward passes, as in a training. So caches and fresh memory have
an effect like the one there. The times of a round follow one another closely. A slow stretch of the machine hits all
settings alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_perf.machine.page_faults import count_page_faults
from lightning_perf.probe.replay.arguments import Argument, Bound, TensorInfo
from lightning_perf.probe.replay.messages import Setting

SEEDED = 1 << 16
"""Elements of a block of random values, which tensors repeat."""

LEAST_QUEUED = 4
"""Calls that should wait in the queue of a device while the next one is timed."""

WAIT_CYCLES = 20_000_000
"""Clock cycles of a device in about 10 ms."""

INDEX_OPERATORS = ("embedding", "embedding_bag")
CLASS_OPERATORS = ("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d")


class _Source(torch.autograd.Function):
    """Returns a tensor that is the result of an operation, so that an in-place operator may write to it."""

    @staticmethod
    def forward(_context: Any, _trigger: Tensor, value: Tensor) -> Tensor:
        alias: Tensor = torch.empty(0, dtype=value.dtype, device=value.device).set_(value)  # type: ignore[call-overload]
        return alias

    @staticmethod
    def backward(_context: Any, *_gradients: Tensor) -> tuple[Tensor | None, None]:
        return None, None


class Pool:
    """Makes tensors with values, within a limit of memory. Beyond it, tensors share their memory."""

    def __init__(self, device: str, limit_bytes: int) -> None:
        self.device, self._left = device, limit_bytes
        self._made: dict[tuple[Any, ...], Tensor] = {}
        self._shared: dict[torch.dtype, Tensor] = {}
        self._generator = torch.Generator(device=device).manual_seed(0)

    def tensor(self, info: TensorInfo, key: tuple[Any, ...], limit: int | None = None) -> Tensor:
        """Return a tensor: the same one for the same key and information."""
        whole = (*key, info.dtype, info.shape, info.strides)
        if whole not in self._made:
            if info.bytes <= self._left:
                self._left -= info.bytes
                flat = torch.empty(max(1, info.elements), dtype=info.dtype, device=self.device)
                self._fill(flat, limit)
            else:
                flat = self._shared_memory(info)
            self._made[whole] = flat.as_strided(info.shape, info.strides)
        return self._made[whole]

    def gradient(self, output: Tensor) -> Tensor:
        """Return a gradient for an output. All gradients share memory."""
        info = TensorInfo(output.dtype, tuple(output.shape), tuple(output.stride()))
        return self._shared_memory(info).as_strided(info.shape, info.strides)

    def _shared_memory(self, info: TensorInfo) -> Tensor:
        shared = self._shared.get(info.dtype)
        if shared is None or len(shared) < info.elements:
            shared = torch.empty(max(1, info.elements), dtype=info.dtype, device=self.device)
            self._fill(shared, 1)
            self._shared[info.dtype] = shared
        return shared

    def _fill(self, flat: Tensor, limit: int | None) -> None:
        """Fill with values that are quick to make: random ones that repeat."""
        if not flat.is_floating_point():
            if limit is None or limit < 2:
                flat.fill_(1 if flat.dtype == torch.bool else 0)
            else:
                flat.random_(0, limit, generator=self._generator)
            return
        block = torch.empty(min(SEEDED, len(flat)), dtype=torch.float32, device=self.device)
        block.uniform_(0.05, 1.0, generator=self._generator)
        block[::2].neg_()
        whole = len(flat) // len(block) * len(block)
        flat[:whole].view(-1, len(block)).copy_(block)
        flat[whole:].copy_(block[: len(flat) - whole])


class Prepared:
    """One call in one setting, with its tensors."""

    def __init__(self, place: int, bound: Bound, pool: Pool, *, has_backward: bool) -> None:
        self.bound, self._pool = bound, pool
        self._leaves: list[Tensor] = []
        self._first: Tensor | None = None
        self._trigger = torch.zeros((), device=pool.device, requires_grad=True)
        self._gradients: list[Tensor] | None = None
        limit = integer_limit(bound)
        self.arguments = [
            self._made(value, (place, at), limit, first=at == 0, has_backward=has_backward)
            for at, value in enumerate(bound.arguments)
        ]
        self.has_backward = has_backward and (bool(self._leaves) or self._first is not None)

    def _made(
        self, value: Argument, key: tuple[Any, ...], limit: int | None, *, first: bool, has_backward: bool
    ) -> Any:
        if isinstance(value, list) and value and isinstance(value[0], TensorInfo):
            return [
                self._made(part, (*key, at), limit, first=False, has_backward=has_backward)
                for at, part in enumerate(value)
            ]
        if not isinstance(value, TensorInfo):
            return value
        tensor = self._pool.tensor(value, key, limit).detach()
        if value.gradient and has_backward:
            if first and self.bound.in_place:
                self._first = tensor
                return tensor
            tensor.requires_grad_(True)
            self._leaves.append(tensor)
        return tensor

    def enter(self) -> list[Any]:
        """Return the arguments for a call. This is not timed."""
        if self._first is None:
            return self.arguments
        return [_Source.apply(self._trigger, self._first), *self.arguments[1:]]

    def outputs(self, result: Any) -> list[Tensor]:
        """Return the outputs that have a gradient."""
        results = result if isinstance(result, tuple | list) else (result,)
        return [tensor for tensor in results if isinstance(tensor, Tensor) and tensor.requires_grad]

    def gradients(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """Return gradients for the outputs. They are made once."""
        if self._gradients is None:
            self._gradients = [self._pool.gradient(output) for output in outputs]
        return self._gradients

    def backward(self, outputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Run the backward pass."""
        inputs = [*self._leaves, self._trigger] if self._first is not None else self._leaves
        # torch.autograd.grad without its checks in Python, which take time in each call, and 0.3 s in the first one.
        engine = torch.autograd.Variable._execution_engine
        engine.run_backward(tuple(outputs), tuple(gradients), False, False, tuple(inputs), True, accumulate_grad=False)


def integer_limit(bound: Bound) -> int | None:
    """Return the limit of the integers that an operator takes as places: rows of a table, or classes."""
    infos = [value for value in bound.arguments if isinstance(value, TensorInfo)]
    if not infos or not infos[0].shape:
        return None
    if bound.name in INDEX_OPERATORS:
        return infos[0].shape[0]
    if bound.name in CLASS_OPERATORS:
        return infos[0].shape[1 if len(infos[0].shape) > 1 else 0]
    return None


class Timer:
    """Measures single calls.

    On a processor with one thread it reads the processor time of this thread, which other programs do not lengthen as
    much as the time on the clock. On a device, events bracket each call. Whenever the queue is almost empty, a kernel
    that waits comes first, so that gaps between launches do not count.
    """

    def __init__(self, device: str, threads: int) -> None:
        self.on_device = device != "cpu"
        self._clock: Callable[[], int] = time.thread_time_ns if threads == 1 else time.perf_counter_ns
        self._events: list[tuple[Any, Any]] = []

    def call(self, run: Callable[[], Any]) -> tuple[Any, int]:
        """Run a function; return its result and its time, or on a device the number of its events."""
        if not self.on_device:
            start = self._clock()
            result = run()
            return result, self._clock() - start
        if not self._events or self._events[max(0, len(self._events) - LEAST_QUEUED)][1].query():
            wait_on_device()
        make: Callable[..., Any] = torch.cuda.Event
        start_event, end_event = make(enable_timing=True), make(enable_timing=True)
        start_event.record()
        result = run()
        end_event.record()
        self._events.append((start_event, end_event))
        return result, len(self._events) - 1

    def finish(self, numbers: Sequence[int | None]) -> list[float]:
        """Return the times of a series in nanoseconds; 0 for a missing one."""
        if not self.on_device:
            return [float(number or 0) for number in numbers]
        torch.cuda.synchronize()
        times = [start.elapsed_time(end) * 1e6 for start, end in self._events]
        self._events.clear()
        return [0.0 if number is None else times[number] for number in numbers]


def wait_on_device(times: int = 1) -> None:
    """Let the device wait for some times 10 ms, about, so that work queues up behind."""
    torch.cuda._sleep(times * WAIT_CYCLES)  # type: ignore[no-untyped-call]


def autocast(setting: Setting, device: str) -> AbstractContextManager[Any]:
    """Return the context of a setting's autocast."""
    return torch.autocast(device, getattr(torch, setting.autocast)) if setting.autocast else nullcontext()


class MadeCalls(NamedTuple):
    """The calls of a pass by their keys: the times of both passes as the timer returned them, and reasons."""

    forward: dict[int, int]
    backward: dict[int, int]
    failed: dict[int, str]


def make_calls(
    calls: Mapping[int, Prepared],
    setting: Setting,
    device: str,
    hold_bytes: int,
    timed: Callable[[Callable[[], Any]], tuple[Any, int]],
) -> MadeCalls:
    """Make calls once in the order of the step: all forward passes, then all backward passes."""
    made = MadeCalls({}, {}, {})
    held: list[tuple[int, list[Tensor], list[Tensor]]] = []
    held_bytes = 0

    def flush() -> None:
        nonlocal held_bytes
        while held:
            key, outputs, gradients = held.pop()
            call = calls[key]
            try:
                _, made.backward[key] = timed(lambda: call.backward(outputs, gradients))  # noqa: B023
            except Exception as error:  # any operator may fail, in its own way
                made.failed[key] = _reason(error)
            outputs.clear()
        held_bytes = 0

    if device == "cuda":  # the worker process is this package's own, so the flags need not be restored
        torch.backends.cuda.matmul.allow_tf32 = setting.tf32_matmul
        torch.backends.cudnn.allow_tf32 = setting.tf32_convolution
    with autocast(setting, device):
        for key, call in calls.items():
            try:
                with torch.set_grad_enabled(call.has_backward):
                    arguments = call.enter()
                    result, made.forward[key] = timed(lambda: call.bound.call(arguments))  # noqa: B023
                if call.has_backward:
                    outputs = call.outputs(result)
                    gradients = call.gradients(outputs)
                    held.append((key, outputs, gradients))
                    held_bytes += sum(output.numel() * output.element_size() for output in outputs)
                del result
            except Exception as error:
                made.failed[key] = _reason(error)
            if held_bytes > hold_bytes:
                with torch.autocast(device, enabled=False):
                    flush()
    flush()
    return made


def run_pass(
    calls: Mapping[int, Prepared], setting: Setting, device: str, threads: int, hold_bytes: int
) -> tuple[dict[int, tuple[float, float]], dict[int, str]]:
    """Make all calls once in one setting.

    Returns the times of each call's forward and backward pass in nanoseconds, and the reasons of calls that failed.
    """
    threads = setting.threads or threads
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    timer = Timer(device, threads)
    made = make_calls(calls, setting, device, hold_bytes, timer.call)
    places = [place for place in made.forward if place not in made.failed]
    numbers = [*(made.forward[place] for place in places), *(made.backward.get(place) for place in places)]
    times = timer.finish(numbers)
    return {place: (times[at], times[at + len(places)]) for at, place in enumerate(places)}, made.failed


def count_faults(calls: Mapping[int, Prepared], setting: Setting, hold_bytes: int) -> dict[int, int]:
    """Make all calls once on the processor, and return the page faults of each, forward and backward."""

    def counted(run: Callable[[], Any]) -> tuple[Any, int]:
        before = count_page_faults() or 0
        result = run()
        return result, (count_page_faults() or 0) - before

    made = make_calls(calls, setting, "cpu", hold_bytes, counted)
    return {
        place: faults + made.backward.get(place, 0)
        for place, faults in made.forward.items()
        if place not in made.failed
    }


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0][:200]}" if str(error) else type(error).__name__
