"""The rule for devices that wait for the host to launch work."""

from __future__ import annotations

from lightning_perf.analysis.host.launches import LAUNCH_BOUND_SHARE
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.exclusions import batch_can_grow, compile_obstacle, graph_obstacle
from lightning_perf.findings.finding import MIN_SHARE, Basis, Finding, finding
from lightning_perf.findings.host.cold_start import is_cold
from lightning_perf.findings.host.small_kernels import small_kernels
from lightning_perf.findings.savings import GRAPH_FIX, Estimated, choose_graph_estimate, counted, each, step_ns, whole
from lightning_perf.units import format_duration, format_share

FUSION_SAVES = 0.3
GRAPHS_SAVE = 0.9
"""Shares of the wait that are saved: fusing keeps most launches, and a replayed graph keeps one of hundreds."""


def launch_bound(analysis: RankAnalysis) -> Finding | None:
    """Find steps in which the device has an empty queue because the host is still issuing operators.

    Model: fusing operators saves about a third of the host's work, replaying CUDA graphs nearly all of it. The work of
    the device stays the same. A probe that replayed the calls from a CUDA graph narrows this range, and it may find a
    gain where the waits are short.
    """
    launches = analysis.launches
    if launches is None or launches.launch_bound is None or not launches.calls or is_cold(analysis):
        return None
    bound = launches.launch_bound
    steps = max(launches.steps, 1)
    # Requests for memory are among these calls, and the rule `allocator` covers them.
    operator_ns = max(0.0, bound.operator_ns / steps - (analysis.breakdown.category("runtime_alloc").mean_ns or 0.0))
    waiting_ns = (bound.launch_ns + bound.python_ns) / steps + operator_ns
    share = waiting_ns / step_ns(analysis) if step_ns(analysis) else 0.0
    short = launches.short_kernels / launches.kernels if launches.kernels else 0.0
    is_bound = share >= LAUNCH_BOUND_SHARE
    if not is_bound and (share < MIN_SHARE or small_kernels(analysis) is not None):
        return None
    estimate = _estimate(analysis, waiting_ns if is_bound else None)
    if estimate is None:
        return None
    obstacle = compile_obstacle(analysis)
    return finding(
        "launch-bound",
        f"Launch-bound: the device waits {format_share(share)} of {whole(analysis)} for the host to launch work",
        (
            (
                f"{counted(launches.calls / steps, 'launch', 'launches')} {each(analysis)}, "
                f"{counted(launches.kernels / steps, 'kernel')}, {format_share(short)} of them shorter than 10 µs."
            ),
            (
                f"With an empty queue, the device waits {format_duration(bound.launch_ns / steps)} for launch calls, "
                f"{format_duration(operator_ns)} for operators and "
                f"{format_duration(bound.python_ns / steps)} for the Python between them."
            ),
            *((obstacle,) if obstacle is not None else ()),
        ),
        _action(analysis, estimate.basis),
        saving_ns=estimate.saving_ns,
        step_ns=step_ns(analysis),
        model=estimate.model,
        basis=estimate.basis,
        rank=analysis.rank,
    )


def _estimate(analysis: RankAnalysis, waiting_ns: float | None) -> Estimated | None:
    """Return the saving, if it is worth reporting. Leave out a wait that is too short for a general range."""
    if graph_obstacle(analysis) is not None:
        # The calls of a probe are differentiated once, so its replay says nothing about this training.
        model = "Fewer operators and launches save time, by an unknown amount."
        return None if waiting_ns is None else Estimated((0.0, GRAPHS_SAVE * waiting_ns), model, "general")
    return choose_graph_estimate(
        analysis,
        None if waiting_ns is None else (FUSION_SAVES * waiting_ns, GRAPHS_SAVE * waiting_ns),
        "Fusing operators saves about a third of that wait, CUDA graphs nearly all of it.",
    )


def _action(analysis: RankAnalysis, basis: Basis) -> str:
    """Return the fix without excluded parts: CUDA graphs if a probe measured them or the model is compiled."""
    batch = " If memory and the data set allow, raise batch_size." if batch_can_grow(analysis) else ""
    if graph_obstacle(analysis) is not None:
        return f"Give the device more work per launch: use fewer, larger operators.{batch}"
    if basis == "probed":
        fix = f"Replay the model from CUDA graphs: {GRAPH_FIX}.{batch}"
    elif compile_obstacle(analysis) is not None:
        fix = f'Replay the compiled model from CUDA graphs: torch.compile(model, mode="reduce-overhead").{batch}'
    else:
        fix = (
            "Give the device more work per launch: model = torch.compile(model), or torch.compile(model, "
            f'mode="reduce-overhead") for CUDA graphs.{batch}'
        )
    launches = analysis.launches
    if launches is not None and launches.graphs is not None:
        fix += " Some work is in graphs already: capture the rest, too."
    return fix
