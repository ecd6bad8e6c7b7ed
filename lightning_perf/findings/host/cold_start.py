"""The rule for recordings of the very first steps."""

from __future__ import annotations

from lightning_perf.analysis.host.launches import Launches
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding
from lightning_perf.findings.savings import step_ns
from lightning_perf.units import format_duration

__all__ = ["COLD_LAUNCH_NS", "cold_start", "is_cold"]

COLD_LAUNCH_NS = 100_000
"""Mean idle time of the device per launch call from which kernels must be loading. A warm call takes 2 to 10 µs. A call
that waits for room in a full queue takes longer, but then the device works."""


def is_cold(analysis: RankAnalysis) -> bool:
    """Return whether launches are so slow that they must be loading kernels."""
    launches = analysis.launches
    return launches is not None and _mean_ns(launches) >= COLD_LAUNCH_NS


def _mean_ns(launches: Launches) -> float:
    """Return the mean time of a call that launches one kernel, as far as the device idles during it.

    Graphs are left out: their calls take longer the more kernels they have, even if these are loaded.
    """
    graphs, graph_ns = (launches.graphs.calls, launches.graphs.call_ns) if launches.graphs else (0, 0)
    single = launches.calls - graphs
    return min(launches.exposed_ns, launches.call_ns - graph_ns) / single if single > 0 else 0.0


def cold_start(analysis: RankAnalysis) -> Finding | None:
    """Find recordings of the first steps, in which kernels load and cuDNN and cuBLAS initialize.

    No saving is estimated, since only a few steps are slow.
    """
    launches = analysis.launches
    if launches is None or not is_cold(analysis) or step_ns(analysis) <= 0:
        return None
    return Finding(
        kind="cold-start",
        severity="high",
        title="Cold start: the recording covers the first steps, which are slower than later ones",
        evidence=(
            (
                f"The device idles {format_duration(_mean_ns(launches))} per launch on average. Once its kernel is "
                "loaded, a launch takes 2 to 10 µs."
            ),
        ),
        action="Record later steps: PerfCallback(skip_first=20), or with torch.profiler schedule(skip_first=20, …).",
        saving_low_ms=None,
        saving_high_ms=None,
        model="",
        rank=analysis.rank,
    )
