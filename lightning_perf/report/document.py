"""The documents of a run: its report with fields and methods, and the diagnosis of a loss that turned NaN."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from lightning_perf.analysis.compilation import CompileReport
from lightning_perf.analysis.precision.amp_gain import AmpGain
from lightning_perf.analysis.precision.forecast import Forecast
from lightning_perf.analysis.precision.scales import Fp8Layers, ShadowDrift
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.ranks.distributed import Distributed
from lightning_perf.analysis.ranks.whole_fit import RanksOverFit
from lightning_perf.analysis.steps.fit_time import FitTime, MemoryGrowth
from lightning_perf.analysis.steps.step_times import StepTimes
from lightning_perf.analysis.trust import Trust
from lightning_perf.documents import TOP, Format, LongDocument, PageDocument, SavedDocument, TextDocument
from lightning_perf.errors import ReportError, TraceError
from lightning_perf.findings.finding import Finding
from lightning_perf.findings.whole_run import HeldBack
from lightning_perf.report.captured import Captured
from lightning_perf.report.labels import CATEGORY_LABELS, GAP_LABELS, PHASE_LABELS, run_name
from lightning_perf.report.verdict import Verdict
from lightning_perf.run_files.fit.gpu_health import GpuHealth
from lightning_perf.run_files.fit.out_of_memory import OutOfMemory
from lightning_perf.run_files.numerics.precision import PRECISION_NAME, BadRun, RunPrecision, read_precision
from lightning_perf.run_files.report import read_report_fields
from lightning_perf.show.blocks import Block, Line
from lightning_perf.show.terminal_text import safe
from lightning_perf.units import counted, format_duration, format_rate, format_share

if TYPE_CHECKING:
    from lightning_perf.page.html import Kind
    from lightning_perf.report.compared import Compared
    from lightning_perf.show.blocks import Block, Parts


SCHEMA_VERSION = 1
"""Version of the document's layout. Every change that an old reader would misread raises it."""


class PerfReport(LongDocument, PageDocument, SavedDocument, frozen=True):
    """The report of one run: verdict, findings, and the analyses of every rank.

    Attributes:
        schema_version: `SCHEMA_VERSION` of the writer.
        tool_version: Version of lightning_perf that wrote it.
        sources: The trace files that it was made from.
        verdict: Where the time goes, why, and what to do next.
        notes: Remarks to read before you trust the figures: missing ranks, unreadable files, no step marks.
        findings: Causes of lost time, the largest saving first.
        lead: Row in ``ranks`` of the rank that the verdict describes: the one that others wait for, or the slowest.
            ``None`` if nothing was recorded.
        ranks: The analyses of each rank.
        distributed: The comparison of the ranks; ``None`` for a run of one.
        step_times: Step times by the always-on timer; ``None`` without them.
        precision: The run's precision and its effects; ``None`` if nothing was recorded of it.
        trust: How far to trust the recording; ``None`` if nothing was recorded.
        captures: Windows outside of the schedule, because steps turned slow or somebody asked for one.
        who_waits: Which rank the others wait for and which has the most work, in sentences; empty for a run of one.
        held_back: Findings of the recorded steps that the whole run or the state of the machine contradicts.
        forecast: The forecast of number formats; ``None`` unless `PerfCallback` was asked for it.
        fit_time: Where the time of the whole fit went, of the rank with the step times; ``None`` without an account.
        fit_findings: Causes of lost time in the whole fit, the largest saving first. Their savings are of the fit.
        shadow: Drift from FP32 over the run, from shadow steps; ``None`` without any.
        fp8: The FP8 layers of torchao or Transformer Engine; ``None`` without any.
        out_of_memory: The state of each rank that ran out of memory, at that moment.
        memory_growth: The memory of the fit at the ends of steps, of its first rank; ``None`` in short fits.
        compilation: Compilations by ``torch.compile``; ``None`` if nothing was compiled, and in reports of older
            versions.
        gpu_health: The GPU of each rank over the fit, by NVML; empty if no GPU was watched.
        over_fit: The comparison of the ranks over the whole fit, by their step logs; ``None`` for a run of one.

    Example:
        >>> import lightning_perf
        >>> report = lightning_perf.analyze("lightning_logs/version_0/perf")  # doctest: +SKIP
        >>> report.print()  # doctest: +SKIP
        >>> report.write_html("report.html")  # doctest: +SKIP
        >>> report.diff(lightning_perf.analyze("lightning_logs/version_1/perf")).print()  # doctest: +SKIP
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
    held_back: tuple[HeldBack, ...] = ()
    forecast: Forecast | None = None
    fit_time: FitTime | None = None
    fit_findings: tuple[Finding, ...] = ()
    shadow: ShadowDrift | None = None
    fp8: Fp8Layers | None = None
    out_of_memory: tuple[OutOfMemory, ...] = ()
    memory_growth: MemoryGrowth | None = None
    compilation: CompileReport | None = None
    gpu_health: tuple[GpuHealth, ...] = ()
    over_fit: RanksOverFit | None = None

    _format = Format("lightning-perf report", "report", SCHEMA_VERSION, "analyze its traces again", ReportError)

    def blocks(self, top: int = TOP) -> Iterator[Block]:
        """Yield verdict, notes and findings first, then the figures."""
        from lightning_perf.report.sections.report import report_blocks

        return report_blocks(self, top)

    def diff(self, other: PerfReport) -> Compared:
        """Compare this report with the report of another recording.

        Args:
            other: The report after the change.

        Returns:
            The changes, as ``lightning-perf diff`` shows them.

        Raises:
            TraceError: One of the recordings is truncated, so that its times are only lower bounds.
        """
        from lightning_perf.report.compared import compare_reports

        return compare_reports(self, other)

    def __repr__(self) -> str:
        findings = counted(len(self.findings) + len(self.fit_findings), "finding")
        return safe(f"<PerfReport of {run_name(self.sources)}: {self.verdict.where} {findings}>")

    def _repr_html_(self) -> str:
        """Return the verdict, the findings and the categories of the step, as notebooks show them."""
        from lightning_perf.report.sections.report import notebook_blocks
        from lightning_perf.show.markup import to_html

        return to_html(notebook_blocks(self))

    def _page(self) -> tuple[Kind, str]:
        return "run", run_name(self.sources)

    def _page_data(self) -> bytes:
        short = (replace(rank, operators=None, kernels=None, modules=None, call_tree=None) for rank in self.ranks)
        document = msgspec.json.encode(replace(self, ranks=tuple(short)))  # the parts have the others
        labels = {"categories": CATEGORY_LABELS, "gaps": GAP_LABELS, "phases": PHASE_LABELS}
        return document[:-1] + b',"labels":' + msgspec.json.encode(labels) + b"}"

    def _parts(self) -> Parts:
        from lightning_perf.report.sections.page import report_parts

        return report_parts(self)


class _ReportRank(msgspec.Struct, frozen=True):
    amp_gain: AmpGain | None = None


class _Report(msgspec.Struct, frozen=True):
    """The fields of a report that a record needs."""

    schema_version: int
    lead: int | None
    ranks: list[_ReportRank]


def read_predicted_speedup(folder: Path) -> tuple[float, float] | None:
    """Read the speed-up that a run's report predicts for mixed precision.

    Returns:
        Smallest and largest speed-up of a step. None without a report of the current version, or without a prediction.
    """
    report = read_report_fields(folder, _Report)
    if report is None or report.schema_version != SCHEMA_VERSION:
        return None
    if report.lead is None or not 0 <= report.lead < len(report.ranks):
        return None
    gain = report.ranks[report.lead].amp_gain
    return gain.speedup if gain is not None and gain.step_ns > gain.most_saving_ns else None


class KeyFigure(Struct, frozen=True):
    """One key figure.

    Attributes:
        value: Its value in the unit that `logged_as` ends with.
        logged_as: Its name in a logger, e.g. ``step_time_ms``.
    """

    title: str
    value: float
    text: str
    logged_as: str


def key_figures(report: PerfReport) -> tuple[KeyFigure, ...]:
    """Return the key figures that a report has. docs/definitions.md defines them. The number of findings is last."""
    found = []
    times = report.step_times
    if times is not None:
        found += [
            _duration("step_time", "mean step time", times.mean_ns),
            _duration("step_time_p90", "p90 step time", times.p90_ns),
        ]
        if times.samples_per_second is not None:
            text = format_rate(times.samples_per_second, "samples")
            found.append(KeyFigure("throughput", times.samples_per_second, text, "samples_per_s"))
        found.append(_share("data_wait", "wait for data", times.data_wait_share))
    efficiency = report.ranks[report.lead].efficiency if report.lead is not None else None
    if efficiency is not None and len(efficiency.devices) == 1:
        found.append(_share("device_busy", "device busy", efficiency.devices[0].busy))
    findings = len(report.findings) + len(report.fit_findings)
    return (*found, KeyFigure("findings", findings, str(findings), "findings"))


def _duration(name: str, title: str, value_ns: float) -> KeyFigure:
    return KeyFigure(title, value_ns / 1e6, format_duration(value_ns), f"{name}_ms")


def _share(name: str, title: str, share: float) -> KeyFigure:
    return KeyFigure(title, share, format_share(share), f"{name}_share")


HEALTHY = "No step of this run had a loss of NaN or infinity, as far as it was checked."

NAN_SCHEMA_VERSION = 1


class NanDiagnosis(TextDocument, frozen=True):
    """The diagnosis of a loss that turned NaN or infinite.

    Attributes:
        folder: The folder of the run.
        bad_run: The diagnosis; ``None`` if no checked step of the run had a loss of NaN or infinity.
        schema_version: `NAN_SCHEMA_VERSION` of the writer.
    """

    folder: str
    bad_run: BadRun | None
    schema_version: int = NAN_SCHEMA_VERSION

    def blocks(self) -> Iterator[Block]:
        """Yield the diagnosis."""
        from lightning_perf.report.sections.precision import bad_run_blocks

        if self.bad_run is None:
            yield Line(HEALTHY)
        else:
            yield from bad_run_blocks(self.bad_run)


def diagnose_nan(folder: Path) -> NanDiagnosis:
    """Read the diagnosis that `PerfCallback` made during a training."""
    if not folder.is_dir():
        raise TraceError(folder, "no such folder", "Give the folder of a run, e.g. lightning_logs/version_0/perf")
    if not (folder / PRECISION_NAME).exists():
        raise TraceError(
            folder,
            f"no {PRECISION_NAME} in it, so no fit with PerfCallback has ended here",
            "Give the folder of such a fit, e.g. lightning_logs/version_0/perf",
        )
    return NanDiagnosis(str(folder), read_precision(folder / PRECISION_NAME).bad_run)
