"""Define `History`, the document that the blocks and plots show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_perf.compare.records.fairness import Difference
from lightning_perf.documents import Format, PageDocument, PlottedDocument, TextDocument
from lightning_perf.history.store import HistoryError
from lightning_perf.statistics.values import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lightning_perf.page.html import Kind
    from lightning_perf.show.blocks import Block, Parts

SCHEMA_VERSION = 1


class Commit(Struct, frozen=True):
    """A commit of the repository.

    Attributes:
        commit: Its hash.
        subject: First line of its message, or None.
    """

    commit: str
    subject: str | None


class Row(Struct, frozen=True):
    """One commit on one machine: the mean over its runs.

    Attributes:
        commit: Revision of the code; None if the runs did not record it.
        subject: First line of the commit's message, or None.
        date_unix_s: Time of the commit if git knows every commit of the series, else of its first run.
        runs: Number of runs.
        value: Mean over the runs, geometric for times and other ratios.
        low: Smallest value of a run.
        high: Largest value of a run.
        level: Mean of the rows of its segment, between two changes.
        baselines: Names of baselines that were set to this commit.
    """

    commit: str | None
    subject: str | None
    date_unix_s: float
    runs: int
    value: float
    low: float
    high: float
    level: float
    baselines: tuple[str, ...] = ()


class LevelChange(Struct, frozen=True):
    """A change point: the metric is at another level from one commit on.

    Attributes:
        row: Index of the first row at the new level.
        earliest: Index of the earliest row that may be the first one at the new level.
        latest: Index of the latest row that may be the first one at the new level.
        before: Commit of the row before `row`.
        after: Commit of `row`.
        estimate: Ratio of the levels, after / before; for accuracy the difference after - before.
        worse: Whether the new level is worse.
        p: p-value of the change.
        commits: Commits that may have caused it, the oldest first: those after the row before `earliest`, up to
            `latest`. Only the measured ones if git does not know them.
        commit_count: Number of those commits. The list has only the last ones if there are many. None if git does not
            know them.
        confirmed: Whether earlier commits that ran again after the change are at the old level. False means that the
            machine changed and not the code. None without such runs.
    """

    row: int
    earliest: int
    latest: int
    before: str | None
    after: str | None
    estimate: Estimate
    worse: bool
    p: float
    commits: tuple[Commit, ...] = ()
    commit_count: int | None = None
    confirmed: bool | None = None


class Series(Struct, frozen=True):
    """The rows of one machine in one setting. Series are never mixed.

    Attributes:
        name: Its name: machine and device.
        machine: Host name, or None.
        hardware: Device, or None.
        arms: Arms of studies that the runs belong to.
        differs: Facts that differ from the first series.
        rows: The rows in order of time.
        changes: The change points in order of time.
        noise: Spread of the rows around their level, as a share of the level; for accuracy in shares of 1. None for too
            few rows.
        autocorrelation: Correlation between neighboring rows that the tests assume.
        note: Why change points are missing, or a remark on the rows; None without one.
    """

    name: str
    machine: str | None
    hardware: str | None
    arms: tuple[str, ...]
    differs: tuple[Difference, ...]
    rows: tuple[Row, ...]
    changes: tuple[LevelChange, ...]
    noise: float | None
    autocorrelation: float
    note: str | None = None


class Baseline(Struct, frozen=True):
    """A commit with a name.

    Attributes:
        name: The name.
        commit: Revision of the code.
        set_unix_s: When the name was given.
    """

    name: str
    commit: str
    set_unix_s: float


class History(TextDocument, PageDocument, PlottedDocument, frozen=True):
    """The trend of one metric over the commits of a history, one series per machine and setting.

    Attributes:
        store: Where the history is.
        metric: Name of the metric, as in a comparison.
        quality: Name under which the runs logged an accuracy, loss or score; None for other metrics.
        confidence: Coverage of the intervals.
        since: Only rows from this time or commit on, as you gave it; None for all.
        allowed: Facts that may differ within a series.
        series: The series, the one with the newest row first.
        baselines: The named baselines.
        notes: Facts about the stored runs that affect how far you can trust the result.
        tool_version: Version of lightning-perf that made the document.
        schema_version: `SCHEMA_VERSION` of the writer.
    """

    store: str
    metric: str
    quality: str | None
    confidence: float
    since: str | None
    allowed: tuple[str, ...]
    series: tuple[Series, ...]
    baselines: tuple[Baseline, ...]
    notes: tuple[str, ...]
    tool_version: str | None = None
    schema_version: int = SCHEMA_VERSION

    _format = Format("history", "history", SCHEMA_VERSION, "show the history again", HistoryError)

    def blocks(self) -> Iterator[Block]:
        """Yield per series its changes, then its rows."""
        from lightning_perf.history.blocks import history_blocks

        return history_blocks(self)

    def _picture(self) -> Figure:
        from lightning_perf.history.blocks import history_picture

        return history_picture(self)

    def _page(self) -> tuple[Kind, str]:
        return "history", f"History of {self.store}"

    def _parts(self) -> Parts:
        from lightning_perf.history.blocks import history_parts

        return history_parts(self)
