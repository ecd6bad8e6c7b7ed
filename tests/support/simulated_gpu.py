"""A recording of a training on the processor, replayed as if a GPU had computed: Lightning's own nesting, known times.

Recordings of GPUs that others published are of plain PyTorch. Here ranges, operators, their order and their inputs are
those of a real `Trainer` with `PerfCallback`; only where an operator computed, the host launches a kernel and goes on.
The device takes kernels one after the other. Reading a value waits for all of them. So the times are known, and a
change to the training is a change to its operators.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.trace_builder import MAIN, TraceBuilder

ENGINE = 2000
"""The thread of the autograd engine: on a GPU the training thread waits for it."""

HOST_US = 8.0
"""What an operator takes the host at most, its launch left out."""
PYTHON_US = 100.0
"""What Python between two events takes at most: where it took longer, it waited for the processor."""
LAUNCH_US = 4.0
DELAY_US = 2.0

# What allocates or looks at tensors launches nothing.
_NO_KERNEL = re.compile(
    r"aten::(empty|view|_unsafe_view|reshape|as_strided|select|slice|detach|t$|transpose|permute|expand|resize|unsqueeze|"
    r"squeeze|alias|set_|result_type|is_|item|_local_scalar_dense|to$|_to_copy|contiguous|unbind|split|narrow|flatten)"
    r"|detach|^(?!aten::)"
)
_PRODUCTS = re.compile(r"mm$|mkldnn_convolution$|convolution_backward$|mkldnn_linear$|bmm$")
_READS = ("aten::_local_scalar_dense",)


@dataclass
class Node:
    """An event of the training thread with those inside it.

    Attributes:
        event: The event as recorded.
        children: Events inside it, in order.
    """

    event: dict[str, Any]
    children: list[Node] = field(default_factory=list)

    @property
    def own_us(self) -> float:
        """Its time outside the events inside it."""
        return sum(self.stretches_us)

    @property
    def end_us(self) -> float:
        """When it ends."""
        return float(self.event["ts"]) + float(self.event["dur"])

    @property
    def stretches_us(self) -> list[float]:
        """Its time before, between and after the events inside it."""
        begins = [*(float(child.event["ts"]) for child in self.children), self.end_us]
        ends = [float(self.event["ts"]), *(child.end_us for child in self.children)]
        return [max(0.0, begin - end) for begin, end in zip(begins, ends, strict=True)]

    def walk(self) -> Iterator[Node]:
        """This node and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


Change = Callable[[Node, str], bool]
"""Whether a node stays, by it and the phase that it lies in: ``forward``, …, or ``""`` between phases."""


@dataclass(frozen=True)
class Gpu:
    """How fast the device is, compared with the processor that was recorded.

    Attributes:
        products: Time of products and convolutions, as a part of what they took there.
        others: Time of other operators, likewise.
        host: Time of operators on the host, as a part of `HOST_US`.
        graph: Whether a graph holds the forward and the backward pass. The host then takes no time for them.
    """

    products: float = 1.0
    others: float = 1.0
    host: float = 1.0
    graph: bool = False


def steps_of(document: dict[str, Any]) -> list[Node]:
    """The marked steps of a recording, with all that the training thread did in them."""
    host = [event for event in document["traceEvents"] if event.get("ph") == "X" and "dur" in event]
    threads = {event["tid"] for event in host if event["name"].startswith("ProfilerStep#")}
    mine = [event for event in host if event["tid"] in threads and event["cat"] in ("cpu_op", "user_annotation")]
    mine.sort(key=lambda event: (event["ts"], -event["dur"]))
    roots: list[Node] = []
    stack: list[Node] = []
    for event in mine:
        while stack and event["ts"] >= stack[-1].end_us:
            stack.pop()
        node = Node(event)
        (stack[-1].children if stack else roots).append(node)
        stack.append(node)
    return [root for root in roots if root.event["name"].startswith("ProfilerStep#")]


def undisturbed(steps: list[Node]) -> Node:
    """A step with the shortest of all steps' times between two events: what else ran on the machine is not in it.

    Steps with other events than most of them are left out.
    """
    shapes = [tuple((node.event["name"], len(node.children)) for node in step.walk())[1:] for step in steps]
    (usual, _), *_ = Counter(shapes).most_common(1)
    return _shortest([step for step, shape in zip(steps, shapes, strict=True) if shape == usual], 0.0)


def _shortest(nodes: Sequence[Node], begin_us: float) -> Node:
    before_us, *after_us = (min(times) for times in zip(*(node.stretches_us for node in nodes), strict=True))
    end_us, children = begin_us + before_us, []
    for same, pause_us in zip(zip(*(node.children for node in nodes), strict=True), after_us, strict=True):
        children.append(_shortest(same, end_us))
        end_us = children[-1].end_us + pause_us
    return Node({**nodes[0].event, "ts": begin_us, "dur": end_us - begin_us}, children)


class Replay:
    """Runs steps on a host and a device that know nothing but their clocks.

    Args:
        gpu: The device.
        change: What becomes of the training's operators.
    """

    def __init__(self, gpu: Gpu, change: Change) -> None:
        self._gpu, self._change = gpu, change
        self._host_us = self._device_us = 0.0
        self._builder = TraceBuilder().gpu(
            "NVIDIA A100-SXM4-40GB", computeMajor=8, computeMinor=0, numSms=108, totalGlobalMem=40 * 2**30
        )

    def run(self, steps: list[Node]) -> TraceBuilder:
        """The recording that a GPU would have made of the steps."""
        for step in steps:
            self._node(step, MAIN, "")
        return self._builder

    def _node(self, node: Node, thread: int, phase: str) -> None:
        event = node.event
        if event["name"].startswith("perf::"):
            phase = event["name"].removeprefix("perf::")
        if not self._change(node, phase):
            return
        name, is_operator = event["name"], event["cat"] == "cpu_op"
        if name.startswith("autograd::engine::evaluate_function"):
            thread = ENGINE
        begin_us = self._host_us
        in_graph = self._gpu.graph and phase in ("forward", "backward")
        computes = is_operator and phase != "fetch" and node.own_us > HOST_US and _NO_KERNEL.search(name) is None
        # Batches are made on the host.
        host_us = 0.0
        if is_operator and not in_graph:
            host_us = node.own_us if phase == "fetch" else min(HOST_US, node.own_us) * self._gpu.host
        self._host_us += host_us / 2
        at = float(event["ts"])
        for child in node.children:
            if not is_operator and not in_graph:
                self._python(float(child.event["ts"]) - at)
            self._node(child, thread, phase)
            at = child.end_us
        if not is_operator and not in_graph:
            self._python(node.end_us - at)
        if name in _READS:
            self._read(thread)
        elif computes:
            self._launch(name, node.own_us, thread, 0.0 if in_graph else LAUNCH_US)
        self._host_us += host_us / 2
        self._builder.host(
            event["cat"], name, begin_us, max(0.001, self._host_us - begin_us), thread=thread, **event.get("args", {})
        )

    def _python(self, took_us: float) -> None:
        self._host_us += min(max(0.0, took_us), PYTHON_US)

    def _launch(self, operator: str, computes_us: float, thread: int, call_us: float) -> None:
        product = _PRODUCTS.search(operator) is not None
        duration_us = computes_us * (self._gpu.products if product else self._gpu.others)
        kernel = "at::native::vectorized_elementwise_kernel"
        if product:
            kernel = "ampere_sgemm_128x64_nn"
        start_us = max(self._device_us, self._host_us + call_us + DELAY_US)
        self._builder.launch(
            kernel, call_us=self._host_us, call_duration_us=call_us, start_us=start_us, duration_us=duration_us,
            thread=thread,
        )  # fmt: skip
        self._host_us += call_us
        self._device_us = start_us + duration_us

    def _read(self, thread: int) -> None:
        ready_us = max(self._host_us + 1, self._device_us)
        self._builder.runtime("cudaStreamSynchronize", self._host_us, ready_us - self._host_us, thread=thread)
        self._host_us = ready_us
