"""The estimate of CUDA graphs, which two rules advise: from a replay by a probe, or the general range."""

from __future__ import annotations

from dataclasses import replace

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.savings import Estimated, choose_estimate, step_ns
from lightning_perf.units import format_duration

__all__ = ["GRAPH_FIX", "estimate_graphs"]

GRAPH_FIX = 'model = torch.compile(model, mode="reduce-overhead")'
"""The fix that gives a model CUDA graphs."""


def estimate_graphs(analysis: RankAnalysis, general_ns: tuple[float, float] | None, model: str) -> Estimated | None:
    """Return the saving of CUDA graphs, as `choose_estimate` does, with the replay as its reason.

    Args:
        analysis: The rank.
        general_ns: The general range of the saving; ``None`` if the rule does not apply.
        model: How the general range was estimated.
    """
    estimate = choose_estimate(analysis, "cuda-graph", general_ns, model)
    if estimate is None or estimate.basis != "probed":
        return estimate
    kept_ns = max(0.0, step_ns(analysis) - estimate.saving_ns[1])
    return replace(
        estimate,
        model="The calls of the model were replayed from a CUDA graph, on this device. A graph needs no Python and one "
        f"launch. A step then keeps at least {format_duration(kept_ns)}: the device's work, or the host's time outside "
        "of the forward and the backward pass.",
    )
