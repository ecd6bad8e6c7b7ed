"""Estimates the saving of CUDA graphs from a replay of the step's calls: waits that vanish, and shorter gaps."""

from __future__ import annotations

from lightning_perf.analysis.host.host_pace import StepFloor
from lightning_perf.analysis.model.operator_calls import OperatorCalls
from lightning_perf.probe.noise import Part, lower_quartile, noise_ns
from lightning_perf.probe.replay.messages import GraphTimes
from lightning_perf.run_files.probe import ProbedChange

__all__ = ["estimate_graph"]

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
        times: The times of the replay.
        calls: The recorded calls, with times of the device.
        floor: The time that the step keeps.
        step_ns: The step time of the recording.
        added_ns: Time that the profiler adds to a step; ``None`` if it is unknown. Then the least saving is at most the
            wait in the probe, which ran without the profiler and without the Python of a training.

    Returns:
        The change.
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
