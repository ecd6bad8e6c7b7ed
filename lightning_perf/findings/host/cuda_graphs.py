"""The estimate of CUDA graphs, which two rules advise: from a replay by a probe, or the general range."""

from __future__ import annotations

from dataclasses import replace

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.savings import Estimated, choose_estimate

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
    return replace(
        estimate,
        model="The calls of the model were replayed from a CUDA graph, on this device. At least the waits for launches "
        "in the forward and the backward pass vanish, and at most all of them.",
    )
