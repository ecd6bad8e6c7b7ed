"""Puts the recorded calls of a step together to one module, or to a CUDA graph, and times it.

A recording does not say which tensor a call reads. A call reads the latest tensor of the recorded type, shape and
strides that no call has read yet, else the latest one. Tensors that one call returned are read in their order.
"""

from __future__ import annotations

import operator
import pickle
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from lightning_perf.probe.replay.arguments import Argument, Bound, TensorInfo
from lightning_perf.probe.replay.data_flow import weights_of
from lightning_perf.probe.replay.measure import Pool, Prepared, autocast, integer_limit, make_calls, wait_on_device
from lightning_perf.probe.replay.messages import CompiledTimes, GraphTimes, Setting, Task
from lightning_perf.workers.channel import Channel
from lightning_perf.workers.limits import limit_memory

_Key = tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]


class CallGraph(NamedTuple):
    """Calls of a step as a module.

    Attributes:
        module: Takes `inputs`, and returns the results with a gradient of calls that no other call with one reads.
        inputs: Parameters, and inputs of the model.
    """

    module: fx.GraphModule
    inputs: tuple[Tensor, ...]
    places: tuple[int, ...]

    @property
    def leaves(self) -> list[Tensor]:
        """Return the inputs with a gradient."""
        return [tensor for tensor in self.inputs if tensor.requires_grad]


class _Result(NamedTuple):
    """A tensor that a call returned: its node, and the number of the call."""

    node: fx.Node
    call: int


class _Builder:
    def __init__(self, pool: Pool) -> None:
        self.graph = fx.Graph()
        self.values: dict[fx.Node, Tensor] = {}
        self.inputs: dict[Any, fx.Node] = {}
        self.unread: dict[fx.Node, list[fx.Node]] = {}
        """Results with a gradient, by the call that returned them. No call with a gradient reads any result of it."""
        self._pool = pool
        self._unread: defaultdict[_Key, list[_Result]] = defaultdict(list)
        self._latest: dict[_Key, fx.Node] = {}

    def add(self, number: int, bound: Bound) -> bool:
        """Add a call, and return whether it can be made."""
        limit, weights = integer_limit(bound), weights_of(bound)

        def tensor(info: TensorInfo, at: tuple[int, ...]) -> fx.Node:
            if at[0] in weights:
                return self._input(info, (number, *at), limit)
            return self._read(_key(info)) or self._input(info, _key(info), limit)

        def made(value: Argument, at: int) -> Any:
            if isinstance(value, list) and value and isinstance(value[0], TensorInfo):
                return [tensor(part, (at, number)) for number, part in enumerate(value)]
            return tensor(value, (at,)) if isinstance(value, TensorInfo) else value

        nodes = [made(value, at) for at, value in enumerate(bound.arguments)]
        split = len(nodes) - len(bound.keywords)
        arguments, keywords = tuple(nodes[:split]), dict(zip(bound.keywords, nodes[split:], strict=True))
        target = _out_of_place(bound)
        try:
            result = target(
                *fx.node.map_arg(arguments, self.values.__getitem__),
                **fx.node.map_arg(keywords, self.values.__getitem__),
            )
        except Exception:  # any operator may fail, in its own way
            return False
        node = self.graph.call_function(target, arguments, keywords)
        found = [one for one in self._returned(node, result, number) if self.values[one].requires_grad]
        if found:
            for read in node.all_input_nodes:
                self.unread.pop(read.all_input_nodes[0] if read.target is operator.getitem else read, None)
            self.unread[node] = found
        return True

    def _input(self, info: TensorInfo, key: Any, limit: int | None) -> fx.Node:
        if key not in self.inputs:
            node = self.graph.placeholder(f"input_{len(self.inputs)}")
            tensor = self._pool.tensor(info, ("input", key), limit).detach()
            self.values[node] = tensor.requires_grad_(info.gradient)
            self.inputs[key] = node
        return self.inputs[key]

    def _read(self, key: _Key) -> fx.Node | None:
        unread = self._unread[key]
        if not unread:
            return self._latest.get(key)
        latest = unread[-1].call
        at = next(place for place, result in enumerate(unread) if result.call == latest)
        return unread.pop(at).node

    def _returned(self, node: fx.Node, result: Any, number: int) -> list[fx.Node]:
        """Note the tensors that a call returned, and return their nodes."""
        if isinstance(result, Tensor):
            return [self._produce(node, result, number)]
        return [
            self._produce(self.graph.call_function(operator.getitem, (node, at)), part, number)
            for at, part in enumerate(result if isinstance(result, tuple | list) else ())
            if isinstance(part, Tensor)
        ]

    def _produce(self, node: fx.Node, value: Tensor, number: int) -> fx.Node:
        key = (value.dtype, tuple(value.shape), tuple(value.stride()))
        self.values[node] = value
        self._unread[key].append(_Result(node, number))
        self._latest[key] = node
        return node


def build_call_graph(order: Sequence[int], bound: Mapping[int, Bound], pool: Pool) -> CallGraph:
    """Put calls together to a module, in the order of the step. Places without a bound operator are left out."""
    builder = _Builder(pool)
    possible = [place for place in order if place in bound]
    with torch.enable_grad():
        added = [builder.add(number, bound[place]) for number, place in enumerate(possible)]
    builder.graph.output(tuple(node for nodes in builder.unread.values() for node in nodes))
    return CallGraph(
        fx.GraphModule(torch.nn.Module(), builder.graph),
        tuple(builder.values[node] for node in builder.inputs.values()),
        tuple(place for place, is_in in zip(possible, added, strict=True) if is_in),
    )


def _key(info: TensorInfo) -> _Key:
    return info.dtype, info.shape, info.strides


def _out_of_place(bound: Bound) -> Any:
    """Return the operator, or one that does not write to its input, if there is one."""
    own = getattr(getattr(torch.ops.aten, bound.name), bound.overload)
    if not bound.in_place:
        return own
    other = getattr(torch.ops.aten, bound.name.removesuffix("_"), None)
    return getattr(other, bound.overload, own)


ROUNDS, LEAST_ROUNDS, MOST_S = 15, 5, 20.0
"""Rounds of both, and the time from which the least number is enough."""


def main(channel: Channel) -> None:
    """Take a task, and send the times."""
    task = channel.receive(Task)
    limit_memory()
    channel.send(time_compiled(task))


def time_compiled(task: Task) -> CompiledTimes:
    """Compile the calls of a step with their backward passes, on a processor in the first setting, and time them."""
    torch.manual_seed(0)
    torch.set_num_threads(task.threads)
    setting = task.settings[0]
    bound = {
        place: settings[setting.name]
        for place, settings in enumerate(pickle.loads(task.bound))
        if setting.name in settings
    }
    with autocast(setting, task.device):
        made = build_call_graph(task.calls.order, bound, Pool(task.device, task.memory_bytes))
    gradients: list[Tensor] = []

    def step(module: Callable[..., tuple[Tensor, ...]]) -> None:
        with autocast(setting, task.device):
            outputs = module(*made.inputs)
        if not gradients:
            gradients.extend(map(torch.ones_like, outputs))
        torch.autograd.grad(outputs, made.leaves, gradients, allow_unused=True)

    clock = time.thread_time_ns if task.threads == 1 else time.perf_counter_ns

    def step_ns(module: Callable[..., tuple[Tensor, ...]]) -> float:
        start = clock()
        step(module)
        return float(clock() - start)

    step(made.module)
    begin = time.perf_counter()
    compiled = torch.compile(made.module, dynamic=False)
    step(compiled)
    compile_s = time.perf_counter() - begin
    begin = time.perf_counter()
    pairs: list[tuple[float, float]] = []
    while len(pairs) < LEAST_ROUNDS or (len(pairs) < ROUNDS and time.perf_counter() < begin + MOST_S):
        pairs.append((step_ns(made.module), step_ns(compiled)))
    one_by_one, in_one = zip(*pairs[1:], strict=True)
    return CompiledTimes(made.places, one_by_one, in_one, compile_s)


GROUP = 64
"""Calls with their backward passes that follow one another. The host makes them while the device waits."""

REPETITIONS, LEAST_REPETITIONS = 9, 3

Run = Callable[[], object]
"""Starts work on the device."""


class NotReplayedError(Exception):
    """Calls cannot be replayed. The message says why."""


class CudaQueue:
    """Runs and times work of the current CUDA device."""

    WAITS = 4
    """Waits that are tried, each twice as long as the one before."""

    def launched_ns(self, run: Run) -> float:
        """Return the time until the device is ready, from an empty queue on."""
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        run()
        torch.cuda.synchronize()
        return float(time.perf_counter_ns() - start)

    def queued_ns(self, run: Run) -> float:
        """Return the time of the device for work that is in its queue before it begins.

        A wait that ends before the host has made all calls is repeated with twice the length.
        """
        make: Callable[..., Any] = torch.cuda.Event
        for number in range(self.WAITS):
            begin, end = make(enable_timing=True), make(enable_timing=True)
            torch.cuda.synchronize()
            wait_on_device(2**number)
            begin.record()
            run()
            in_time = not begin.query()
            end.record()
            torch.cuda.synchronize()
            if in_time:
                return float(begin.elapsed_time(end)) * 1e6
        raise NotReplayedError("the host is too slow")

    def capture(self, run: Run) -> Run:
        """Return a function that replays the work from a graph.

        It captures on the current stream, but on another one if that is the default stream.
        """
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        with torch.cuda.graph(graph, stream=None if stream == torch.cuda.default_stream() else stream):
            run()
        torch.cuda.synchronize()
        return graph.replay

    @contextmanager
    def without_waits(self) -> Iterator[None]:
        """Return a context in which a call raises an error if the host would wait for the device."""
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


def time_graph(
    places: Sequence[int],
    calls: Sequence[Prepared],
    setting: Setting,
    *,
    device: str,
    hold_bytes: int,
    deadline_s: float,
    queue: CudaQueue,
) -> GraphTimes | None:
    """Time the calls of a step as the host makes them, from a full queue, and from a graph.

    Returns ``None`` if no call can be replayed, or if the device cannot capture them.
    """

    def run(keys: Sequence[int]) -> dict[int, str]:
        return make_calls({key: calls[key] for key in keys}, setting, device, hold_bytes, lambda run: (run(), 0)).failed

    kept = list(range(len(calls)))
    run(kept)  # loads kernels, and makes tensors
    with queue.without_waits():
        failed = run(kept)
    kept = [key for key in kept if key not in failed]
    groups = [kept[at : at + GROUP] for at in range(0, len(kept), GROUP)]
    if not kept:
        return None

    def step() -> None:
        for group in groups:
            if reasons := run(group):
                raise NotReplayedError(next(iter(reasons.values())))

    launched, queued, replayed = [], [], []
    try:
        replay = queue.capture(step)
        replay()
        for number in range(REPETITIONS):
            if number >= LEAST_REPETITIONS and time.perf_counter() > deadline_s:
                break
            launched.append(queue.launched_ns(step))
            queued.append(sum(queue.queued_ns(partial(run, group)) for group in groups))
            replayed.append(queue.queued_ns(replay))
    except (NotReplayedError, RuntimeError):  # torch's error for a failed capture, and for too little memory
        return None
    return GraphTimes(tuple(places[key] for key in kept), tuple(launched), tuple(queued), tuple(replayed))
