"""One line about each run for the list of runs: its title, step time and largest finding."""

from __future__ import annotations

from pathlib import PurePath

import msgspec

from lightning_perf.analysis.steps.step_times import StepTimes
from lightning_perf.saved_json import decode_json
from lightning_perf.tensorboard.cache import find, key_of
from lightning_perf.tensorboard.discovery import Run

LARGEST_BYTES = 16 << 20
"""A larger report is not read for its summary, because that would block TensorBoard."""

MOST_READ = 20
"""Number of reports that one listing reads. The next listing reads more."""


class Summary(msgspec.Struct, frozen=True):
    """The step time that the verdict leads with, and the title of the finding that saves most or the verdict."""

    step_ns: float | None = None
    verdict: str | None = None


class _Wall(msgspec.Struct):
    mean_ns: float | None


class _Breakdown(msgspec.Struct):
    wall: _Wall


class _Rank(msgspec.Struct):
    breakdown: _Breakdown
    rank: int | None = None


class _Titled(msgspec.Struct):
    title: str


class _Verdict(msgspec.Struct):
    where: str


class _Report(msgspec.Struct):
    verdict: _Verdict
    findings: list[_Titled]
    lead: int | None
    ranks: list[_Rank]
    step_times: StepTimes | None = None


class RunSummaries:
    """Reads the summaries of finished reports, each version once. It makes no report."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, float], Summary] = {}
        self._left = MOST_READ

    def begin_listing(self) -> None:
        """Reset the number of reports that may be read."""
        self._left = MOST_READ

    def of(self, run: Run) -> Summary:
        """Return the summary of a run; an empty one if its report is not finished, or too large."""
        version = run.name, run.updated_s
        if run.kind not in ("run", "trace"):
            return Summary()
        if version not in self._known:
            if not self._left:
                return Summary()
            path = find(run, key_of(run), "page")
            if path is None:
                return Summary()
            self._left -= 1
            try:
                data = path.read_bytes() if path.stat().st_size <= LARGEST_BYTES else b""
                self._known[version] = _summary(decode_json(data, _Report))
            except (OSError, msgspec.DecodeError):
                self._known[version] = Summary()
        return self._known[version]


def _summary(report: _Report) -> Summary:
    lead = report.ranks[report.lead] if report.lead is not None and 0 <= report.lead < len(report.ranks) else None
    verdict = report.findings[0].title if report.findings else report.verdict.where
    if lead is None:
        return Summary(None, verdict)
    usual = report.step_times.of_rank(lead.rank) if report.step_times is not None else None
    return Summary(usual.p50_ns if usual is not None else lead.breakdown.wall.mean_ns, verdict)


def title_of(run: Run) -> str:
    """Return the title of a run: its name, or the name of the log directory for a run right inside it.

    The name of such a run is ``.``, or ends in ``/.`` after the name of a group.
    """
    name, space, rest = run.name.partition(" ")
    if name.rpartition("/")[2] != ".":
        return run.name
    folder = PurePath(run.storage.location).name or run.storage.location
    return f"{name[:-1]}{folder}{space}{rest}"
