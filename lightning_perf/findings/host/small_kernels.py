"""The rule for kernels that are so short that starting them costs the device as much as running them."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.exclusions import compile_obstacle, graph_obstacle
from lightning_perf.findings.finding import Basis, Finding, finding
from lightning_perf.findings.savings import (
    GRAPH_FIX,
    Estimated,
    choose_graph_estimate,
    counted,
    each,
    step_ns,
    worth_it,
)
from lightning_perf.units import format_duration, format_share

MIN_SHORT_SHARE = 0.5
"""Share of short kernels from which fusing them helps."""

REPLAY = f"Replay them from a CUDA graph: {GRAPH_FIX}"
FUSE = "Fuse them: model = torch.compile(model)."
_ACTIONS: dict[Basis, str] = {
    "recording": FUSE,
    "general": f'{FUSE} With mode="reduce-overhead" they are also replayed as a CUDA graph.',
    "probed": f"{REPLAY}. It also fuses kernels, which may save more.",
}
"""The fix by the basis of the estimate. If a graph saves nothing, fusing is left."""

MAX_GAP_NS = 5_000
"""Longest time from one queued kernel to the next; usually it is about 1 µs. Longer gaps have other reasons: a wait for
another stream, or another process on the device."""


def small_kernels(analysis: RankAnalysis) -> Finding | None:
    """Find steps of many short kernels with gaps that add up, although the host launches the kernels in time.

    Model: fused or replayed from a graph, kernels leave no gaps. Fusing also saves up to half of the short kernels' own
    time, since most of it is reading and writing memory. If most kernels are replayed from a graph already, only fusing
    is left, and nothing if the model is compiled. A probe that replayed the calls from a CUDA graph narrows the range.
    """
    launches, idle = analysis.launches, analysis.idle
    if launches is None or idle is None or not launches.kernels or graph_obstacle(analysis) is not None:
        return None
    if launches.launch_bound is None or launches.launch_bound.bound:
        return None  # a truncated file, or the host is the reason: see `launch-bound`
    short = launches.short_kernels / launches.kernels
    steps = max(launches.steps, 1)
    idle_ns = next((row.total_ns for row in idle.classes if row.name == "kernel_gap"), 0) / steps
    gap_ns = min(idle_ns, MAX_GAP_NS * launches.kernels / steps)
    kernel_ns = launches.short_kernel_ns / steps
    replayed = launches.graphs is not None and launches.graphs.kernels >= launches.kernels / 2
    if replayed and compile_obstacle(analysis) is not None:
        return None  # fused and in a graph: nothing is left to do
    if short < MIN_SHORT_SHARE or not worth_it(gap_ns + kernel_ns / 2, analysis):
        return None
    general_ns = (0.0 if replayed else gap_ns / 2, gap_ns + kernel_ns / 2)  # in a graph, gaps are minimal
    estimate = _estimate(analysis, general_ns, kernel_ns / 2, replayed=replayed)
    if estimate is None:
        return None
    return finding(
        "small-kernels",
        f"Many small kernels: {format_share(short)} of {counted(launches.kernels / steps, 'kernel')} {each(analysis)} "
        "are shorter than 10 µs",
        (
            (
                f"They run {format_duration(kernel_ns)} {each(analysis)}, and the device idles "
                f"{format_duration(gap_ns)} between kernels that were queued in time."
            ),
        ),
        _ACTIONS[estimate.basis]
        if compile_obstacle(analysis) is None
        else f"Replay them from a CUDA graph: {GRAPH_FIX}.",
        saving_ns=estimate.saving_ns,
        step_ns=step_ns(analysis),
        model=estimate.model,
        basis=estimate.basis,
        rank=analysis.rank,
    )


def _estimate(
    analysis: RankAnalysis, general_ns: tuple[float, float], fusing_ns: float, *, replayed: bool
) -> Estimated | None:
    """Return the saving: that of a replay by a probe, or the general range.

    Args:
        analysis: The rank.
        general_ns: The general range.
        fusing_ns: Most kernel time that fusing saves.
        replayed: Whether most kernels are replayed from a graph already.
    """
    least = "nothing" if replayed else "half of the gaps"
    model = f"At least {least}, at most all gaps and half of the short kernels' own time."
    if replayed:
        return Estimated(general_ns, model, "recording")
    estimate = choose_graph_estimate(analysis, general_ns, model)
    if estimate is None and worth_it(fusing_ns, analysis) and compile_obstacle(analysis) is None:
        model = (
            "A replay from a CUDA graph saved next to nothing, on this device. Fusing saves at most half of the short "
            "kernels' own time."
        )
        return Estimated((0.0, fusing_ns), model, "recording")
    return estimate
