"""Which rank the others wait for, and which has the most to do, in sentences."""

from __future__ import annotations

from lightning_perf.analysis.distributed import Distributed
from lightning_perf.report.words import CATEGORY_LABELS
from lightning_perf.units import format_duration, format_share

__all__ = ["who_waits"]


def who_waits(compared: Distributed | None) -> tuple[str, ...]:
    """Say which rank holds the others up and why, as far as the recordings tell.

    Args:
        compared: The ranks compared; ``None`` for a run of one.

    Returns:
        One or two sentences; none where fewer than two ranks were read.
    """
    if compared is None or len(compared.ranks) < 2:
        return ()
    straggler, awaited = compared.straggler, compared.awaited
    lines = []
    if straggler is not None:
        name = CATEGORY_LABELS.get(straggler.category, straggler.category)
        waited = awaited is not None and awaited.rank == straggler.rank
        lines.append(
            f"Rank {straggler.rank} {'is what others wait for' if waited else 'has the most work of its own'}: "
            f"{format_duration(straggler.excess_ns)} a step more in {name}; evenly spread, a step would take "
            f"{format_duration(compared.balanced_saving_ns)} less."
        )
    if awaited is not None and (straggler is None or awaited.rank != straggler.rank):
        line = (
            f"In collectives the others wait longest for rank {awaited.rank}: {format_duration(awaited.wait_ns)} a "
            f"step, {format_share(awaited.share)} of all waits."
        )
        if awaited.late_ns is not None:
            line += (
                f" It began the recording {format_duration(awaited.late_ns)} after the first rank, for a reason that "
                "lies before it."
            )
        lines.append(line)
    if not lines:
        who = "None of the ranks that were read" if compared.missing_ranks else "No rank"
        lines.append(f"{who} keeps the others waiting.")
    return tuple(lines)
