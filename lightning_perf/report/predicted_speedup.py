"""The speed-up that a run's report predicts for mixed precision, read without the rest of the document."""

from __future__ import annotations

from pathlib import Path

import msgspec

from lightning_perf.analysis.amp_gain import AmpGain
from lightning_perf.report.document import SCHEMA_VERSION

__all__ = ["read_predicted_speedup"]


class _ReportRank(msgspec.Struct, frozen=True):
    amp_gain: AmpGain | None = None


class _Report(msgspec.Struct, frozen=True):
    """What a record takes from a report."""

    schema_version: int
    lead: int | None
    ranks: list[_ReportRank]


def read_predicted_speedup(path: Path) -> tuple[float, float] | None:
    """Read what a run's report promises for mixed precision.

    Args:
        path: A ``report.json``.

    Returns:
        Least and most speed-up of a step; None where there is no report, no such promise in it, or one that another
        version wrote.
    """
    try:
        report = msgspec.json.decode(path.read_bytes(), type=_Report)
    except (OSError, msgspec.DecodeError):
        return None
    if report.schema_version != SCHEMA_VERSION or report.lead is None or not 0 <= report.lead < len(report.ranks):
        return None
    gain = report.ranks[report.lead].amp_gain
    return gain.speedup if gain is not None and gain.step_ns > gain.most_saving_ns else None
