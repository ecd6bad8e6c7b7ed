"""The recording is of the very first steps, which no training is made of."""

from __future__ import annotations

from lightning_perf.analysis.host.launches import Launches
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding
from lightning_perf.findings.savings import step_ns
from lightning_perf.units import format_duration

__all__ = ["COLD_LAUNCH_NS", "cold_start", "is_cold"]

COLD_LAUNCH_NS = 100_000
"""Mean time that the device idles through a launch call and that only the loading of kernels explains; a warm call
takes 2 to 10 µs. One that waits for room in a full queue takes longer, but then the device works."""


def is_cold(analysis: RankAnalysis) -> bool:
    """Whether launches are so slow that they must be loading kernels."""
    launches = analysis.launches
    return launches is not None and _mean_ns(launches) >= COLD_LAUNCH_NS


def _mean_ns(launches: Launches) -> float:
    """Mean call that launches one kernel, as far as the device idles meanwhile.

    A graph's takes longer the more kernels it has, however warm they are.
    """
    graphs, graph_ns = (launches.graphs.calls, launches.graphs.call_ns) if launches.graphs else (0, 0)
    single = launches.calls - graphs
    return min(launches.exposed_ns, launches.call_ns - graph_ns) / single if single > 0 else 0.0


def cold_start(analysis: RankAnalysis) -> Finding | None:
    """Find recordings of the first steps: kernels load at their first launch, and cuDNN and cuBLAS set themselves up.

    No saving is predicted, since such steps are few.
    """
    launches = analysis.launches
    if launches is None or not is_cold(analysis) or step_ns(analysis) <= 0:
        return None
    return Finding(
        kind="cold-start",
        severity="high",
        title="The first steps were recorded: the figures are not those of the training",
        evidence=(
            (
                f"For a launch the device idles {format_duration(_mean_ns(launches))} on average; once its kernel is "
                "loaded a launch takes 2 to 10 µs."
            ),
        ),
        action="Record later steps: PerfCallback(skip_first=…), or schedule(skip_first=…, warmup=…) of torch.profiler.",
        saving_low_ms=None,
        saving_high_ms=None,
        model="",
        rank=analysis.rank,
    )
