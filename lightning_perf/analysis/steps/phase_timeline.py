"""The phase of the training loop that the host is in, at any instant of a trace."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from lightning_perf.analysis.core.intervals import EMPTY, Intervals, cached_per_trace, merge, subtract, union
from lightning_perf.trace.columns import NO_ROW, BoolArray, Int64Array, Spans, matched_part
from lightning_perf.trace.trace import Trace

PHASES = ("fetch", "transfer", "forward", "backward", "optimizer", "validation", "checkpoint", "other")
"""The phases of a step, in the order in which they are shown. ``other`` is time outside of all phases."""

OWN_PREFIX = "perf::"
"""The prefix of `PerfCallback`'s ranges. The phase follows."""

# A rule is a phase and a pattern for the names of marks, tried in this order. PyTorch wraps `__next__` of its loaders'
# iterators (`enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__`, also `enumerate(DataPipe)#…`). It also wraps
# `step` and `zero_grad` of its optimizers. Lightning's `PyTorchProfiler` puts `[pl][profile]` (1.x: also `[pl]`) before
# the names of its actions. Such names are `[_TrainingEpochLoop].train_dataloader_next`,
# `[Strategy]SingleDeviceStrategy.batch_to_device`, `[LightningModule]Net.optimizer_step`, …
_RULES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("fetch", re.compile(r"^enumerate\(Data(Loader|Pipe)\)#")),
    ("optimizer", re.compile(r"^Optimizer\.(step|zero_grad)#")),
    ("checkpoint", re.compile(r"^\[pl\].*(save_checkpoint|ModelCheckpoint.*\.on_)")),
    ("validation", re.compile(r"^\[pl\].*(val_next|\.validation_step|run_evaluation|_validation_)")),
    ("fetch", re.compile(r"^\[pl\].*(train_dataloader_next|get_train_batch|predict_next|test_next)")),
    ("transfer", re.compile(r"^\[pl\].*(batch_to_device|_transfer_batch)")),
    ("backward", re.compile(r"^\[pl\].*(\.|\])(backward|run_training_batch_backward)$")),
    ("forward", re.compile(r"^\[pl\].*\.(training_step|predict_step|test_step)$")),
    ("optimizer", re.compile(r"^\[pl\].*(optimizer_step|optimizer_zero_grad|configure_gradient_clipping)")),
)

_BACKWARD_NODE = re.compile(r"^autograd::engine::evaluate_function|Backwards?\d*$|torch::autograd::AccumulateGrad$")


def mark_phase(name: str) -> str | None:
    """Return the phase that a mark names, or ``None`` for any other annotation."""
    if name.startswith(OWN_PREFIX):
        phase = name[len(OWN_PREFIX) :].split("#")[0]
        return phase if phase in PHASES else None
    return next((phase for phase, pattern in _RULES if pattern.search(matched_part(name))), None)


def is_backward_node(name: str) -> bool:
    """Return whether an operator is a node of the backward graph that the autograd engine runs."""
    return _BACKWARD_NODE.search(matched_part(name)) is not None


def has_own_marks(trace: Trace) -> bool:
    """Return whether the recording has ranges of `PerfCallback`."""
    named = (trace.names[code] for code in np.unique(trace.annotations.name))
    return any(name.startswith(OWN_PREFIX) and mark_phase(name) is not None for name in named)


def marks_by_phase(trace: Trace) -> dict[str, Spans]:
    """Return the annotations that name a phase, by phase.

    In a recording with ranges of `PerfCallback`, only those count: marks of others would count the same time twice, and
    less exactly.
    """
    table = trace.annotations
    named = {int(code): trace.names[code] for code in np.unique(table.name)}
    if has_own_marks(trace):
        named = {code: name for code, name in named.items() if name.startswith(OWN_PREFIX)}
    phase_of = {code: phase for code, name in named.items() if (phase := mark_phase(name)) is not None}
    marks = {}
    for phase in dict.fromkeys(phase_of.values()):
        marks[phase] = table.at(np.isin(table.name, [code for code, its in phase_of.items() if its == phase]))
    return marks


_OTHER = PHASES.index("other")

# Where marks are nested, the inner one counts. An optimizer's step runs the closure, with forward and backward in it.
# Validation runs a loop of its own. A fetch may move the batch.
_INNERMOST_FIRST = ("checkpoint", "validation", "transfer", "fetch", "backward", "forward", "optimizer")


@cached_per_trace
def host_phases(trace: Trace) -> dict[str, Intervals]:
    """Return when the host is in each phase.

    The ranges of `PerfCallback` are taken unchanged. In other recordings, the backward is also where the autograd
    engine runs nodes. The forward, unless marks name it, is where the training thread runs operators before the last
    backward of the step and outside other marks. A pause in either counts with it as long as the training thread begins
    nothing else in it.
    """
    found = dict.fromkeys(_INNERMOST_FIRST, EMPTY)
    of_phase = marks_by_phase(trace)
    for name, marks in of_phase.items():
        if name in found:
            # Only the training thread waits for its batch; a loader's own thread does not.
            rows = marks.thread == trace.steps.thread if name == "fetch" else np.ones(len(marks), dtype=np.bool_)
            found[name] = merge(marks.start_ns[rows], marks.end_ns[rows])
    if not has_own_marks(trace):
        node = trace.names_where(is_backward_node)[trace.operators.name]
        own = (trace.operators.thread == trace.steps.thread) & ~node
        found["backward"] = union(found["backward"], _backward(trace, node, own))
        if not len(found["forward"]):
            found["forward"] = _forward(trace, own, found, of_phase.get("optimizer"))
    claimed = EMPTY
    for name, active in found.items():
        found[name] = subtract(active, claimed)
        claimed = union(claimed, active)
    return found


@cached_per_trace
def phase_timeline(trace: Trace) -> tuple[Int64Array, NDArray[np.int8]]:
    """Return the host's phase over time: ascending starts, and the place in `PHASES` of the phase from each on."""
    begins, codes = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int8)]
    for name, active in host_phases(trace).items():
        begins += [active.start_ns, active.end_ns]
        codes += [np.full(len(active), PHASES.index(name), dtype=np.int8), np.full(len(active), _OTHER, dtype=np.int8)]
    begin, phase = np.concatenate(begins), np.concatenate(codes)
    # Where one phase ends and another begins at the same instant, the start comes last and so counts from there on.
    order = np.lexsort((phase != _OTHER, begin))
    return begin[order], phase[order]


def phases_at(trace: Trace, time_ns: Int64Array) -> NDArray[np.int8]:
    """Return the phase that the host is in at each instant, as a place in `PHASES`."""
    begin, phase = phase_timeline(trace)
    row = np.searchsorted(begin, time_ns, side="right")
    found: NDArray[np.int8] = np.append(phase, np.int8(_OTHER))[row - 1]  # row 0 reads the appended entry
    return found


@cached_per_trace
def launch_phases(trace: Trace) -> NDArray[np.int8]:
    """Return for each device row the phase of the host at its launch call, as a place in `PHASES`."""
    call = trace.links.device_runtime
    launched = np.full(len(call), _OTHER, dtype=np.int8)
    known = call != NO_ROW
    launched[known] = phases_at(trace, trace.runtime.start_ns[call[known]])
    return launched


def _backward(trace: Trace, node: BoolArray, own: BoolArray) -> Intervals:
    """Return when the autograd engine runs its nodes."""
    nodes = merge(trace.operators.start_ns[node], trace.operators.end_ns[node])
    training = trace.annotations.thread == trace.steps.thread
    starts = np.concatenate((trace.operators.start_ns[own], trace.annotations.start_ns[training]))
    starts.sort()
    return _close_gaps(nodes, starts)


def _forward(trace: Trace, own: BoolArray, found: dict[str, Intervals], optimizer: Spans | None) -> Intervals:
    """Return when the training thread runs operators before the last backward of the step, outside other phases."""
    backward, plain = found["backward"], EMPTY
    if optimizer is not None:
        # An optimizer's step that runs the backward is running the closure, and so the forward too.
        closure = backward.covered(optimizer.start_ns, optimizer.end_ns) > 0
        plain = merge(optimizer.start_ns[~closure], optimizer.end_ns[~closure])
    others = union(plain, *(active for name, active in found.items() if name not in ("forward", "optimizer")))
    work = subtract(merge(trace.operators.start_ns[own], trace.operators.end_ns[own]), others)
    steps = trace.steps
    work = _close_gaps(work, np.sort(np.concatenate((others.start_ns, steps.start_ns, steps.end_ns))))
    # The last backward that begins in each step ends the forward. A step without one is all forward (inference).
    last = np.searchsorted(backward.start_ns, steps.end_ns, side="left") - 1
    has = (last >= 0) & (backward.start_ns[np.maximum(last, 0)] >= steps.start_ns) if len(backward) else last >= 0
    until = steps.end_ns.copy()
    until[has] = backward.start_ns[last[has]]
    step = np.searchsorted(steps.start_ns, work.start_ns, side="right") - 1
    keep = (step >= 0) & (work.start_ns < until[np.maximum(step, 0)])
    return Intervals(work.start_ns[keep], work.end_ns[keep])


def _close_gaps(active: Intervals, starts_ns: Int64Array) -> Intervals:
    """Join neighbouring intervals when nothing starts between them (``starts_ns`` ascending)."""
    if len(active) < 2:
        return active
    gap_start, gap_end = active.end_ns[:-1], active.start_ns[1:]
    apart = np.searchsorted(starts_ns, gap_end, side="left") > np.searchsorted(starts_ns, gap_start, side="left")
    return Intervals(active.start_ns[np.concatenate(([True], apart))], active.end_ns[np.concatenate((apart, [True]))])
