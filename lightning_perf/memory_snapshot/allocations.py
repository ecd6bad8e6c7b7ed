"""The allocations of a device: the lifetime of each, its place in the code, and its purpose."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from lightning_perf.memory_snapshot.snapshot import INACTIVE, NO_STACK, Action, Annotation, Events, Frame, Snapshot

Phase: TypeAlias = Literal["forward", "backward", "optimizer", "other", "unknown"]

Purpose: TypeAlias = Literal["parameters", "optimizer_state", "inputs"]

_LIBRARY = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages)/(?:torch|torchgen|functorch|triton|lightning|pytorch_lightning"
    r"|lightning_fabric|lightning_utilities|lightning_perf|einops|opt_einsum)/"
    r"|/torch/(?:nn|optim|utils|autograd|cuda|distributed|_dynamo|_inductor|_functorch|fx|amp|_tensor\.py|_ops\.py|functional\.py)"
    r"|/lib/python3\.\d+/(?!site-packages|dist-packages)|torchinductor|^<frozen "
    r"|^(?:[A-Za-z]:|/)/.*[Pp]ython.*/Lib/(?!site-packages/)"  # the standard library on Windows
)
_OPTIMIZER = re.compile(r"/torch/optim/(?!lr_scheduler|swa_utils)|/(?:bitsandbytes|torchao)/optim/")
_MODULE_CALL = re.compile(r"/torch/nn/modules/module\.py$")
_MODULE_FILE = re.compile(r"/torch/nn/modules/(?P<name>\w+)\.py$")
_AUTOGRAD = re.compile(r"/torch/autograd/(?:__init__|graph)\.py$")
_ENGINE_CALLS = ("_engine_run_backward", "grad")
_ENGINE = "torch::autograd::Engine::"
_NODE = re.compile(r"torch::autograd::(?:generated::)?(?P<name>\w+)::apply\(")
_KERNEL = re.compile(r"at::(?:native::|_ops::|meta::|redispatch::)+(?:\(anonymous namespace\)::)?(?P<name>\w+)")
_FORWARD_NAMES = ("forward", "training_step", "validation_step", "test_step", "predict_step")
_TRANSFER_NAMES = ("move_data_to_device", "batch_to", "transfer_batch_to_device", "pin_memory")

NO_LINE = "(no stack)"


class Site(Struct, frozen=True):
    """The facts that a stack shows about an allocation.

    Attributes:
        line: The innermost line outside of torch and Lightning, as ``folder/file.py:12 function``. Without one, the
            innermost line of Python or the operator of autograd.
        file: The whole path of that line; empty for compiled code.
        module: Class of the innermost module, or the file of ``torch.nn.modules`` that it is from; None if unknown.
        purpose: The use of the memory, if the stack alone shows it.
    """

    line: str
    file: str
    module: str | None
    phase: Phase
    purpose: Purpose | None


EMPTY_SITE = Site(NO_LINE, "", None, "unknown", None)
"""The site of an allocation without a stack."""


def name_line(line: str, module: str | None) -> str:
    """Return a line with the class of the module that it is from, if known."""
    return line if module is None else f"{line} [{module}]"


def describe_stack(stack: Sequence[Frame]) -> Site:
    """Describe an allocation from its stack."""
    if not stack:
        return EMPTY_SITE
    python = [frame for frame in stack if is_python(frame)]
    shown = next((frame for frame in python if not _LIBRARY.search(frame.file)), python[0] if python else None)
    return Site(
        line=_line(shown) if shown is not None else _compiled_line(stack),
        file=shown.file if shown is not None else "",
        module=_module(python),
        phase=_phase(stack, python),
        purpose=_purpose(python),
    )


def is_python(frame: Frame) -> bool:
    """Return whether a frame is of Python, and not of compiled code."""
    return frame.file.endswith((".py", ".pyx")) or frame.file.startswith("<")


def _line(frame: Frame) -> str:
    return f"{'/'.join(frame.file.rsplit('/', 2)[-2:])}:{frame.line} {frame.function}"


def _compiled_line(stack: Sequence[Frame]) -> str:
    """Name the node of autograd, or else the outermost operator, of a stack without Python."""
    for frame in stack:
        node = _NODE.search(frame.function)
        if node is not None and node["name"] not in ("Node", "PyNode"):
            return f"autograd {node['name']}"
    kernels = [found["name"] for frame in stack if (found := _KERNEL.search(frame.function)) is not None]
    return f"operator {kernels[-1]}" if kernels else NO_LINE


def _phase(stack: Sequence[Frame], python: Sequence[Frame]) -> Phase:
    """Return the phase.

    The innermost frame that belongs to one decides: a closure runs forward and backward inside of ``optimizer.step``.
    Forward inside of backward is a recomputation of activation checkpointing, and counts as backward.
    """
    inner: Phase = "other"
    for frame in python:
        if _OPTIMIZER.search(frame.file):
            if inner == "other":
                return "optimizer"
            continue
        function = frame.function.rpartition(".")[2]
        if function == "backward" or (function in _ENGINE_CALLS and _AUTOGRAD.search(frame.file)):
            return "backward"
        if function in _FORWARD_NAMES or ("call_impl" in function and _MODULE_CALL.search(frame.file)):
            inner = "forward"
    if any(_ENGINE in frame.function for frame in stack):
        return "backward"
    return inner


def _module(python: Sequence[Frame]) -> str | None:
    for position, frame in enumerate(python):
        owner, _, function = frame.function.rpartition(".")
        if function == "forward" and owner and "<locals>" not in owner:
            return owner.rpartition(".")[2]
        called = position + 1 < len(python) and _MODULE_CALL.search(python[position + 1].file)
        file = _MODULE_FILE.search(frame.file)
        if function == "forward" and called and file is not None:
            return f"nn.{file['name']}"
    return None


def _purpose(python: Sequence[Frame]) -> Purpose | None:
    for frame in python:
        function = frame.function.rpartition(".")[2]
        if _OPTIMIZER.search(frame.file):
            return "optimizer_state" if function == "_init_group" else None
        if function in _TRANSFER_NAMES:
            return "inputs"
        if function == "_apply" and _MODULE_CALL.search(frame.file):
            return "parameters"
        if function == "__init__" and (
            _MODULE_FILE.search(frame.file) or frame.file.endswith("/torch/nn/parameter.py")
        ):
            return "parameters"
        if "call_impl" in function:
            return None
    return None


Integers = NDArray[np.int64]

PHASES = ("forward", "backward", "optimizer", "other", "unknown")
FORWARD, BACKWARD, OPTIMIZER, OTHER, UNKNOWN = range(len(PHASES))

CATEGORIES = (
    "before_recording",
    "parameters",
    "optimizer_state",
    "gradients",
    "activations",
    "inputs",
    "temporaries",
    "unknown",
)
"""Uses of memory. The long-lived ones come first, so they are at the bottom of a chart."""

FREE, MIXED = "free", "mixed"
"""Parts of a segment without use, and with several uses."""

_NUMBER = {name: number for number, name in enumerate(CATEGORIES)}
_KEPT = {FORWARD: _NUMBER["activations"], BACKWARD: _NUMBER["gradients"], OPTIMIZER: _NUMBER["optimizer_state"]}
_STEP = "Optimizer.step"


def phases_of(
    lifetimes: Lifetimes,
    sites: Sequence[Site],
    stacks: Sequence[Sequence[Frame]],
    events: Events,
    annotations: Sequence[Annotation],
) -> tuple[NDArray[np.int8], int]:
    """Return the phase of each allocation, and the number of those that are assumed to be of backward.

    The stack gives the phase. If the history has stacks of Python only, an allocation without a stack counts as
    backward: the threads of autograd run no Python. All other allocations in a time range of ``Optimizer.step`` are of
    the optimizer, unless a closure ran forward and backward in it, as Lightning's does.
    """
    by_stack = np.array([PHASES.index(site.phase) for site in sites], np.int8)
    phase = by_stack[lifetimes.stack]
    recorded = lifetimes.start >= 0
    has_stack = lifetimes.stack != NO_STACK
    mostly_known = 2 * np.count_nonzero(has_stack & recorded) > np.count_nonzero(recorded)
    if not mostly_known:
        return phase, 0
    assumed = np.zeros(len(lifetimes), bool)
    if all(is_python(frame) for stack in stacks for frame in stack):
        assumed = recorded & ~has_stack
        phase[assumed] = BACKWARD
    if events.time_us is not None:
        time = events.time_us[np.maximum(lifetimes.start, 0)]
        for annotation in annotations:
            if annotation.name.startswith(_STEP):
                end = annotation.end_us if annotation.end_us is not None else np.iinfo(np.int64).max
                inside = recorded & (time >= annotation.start_us) & (time <= end)
                if not np.isin(phase[inside], (FORWARD, BACKWARD)).any():
                    phase[inside] = OPTIMIZER
    return phase, int(assumed.sum())


def categorize(lifetimes: Lifetimes, phase: NDArray[np.int8], sites: Sequence[Site]) -> NDArray[np.int8]:
    """Return the category of each allocation, as an index of `CATEGORIES`.

    An allocation is kept if it is alive when the next phase starts, or when the history ends. Kept allocations of
    forward are activations, those of backward are gradients, and those of the optimizer are its state. All others are
    temporary.
    """
    category = np.full(len(lifetimes), _NUMBER["unknown"], np.int8)
    older = lifetimes.start < 0
    kept = older | (lifetimes.end >= _next_phase(lifetimes, phase)) | (lifetimes.end >= lifetimes.events)
    for number, name in _KEPT.items():
        category[(phase == number) & kept] = name
        category[(phase == number) & ~kept] = _NUMBER["temporaries"]
    category[older & (lifetimes.stack == NO_STACK)] = _NUMBER["before_recording"]
    purpose = np.array([-1 if site.purpose is None else _NUMBER[site.purpose] for site in sites], np.int8)
    told = purpose[lifetimes.stack]
    category[told >= 0] = told[told >= 0]
    return category


def _next_phase(lifetimes: Lifetimes, phase: NDArray[np.int8]) -> Integers:
    """Return the number of the first event of another phase after each allocation."""
    rows = _telling(lifetimes, phase)
    result = np.full(len(lifetimes), np.iinfo(np.int64).max)
    if not len(rows):
        return result
    starts = np.flatnonzero(np.r_[True, np.diff(phase[rows]) != 0])
    first_event = np.r_[lifetimes.start[rows[starts]], np.iinfo(np.int64).max]
    run = np.cumsum(np.r_[True, np.diff(phase[rows]) != 0]) - 1
    result[rows] = first_event[run + 1]
    return result


def step_starts(lifetimes: Lifetimes, phase: NDArray[np.int8]) -> Integers:
    """Return the events at which a forward begins after a backward or an optimizer step: where steps repeat."""
    rows = _telling(lifetimes, phase)
    if not len(rows):
        return np.empty(0, np.int64)
    order = phase[rows]
    begins = np.r_[False, (order[1:] == FORWARD) & (order[:-1] != FORWARD)]
    return lifetimes.start[rows[begins]]


def _telling(lifetimes: Lifetimes, phase: NDArray[np.int8]) -> Integers:
    """Return the recorded allocations of forward, backward and the optimizer, in order of time."""
    rows = np.flatnonzero((lifetimes.start >= 0) & (phase < OTHER))
    return rows[np.argsort(lifetimes.start[rows], kind="stable")]


BEFORE = -1
"""Start of an allocation that is older than the history."""


class Lifetimes(Struct, frozen=True):
    """The lifetime of each allocation of a device.

    An allocation is alive after event ``start`` and until event ``end``. So after event k, the allocations with
    ``start <= k < end`` are alive.

    Attributes:
        start: Number of the event that allocated it; -1 for an older allocation.
        end: Number of the event that freed it; the number of events for an allocation that is alive at the end.
        size_bytes: The bytes that were asked for.
        stack: Index of the stack that allocated it.
        kept_stacks: Allocations older than the history with a known stack: they were made while a history was recorded.
        conflicts: Events that contradict others, e.g. two allocations at one address without a free in between.
    """

    start: Integers
    end: Integers
    size_bytes: Integers
    address: Integers
    stack: Integers
    events: int
    kept_stacks: int
    conflicts: int

    def __len__(self) -> int:
        """Return the number of allocations."""
        return len(self.start)

    def levels(self, rows: NDArray[np.bool_] | None = None) -> Integers:
        """Return the bytes in use before the first event and after each event.

        Args:
            rows: The allocations to count; all of them by default.
        """
        start, end, size = (
            column if rows is None else column[rows] for column in (self.start, self.end, self.size_bytes)
        )
        change = np.zeros(self.events + 2, np.int64)
        np.add.at(change, start + 1, size)
        np.add.at(change, end + 1, -size)
        return np.cumsum(change)[: self.events + 1]

    def alive(self, moment: int) -> NDArray[np.bool_]:
        """Return which allocations are alive after an event; -1 for the moment before the first event."""
        return (self.start <= moment) & (self.end > moment)


def find_lifetimes(snapshot: Snapshot, device: int) -> Lifetimes:
    """Find the lifetime of each allocation of a device.

    A free without an allocation ends one that is older than the history, and so is a block at the end without an
    allocation.
    """
    segments, blocks, events = snapshot.segments, snapshot.blocks, snapshot.events_of(device)
    held = np.flatnonzero((blocks.state != INACTIVE) & (segments.device[blocks.segment] == device))
    rows = np.flatnonzero((events.action == Action.ALLOC) | (events.action == Action.FREE_COMPLETED))
    rows = rows[np.argsort(events.address[rows], kind="stable")]
    count = len(rows)
    address, is_alloc = events.address[rows], events.action[rows] == Action.ALLOC
    same = np.append(address[1:] == address[:-1], False)[:count]  # the next row is of the same address
    previous_same, previous_alloc = np.append(False, same)[:count], np.append(False, is_alloc)[:count]

    allocs = np.flatnonzero(is_alloc)
    # An allocation ends with the next event of its address. If that is an allocation too, its free was not recorded.
    ends = np.where(same[allocs], np.append(rows, len(events))[allocs + 1], len(events))
    unended = int((is_alloc & previous_same & previous_alloc).sum())
    lone_frees = np.flatnonzero(~is_alloc & ~(previous_same & previous_alloc))
    repeated = int(previous_same[lone_frees].sum())

    last = np.flatnonzero(is_alloc & ~same)
    older = held[~np.isin(blocks.address[held], address[last])]
    gone = int((~np.isin(address[last], blocks.address[held])).sum())
    made, freed = rows[allocs], rows[lone_frees]
    before, end = np.full(len(freed), BEFORE), np.full(len(older), len(events))
    parts = (
        (made, ends, events.size_bytes[made], events.address[made], events.stack[made]),
        (before, freed, events.size_bytes[freed], events.address[freed], np.full(len(freed), NO_STACK)),
        (
            np.full(len(older), BEFORE),
            end,
            blocks.requested_bytes[older],
            blocks.address[older],
            blocks.stack[older],
        ),
    )
    start, end, size, address, stack = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    kept_stacks = int((blocks.stack[older] != NO_STACK).sum()) if len(events) else 0
    return Lifetimes(start, end, size, address, stack, len(events), kept_stacks, unended + repeated + gone)


def replay_reserved(snapshot: Snapshot, device: int) -> Integers:
    """Return the bytes of all segments before the first event and after each event, counted back from the end."""
    at_end = int(snapshot.segments.size_bytes[snapshot.segments.device == device].sum())
    events = snapshot.events_of(device)
    sign = 1 * (events.action == Action.SEGMENT_ALLOC) - 1 * (events.action == Action.SEGMENT_FREE)
    levels: Integers = np.append(0, np.cumsum(sign * events.size_bytes))
    levels += at_end - levels[-1]
    return levels
