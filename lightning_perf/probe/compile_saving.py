"""Compiles the recorded calls of a step in a worker process, and estimates the saving of ``torch.compile``."""

from __future__ import annotations

import sys

from lightning_perf.analysis.model.operator_calls import OperatorCalls
from lightning_perf.probe.estimate import Errors, Saving, widen
from lightning_perf.probe.noise import Part, noise_ns
from lightning_perf.probe.replay.messages import CompiledTimes, Task
from lightning_perf.probe.worker_process import ENVIRONMENT
from lightning_perf.run_files.probe import ProbedChange
from lightning_perf.workers.process import WorkerProcess

__all__ = ["compile_calls", "estimate_compile"]

MOST_S = 600.0
"""Longest wait for the compiler."""

COMPILE_ERRORS = Errors(0.2, 0.2, 0.015)
"""Errors of the compiled calls: the compiler sees a guess of the data flow. Of the gains over 5 % of the step in
``benchmarks/results/compile_estimates.md``, four of five are inside the range with them."""


def compile_calls(task: Task) -> CompiledTimes:
    """Compile the calls of a task in a worker process, and return their times.

    Raises:
        WorkerError: The compiler failed, or takes too long.
    """
    target = "lightning_perf.probe.replay.compile_worker:main"
    with WorkerProcess(target, task, path=sys.path, environment=ENVIRONMENT) as process:
        return process.receive(CompiledTimes, timeout_s=MOST_S)


def estimate_compile(times: CompiledTimes, calls: OperatorCalls, python_ns: float) -> ProbedChange:
    """Estimate the saving of ``torch.compile``.

    The operators of the step change as the compiled calls did. At most, the Python between the operators of the forward
    pass is saved as well. At least, all of it stays, because the compiler adds checks of its own.

    Args:
        times: The times of the calls, compiled and one by one.
        calls: The recorded calls, with the times that they usually have.
        python_ns: Time of Python between operators in the forward pass.

    Returns:
        The change.
    """
    known_ns = calls.time_ns(times.places)
    part = Part(known_ns, times.eager_ns, times.compiled_ns)
    rounds = len(times.compiled_ns)
    saving = Saving(part.saving_ns, noise_ns([part]), abs(part.saving_ns), known_ns, 0.0, 0.0, rounds)
    low_ns, high_ns = widen(saving, COMPILE_ERRORS)
    return ProbedChange(
        name="compile",
        setting="torch.compile",
        saving_ns=saving.saving_ns + python_ns / 2,
        low_ns=low_ns,
        high_ns=high_ns + python_ns,
        noise_ns=saving.noise_ns,
        measured_ns=known_ns,
        rounds=rounds,
    )
