"""Facts about the training that exclude a fix: torch.compile, CUDA graphs or a larger batch would do harm."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis

NOT_COMPILED_TWICE = (
    "The backward pass is differentiated itself, as for forces or PINNs. torch.compile does not support that."
)
IS_COMPILED = "The model is compiled already."

MIN_COMPILED = 0.25
"""Share of compiled code in the time of operators from which the model counts as compiled. Parts that libraries compile
by themselves, e.g. attention, are below it."""

UNKNOWN_BATCHES = "The recording does not show whether the data set has more than one batch."


def compile_obstacle(analysis: RankAnalysis) -> str | None:
    """Return as a sentence why ``model = torch.compile(model)`` is no fix; None if nothing is known against it."""
    if analysis.workload.second_derivative:
        return NOT_COMPILED_TWICE
    return IS_COMPILED if analysis.workload.compiled_share >= MIN_COMPILED else None


def graph_obstacle(analysis: RankAnalysis) -> str | None:
    """Return as a sentence why CUDA graphs of ``torch.compile`` are no fix; None if nothing is known against them."""
    return NOT_COMPILED_TWICE if analysis.workload.second_derivative else None


def batches_per_epoch(analysis: RankAnalysis) -> int | None:
    """Return the batches of an epoch; None if the recording does not show them. A batch of one cannot grow."""
    loader = analysis.metadata.loader
    return loader.batches_per_epoch if loader is not None else None


def batch_can_grow(analysis: RankAnalysis) -> bool:
    """Return whether the data set has, or may have, samples for a larger batch."""
    return (batches_per_epoch(analysis) or 2) > 1
