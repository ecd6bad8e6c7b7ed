"""The speed-up that a run's report predicts for mixed precision, read without the rest of the document."""

from __future__ import annotations

from pathlib import Path

import msgspec

from lightning_perf.analysis.amp_gain import AmpGain
from lightning_perf.report.document import SCHEMA_VERSION
from lightning_perf.run_files.report import read_report_fields

__all__ = ["read_predicted_speedup"]


class _ReportRank(msgspec.Struct, frozen=True):
    amp_gain: AmpGain | None = None


class _Report(msgspec.Struct, frozen=True):
    """What a record takes from a report."""

    schema_version: int
    lead: int | None
    ranks: list[_ReportRank]


def read_predicted_speedup(folder: Path) -> tuple[float, float] | None:
    """Read the speed-up that a run's report predicts for mixed precision.

    Args:
        folder: The folder of the run.

    Returns:
        Least and most speed-up of a step; None if there is no report of the present version, or no prediction in it.
    """
    report = read_report_fields(folder, _Report)
    if report is None or report.schema_version != SCHEMA_VERSION:
        return None
    if report.lead is None or not 0 <= report.lead < len(report.ranks):
        return None
    gain = report.ranks[report.lead].amp_gain
    return gain.speedup if gain is not None and gain.step_ns > gain.most_saving_ns else None
