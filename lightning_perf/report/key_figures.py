"""The key figures of a report: the few numbers that fit into a logger."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_perf.report.document import PerfReport
from lightning_perf.units import format_duration, format_rate, format_share


@dataclass(frozen=True)
class KeyFigure:
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
