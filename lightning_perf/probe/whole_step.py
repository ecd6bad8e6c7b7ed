"""Estimates the saving of running a step's calls as one: in a CUDA graph, or compiled by ``torch.compile``."""

from __future__ import annotations

import sys

from lightning_perf.analysis.host.host_pace import StepFloor
from lightning_perf.analysis.model.operator_calls import OperatorCalls
from lightning_perf.probe.estimate import Errors, Saving, widen
from lightning_perf.probe.noise import Part, lower_quartile, noise_ns
from lightning_perf.probe.replay.messages import CompiledTimes, GraphTimes, Task
from lightning_perf.probe.worker_process import ENVIRONMENT
from lightning_perf.run_files.probe import ProbedChange
from lightning_perf.workers.process import WorkerProcess

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
    target = "lightning_perf.probe.replay.call_graph:main"
    with WorkerProcess(target, task, path=sys.path, environment=ENVIRONMENT) as process:
        return process.receive(CompiledTimes, timeout_s=MOST_S)


def estimate_compile(times: CompiledTimes, calls: OperatorCalls, python_ns: float) -> ProbedChange:
    """Estimate the saving of ``torch.compile``.

    The operators of the step change as the compiled calls did. At most, the Python between the operators of the forward
    pass is saved as well. At least, all of it stays, because the compiler adds checks of its own.

    Args:
        python_ns: Time of Python between operators in the forward pass.
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


GRAPH_ERROR = 0.2
"""Share by which a saving may be smaller. On the simulated device of the tests it was 0 to 15 % smaller."""

WAITS_OF_STEP = 0.5
"""Waits of the host for the device, per step, from which it counts as unable to get ahead."""


def estimate_graph(
    times: GraphTimes, calls: OperatorCalls, floor: StepFloor, step_ns: float, added_ns: float | None
) -> ProbedChange:
    """Estimate the saving of CUDA graphs of the model.

    The host takes next to no time for a graph and gets ahead of the device. A step then takes as long as the device
    works, or as long as the host needs outside of the model. At most, that is saved. A host that waits for the device
    in each step cannot get ahead: at least, the step then takes as long as both together. Long gaps of the device may
    stay, and a part of the model's calls outside of the graph. The replay also shows how much shorter the gaps between
    kernels are.

    Args:
        added_ns: Time that the profiler adds to a step; ``None`` if it is unknown. Then the least saving is at most the
            wait in the probe, which ran without the profiler and without the Python of a training.
    """
    usual_ns = step_ns - (added_ns or 0.0)
    most_ns = max(0.0, usual_ns - max(floor.outside_ns, floor.busy_ns))
    host_ns = floor.outside_ns + floor.long_ns
    kept_ns = max(host_ns, floor.busy_ns) if floor.waits_for_device < WAITS_OF_STEP else host_ns + floor.busy_ns
    least_ns = max(0.0, usual_ns - kept_ns)
    if added_ns is None:
        least_ns = min(least_ns, max(0.0, lower_quartile(times.launched_ns) - lower_quartile(times.queued_ns)))
    held = len(times.places) / len(calls.order)
    device_ns = calls.time_ns(times.places)
    part = Part(device_ns, times.queued_ns, times.replayed_ns)
    gaps_ns, noise = part.saving_ns, noise_ns([part])
    low_ns = (1.0 - GRAPH_ERROR) * held * least_ns + gaps_ns - noise
    high_ns = most_ns + gaps_ns + noise
    return ProbedChange(
        name="cuda-graph",
        setting="CUDA graphs",
        saving_ns=(low_ns + high_ns) / 2,
        low_ns=low_ns,
        high_ns=high_ns,
        noise_ns=noise,
        measured_ns=device_ns,
        rounds=len(times.replayed_ns),
    )
