"""Find the use of each allocation, from the phase that made it and from its lifetime."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lightning_perf.memory_snapshot.lifetimes import Lifetimes
from lightning_perf.memory_snapshot.snapshot import NO_STACK, Annotation, Events, Frame
from lightning_perf.memory_snapshot.stacks import Site, is_python

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
