"""Which phase of a step a host mark names: our own ranges, PyTorch's, and those of Lightning's profiler."""

from __future__ import annotations

import re

import numpy as np

from lightning_perf.trace.columns import Spans
from lightning_perf.trace.trace import Trace

__all__ = ["OWN_PREFIX", "PHASES", "has_own_marks", "is_backward_node", "mark_phase", "marks_by_phase"]

PHASES = ("fetch", "transfer", "forward", "backward", "optimizer", "validation", "checkpoint", "other")
"""The phases of a step, in the order they are shown. ``other`` is time that no phase claims."""

OWN_PREFIX = "perf::"
"""What the names of `PerfCallback`'s ranges begin with; the phase follows."""

# A rule is a phase and what a mark's name must match, tried in this order. `torch.utils.data` wraps `__next__` of its
# iterators (`enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__`, also `enumerate(DataPipe)#…`) and
# `torch.optim.Optimizer` its `step` and `zero_grad`. `lightning.pytorch.profilers.PyTorchProfiler` puts `[pl][profile]`
# (1.x: also `[pl]`) before the names of its actions: `[_TrainingEpochLoop].train_dataloader_next`,
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
    """The phase that a mark names, or ``None`` for any other annotation.

    Example:
        >>> mark_phase("perf::forward"), mark_phase("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__")
        ('forward', 'fetch')
        >>> mark_phase("ProfilerStep#3") is None
        True
    """
    if name.startswith(OWN_PREFIX):
        phase = name[len(OWN_PREFIX) :].split("#")[0]
        return phase if phase in PHASES else None
    return next((phase for phase, pattern in _RULES if pattern.search(name)), None)


def is_backward_node(name: str) -> bool:
    """Whether an operator is a node of the backward graph that the autograd engine runs.

    Example:
        >>> is_backward_node("autograd::engine::evaluate_function: AddmmBackward0"), is_backward_node("aten::addmm")
        (True, False)
    """
    return _BACKWARD_NODE.search(name) is not None


def has_own_marks(trace: Trace) -> bool:
    """Whether the recording has ranges of `PerfCallback`."""
    named = (trace.names[code] for code in np.unique(trace.annotations.name))
    return any(name.startswith(OWN_PREFIX) and mark_phase(name) is not None for name in named)


def marks_by_phase(trace: Trace) -> dict[str, Spans]:
    """The annotations that name a phase, by phase.

    In a recording that has ranges of ours, only ours count: a stranger's marks would tell the same time twice, and less
    exactly.

    Args:
        trace: The recording.

    Returns:
        The marks of each phase that has any, on all threads.
    """
    table = trace.annotations
    named = {int(code): trace.names[code] for code in np.unique(table.name)}
    if has_own_marks(trace):
        named = {code: name for code, name in named.items() if name.startswith(OWN_PREFIX)}
    phase_of = {code: phase for code, name in named.items() if (phase := mark_phase(name)) is not None}
    marks = {}
    for phase in dict.fromkeys(phase_of.values()):
        rows = np.isin(table.name, [code for code, its in phase_of.items() if its == phase])
        marks[phase] = Spans(table.start_ns[rows], table.end_ns[rows], table.name[rows], table.thread[rows])
    return marks
