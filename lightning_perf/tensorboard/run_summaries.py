"""One line about each run for the list of runs: its step time and largest finding."""

from __future__ import annotations

import msgspec

from lightning_perf.report.document import PerfReport
from lightning_perf.saved_json import decode_json
from lightning_perf.tensorboard.cache import find, key_of
from lightning_perf.tensorboard.discovery import Run


class Summary(msgspec.Struct, frozen=True):
    """The step time that the verdict leads with, and the title of the finding that saves most or the verdict."""

    step_ns: float | None = None
    verdict: str | None = None


def summarize(report: PerfReport) -> Summary:
    """Return the summary of a report."""
    verdict = report.findings[0].title if report.findings else report.verdict.where
    if report.lead is None:
        return Summary(None, verdict)
    lead = report.ranks[report.lead]
    usual = report.step_times.of_rank(lead.rank) if report.step_times is not None else None
    return Summary(usual.p50_ns if usual is not None else lead.breakdown.wall.mean_ns, verdict)


class RunSummaries:
    """Reads the summaries of finished reports, each version once. It makes no report."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, float], Summary] = {}

    def of(self, run: Run) -> Summary:
        """Return the summary of a run; an empty one if its report is not finished."""
        version = run.name, run.updated_s
        path = find(run, key_of(run), "summary") if version not in self._known else None
        if path is not None:
            try:
                self._known[version] = decode_json(path.read_bytes(), Summary)
            except (OSError, msgspec.DecodeError):
                self._known[version] = Summary()
        return self._known.get(version, Summary())
