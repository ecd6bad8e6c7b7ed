"""The rule for batches of token sequences that are largely padding."""

from __future__ import annotations

from lightning_perf.analysis.host.host_pace import bounded_by_host
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import each, step_ns, worth_it
from lightning_perf.units import format_count, format_duration, format_share

__all__ = ["padding"]

LEAST_REMOVED = 0.5
"""Least share of the padding that a better batch avoids: that of batches of similar length in large buckets."""

BEYOND_LONGEST = 0.5
"""From this share of the padding on, it is enough to pad each batch to its own longest sequence."""


def padding(analysis: RankAnalysis) -> Finding | None:
    """Find batches in which much of the compute is spent on padding.

    Model: forward and backward take time in proportion to the tokens of the batch, and attention at most in proportion
    to their square. A better batch avoids half to all of the padding.
    """
    model = analysis.language_model
    if model is None or not model.padding or model.beyond_longest is None:
        return None
    category = "device_compute" if analysis.breakdown.has_device else "host_compute"
    busy_ns = sum(analysis.phases.time_ns(phase, category) or 0.0 for phase in ("forward", "backward"))
    found = analysis.attention
    attention_ns = sum(kind.time_ns for kind in found.kinds) / found.steps if found is not None else 0.0
    linear_ns = model.padding * busy_ns
    square_ns = model.padding * (1 - model.padding) * min(attention_ns, busy_ns)
    saving_ns = LEAST_REMOVED * linear_ns, linear_ns + square_ns
    if analysis.breakdown.has_device:
        saving_ns = bounded_by_host(*saving_ns, step_ns(analysis), analysis.host_pace)
    if not worth_it(saving_ns[1], analysis):
        return None
    wasted = format_count(model.padding * model.tokens_per_step)
    evidence = [
        (
            f"About {wasted} of {format_count(model.tokens_per_step)} tokens per step are padding. Forward and "
            f"backward compute for {format_duration(busy_ns)} {each(analysis)}, for padding as for any other token."
        )
    ]
    if model.beyond_longest >= BEYOND_LONGEST * model.padding:
        evidence.append(
            f"Most of it is not needed: {format_share(model.beyond_longest)} of the tokens lie beyond the longest "
            "sequence of their batch."
        )
        action = (
            "Pad each batch to its own longest sequence in collate_fn instead of a fixed length, e.g. with "
            "torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)."
        )
    else:
        action = (
            "Pack several sequences into each row, or batch sequences of similar length: DataLoader(…, "
            "batch_sampler=…) with a sampler that sorts by length within large buckets."
        )
    return finding(
        "padding",
        f"Padding: {format_share(model.padding)} of the tokens in a batch are padding",
        evidence,
        action,
        saving_ns=saving_ns,
        step_ns=step_ns(analysis),
        model="Forward and backward take time in proportion to the tokens, attention up to their square. Packing "
        "removes all padding, and batches of similar length at least half of it. A step keeps its real tokens.",
        rank=analysis.rank,
    )
