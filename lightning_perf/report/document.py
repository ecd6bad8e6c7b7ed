"""`PerfReport`: the versioned document that every renderer shows. Typed, JSON on disk, and complete in itself."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from lightning_perf.analysis.distributed import Distributed
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.step_times import StepTimes
from lightning_perf.analysis.trust import Trust
from lightning_perf.findings.finding import Finding
from lightning_perf.report.captured import Captured
from lightning_perf.run_files.precision import RunPrecision

__all__ = ["SCHEMA_VERSION", "PerfReport", "ReportError", "Verdict", "from_json", "to_json"]

SCHEMA_VERSION = 1
"""Version of the document's layout: raised by every change that an old reader would misread."""


class ReportError(ValueError):
    """A document could not be read as a report; the message says why."""


@dataclass(frozen=True)
class Verdict:
    """The answer in three parts, a sentence or two each.

    Attributes:
        where: Where the time goes.
        why: Why it goes there.
        next: What to do next.
    """

    where: str
    why: str
    next: str


@dataclass(frozen=True)
class PerfReport:
    """What is known of one run.

    Attributes:
        schema_version: `SCHEMA_VERSION` of the writer.
        tool_version: Version of lightning_perf that wrote it.
        sources: The trace files it was made from.
        verdict: Where the time goes, why, and what next.
        notes: What a reader must know before trusting the figures: missing ranks, unreadable files, no step marks.
        findings: Causes of lost time, the most to save first.
        lead: Row in ``ranks`` of the one that the verdict speaks of, which others wait for or which is the slowest;
            ``None`` when nothing was recorded.
        ranks: The analyses of each rank.
        distributed: The ranks compared; ``None`` for a run of one.
        step_times: Step times by the always-on timer, ``None`` when there was none.
        precision: The run's precision and what it did to the numbers, ``None`` when nothing was recorded of it.
        trust: How far the recording can be trusted; ``None`` when nothing was recorded.
        captures: Windows outside of the schedule, because steps turned slow or somebody asked.
        who_waits: Which rank the others wait for and which has the most to do, in sentences; empty for a run of one.
    """

    schema_version: int
    tool_version: str
    sources: tuple[str, ...]
    verdict: Verdict
    notes: tuple[str, ...]
    findings: tuple[Finding, ...]
    lead: int | None
    ranks: tuple[RankAnalysis, ...]
    distributed: Distributed | None
    step_times: StepTimes | None = None
    precision: RunPrecision | None = None
    trust: Trust | None = None
    captures: tuple[Captured, ...] = ()
    who_waits: tuple[str, ...] = ()


def to_json(report: PerfReport, *, indent: int | None = None) -> bytes:
    """Encode a report as UTF-8 JSON.

    Args:
        report: The report.
        indent: Spaces a level, or ``None`` for one line.
    """
    data = msgspec.json.encode(report)
    return data if indent is None else msgspec.json.format(data, indent=indent)


def from_json(data: bytes | str) -> PerfReport:
    """Decode a report, checking every field's type.

    Args:
        data: What `to_json` wrote.

    Raises:
        ReportError: The data is no report, or one of another schema version.
    """
    try:
        version = msgspec.json.decode(data, type=_Head).schema_version
    except msgspec.DecodeError as error:
        raise ReportError(f"this is no lightning-perf report ({error})") from error
    if version != SCHEMA_VERSION:
        raise ReportError(
            f"the report has schema version {version}, this lightning-perf reads {SCHEMA_VERSION}: "
            f"{'upgrade lightning-perf' if version > SCHEMA_VERSION else 'analyze its traces again'}"
        )
    try:
        return msgspec.json.decode(data, type=PerfReport)
    except msgspec.DecodeError as error:
        raise ReportError(f"the report is damaged ({error})") from error


class _Head(msgspec.Struct):
    schema_version: int
