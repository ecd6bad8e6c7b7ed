"""Stored runs ─► series that may be compared, one row per commit ─► `History`, and named baselines."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from lightning_perf import __version__
from lightning_perf.compare.records.fairness import SEED_FACTS, Difference, check_fairness, hardware_name, is_named
from lightning_perf.compare.records.metrics import METRICS, QUALITY_METRICS, Metric, Scale
from lightning_perf.history.document import Baseline, Commit, History, LevelChange, Row, Series
from lightning_perf.history.store import Contents, HistoryError, StoredBaseline, StoredRun, open_store, read_store
from lightning_perf.statistics.change_points import FEWEST_VALUES, ChangePoint, Segmentation, find_changes
from lightning_perf.statistics.values import Float64Array
from lightning_perf.workers.revision import commits_between

MOST_COMMITS = 50
"""Maximum number of commits that a change lists."""

LEAST_PREFIX = 4
"""Characters of a commit that are enough to name it."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}")


CODE = ("code",)
"""The facts that a history tests: commits differ in their code."""

TRENDS = tuple(name for name in METRICS if name != "time_to_accuracy")
"""Metrics with a trend. The time to accuracy needs a goal, which stored runs do not have."""


class MeasuredRow(Struct, frozen=True):
    """The runs of one commit on one machine in one setting, and the time of the commit, or else of the first run."""

    commit: str | None
    runs: tuple[StoredRun, ...]
    date_unix_s: float

    @property
    def started_unix_s(self) -> float:
        """Start of its first run."""
        return min(run.started_unix_s for run in self.runs)


Rows: TypeAlias = tuple[MeasuredRow, ...]
"""Rows that may be compared with each other, in order of time."""


def find_metric(name: str) -> Metric:
    """Return a metric that a history shows."""
    if name not in TRENDS:
        raise HistoryError(f'--metric "{name}": unknown metric. Choose from: {", ".join(TRENDS)}.')
    return METRICS[name]


def group_runs(runs: Sequence[StoredRun], allow: Collection[str] = ()) -> tuple[Rows, ...]:
    """Group runs into series, by the rules of a comparison in which the code is the setting being tested.

    The runs are in order of their start. Those that are left out have no row. The facts of `allow` may differ within a
    series. The series with the newest run is the first.
    """
    rows: dict[tuple[str, frozenset[object]], list[StoredRun]] = {}
    for run in runs:
        if run.left_out is None:
            # Without a commit, the runs of a study belong together, and any other run is alone.
            commit = run.commit if run.commit is not None else f"\0{run.study or run.run_id}"
            rows.setdefault((commit, _setting(run, allow)), []).append(run)
    series: list[list[list[StoredRun]]] = []
    of_setting: dict[frozenset[object], list[list[list[StoredRun]]]] = {}
    for (_, setting), row in rows.items():
        known = of_setting.setdefault(setting, [])
        home = next((one for one in reversed(known) if not unfair_differences(one[-1], row, allow)), None)
        if home is None:
            home = []
            known.append(home)
            series.append(home)
        home.append(row)
    dated = [_dated(one) for one in series]
    return tuple(sorted(dated, key=lambda one: max(row.started_unix_s for row in one), reverse=True))


def _dated(rows: Sequence[Sequence[StoredRun]]) -> Rows:
    """Order rows by their commits if git knew all of them, else by their runs."""
    by_commit = all(run.commit_unix_s is not None for row in rows for run in row)
    dated = []
    for row in rows:
        commit_unix_s = row[0].commit_unix_s if by_commit else None
        started_unix_s = min(run.started_unix_s for run in row)
        date_unix_s = started_unix_s if commit_unix_s is None else commit_unix_s
        dated.append(MeasuredRow(row[0].commit, tuple(row), date_unix_s))
    return tuple(sorted(dated, key=lambda row: (row.date_unix_s, row.started_unix_s)))


def unfair_differences(
    baseline: Sequence[StoredRun], candidate: Sequence[StoredRun], allow: Collection[str] = ()
) -> tuple[Difference, ...]:
    """Return the differences between two groups of runs for which a comparison would be refused."""
    ours, theirs = ([run.facts for run in runs] for runs in (baseline, candidate))
    return check_fairness(ours, theirs, treatment=CODE, allow=allow).unfair


def row_values(row: MeasuredRow, metric: Metric, quality: str | None) -> Float64Array:
    """Return the values of a row's runs, without missing ones.

    For an accuracy, loss or score, `quality` is the logged metric that counts. Runs with another one have no value.
    """
    values = [run.values.get(metric.name) for run in row.runs if quality is None or run.quality == quality]
    kept = [value for value in values if value is not None and math.isfinite(value)]
    return np.array(kept if metric.scale is Scale.DIFFERENCE else [value for value in kept if value > 0], np.float64)


def to_scale(values: Float64Array, metric: Metric) -> float:
    """Return the mean of a row's values on the scale of the statistics: of logarithms, except for shares."""
    return float((values if metric.scale is Scale.DIFFERENCE else np.log(values)).mean())


def from_scale(value: float, metric: Metric) -> float:
    """Return a value of the statistics' scale in the unit of the metric."""
    return value if metric.scale is Scale.DIFFERENCE else math.exp(value)


def _setting(run: StoredRun, allow: Collection[str]) -> frozenset[object]:
    # 1, 1.0 and True are equal in Python, but they are different settings.
    return frozenset(
        (name, type(value).__name__, value)
        for name, value in run.facts.items()
        if value is not None and name not in SEED_FACTS and not is_named(name, allow)
    )


class Trend(Struct, frozen=True):
    """A series of one metric: its rows with values, and the series divided at its change points.

    Attributes:
        rows: The rows with a value, in order of time.
        of_runs: The values of each row's runs.
        segments: The division of the rows at change points, on the scale of the statistics.
    """

    rows: Rows
    of_runs: tuple[Float64Array, ...]
    segments: Segmentation
    missing: int


def read_history(
    store: str | Path,
    *,
    metric: str = "step_time",
    since: str | None = None,
    allow: Collection[str] = (),
    confidence: float = 0.95,
    repository: str | Path = ".",
) -> History:
    """Read the trend of a metric over the commits of a history, and find where it changed.

    Args:
        store: A folder, or an address that fsspec opens.
        metric: Name of the metric, such as ``step_time``, ``throughput`` or ``accuracy``.
        since: Show rows from this time (``2026-11-01``) or this commit on.
        allow: Facts that may differ within a series, as in a comparison.
        confidence: Coverage of the intervals.
        repository: Folder of the git repository, to list the commits between two rows.

    Returns:
        The history, one series per machine and setting.

    Raises:
        HistoryError: The store cannot be read, or the metric or the commit is not in it.
        MissingExtraError: changeforest or scipy is not installed.

    Example:
        >>> import lightning_perf.history
        >>> trend = lightning_perf.history.read_history("perf-history")  # doctest: +SKIP
        >>> [change.after for change in trend.series[0].changes]  # doctest: +SKIP
        ['9f2c11d8e0aa']
    """
    wanted = find_metric(metric)
    contents = read_store(open_store(store))
    quality = logged_quality(contents.runs, wanted)
    groups = group_runs(contents.runs, allow)
    if since is not None:
        first_unix_s = _start(since, groups)
        groups = tuple(tuple(row for row in rows if row.date_unix_s >= first_unix_s) for rows in groups)
    trends = find_trends(groups, wanted, quality, confidence)
    if not trends:
        raise HistoryError(_nothing(store, wanted, since, contents))
    names: dict[str, tuple[str, ...]] = {}
    for one in contents.baselines:
        names[one.commit] = (*names.get(one.commit, ()), one.name)
    series = tuple(_series(trend, wanted, quality, trends[0], names, allow, Path(repository)) for trend in trends)
    return History(
        store=str(store),
        metric=metric,
        quality=quality,
        confidence=confidence,
        since=since,
        allowed=tuple(allow),
        series=series,
        baselines=tuple(Baseline(one.name, one.commit, one.added_unix_s) for one in contents.baselines),
        notes=(*contents.notes, *_notes(contents, wanted, quality)),
        tool_version=__version__,
    )


def set_baseline(store: str | Path, name: str, commit: str | None = None) -> Baseline:
    """Give a commit of a history a name, such as ``main``. An earlier commit with the name loses it.

    Args:
        store: A folder or an address that fsspec opens.
        name: The name.
        commit: The commit or its first characters; the newest one of the history by default.

    Raises:
        HistoryError: The history has no such commit, the name is not one, or the store cannot be written.
    """
    if not _NAME.fullmatch(name):
        raise HistoryError(
            f'baseline "{name}": not a name. Use letters, digits and the characters ".", "_", "-" and "/", e.g. main.'
        )
    place = open_store(store)
    contents = read_store(place)
    runs = [run for run in contents.runs if run.left_out is None and run.commit is not None]
    if not runs:
        raise HistoryError(f"{store}: no run with a commit in it. Train in a git repository, then add the runs.")
    if commit is None:
        chosen = max(runs, key=lambda run: run.started_unix_s).commit
    else:
        chosen = matching_commits({str(run.commit) for run in runs}, commit, store)
    # The last entry of a name counts, also after one that a clock ahead of this one wrote.
    earlier = max((one.added_unix_s for one in contents.baselines if one.name == name), default=0.0)
    entry = StoredBaseline(name=name, commit=str(chosen), added_unix_s=max(time.time(), math.nextafter(earlier, 1e12)))
    place.append([entry])
    return Baseline(entry.name, entry.commit, entry.added_unix_s)


def matching_commits(commits: Collection[str], wanted: str, store: str | Path) -> str:
    """Return the one commit that starts with the given characters."""
    if wanted in commits:
        return wanted
    # The full hash of 40 characters is the same commit as its first 12, which run records have.
    found = sorted(
        commit
        for commit in commits
        if len(wanted) >= LEAST_PREFIX and (commit.startswith(wanted) or wanted.startswith(commit))
    )
    if len(found) == 1:
        return found[0]
    if found:
        raise HistoryError(f'commit "{wanted}": not unique in {store}. Choose from: {", ".join(found)}.')
    raise HistoryError(
        f'commit "{wanted}": not in {store}. Run "lightning-perf history --store {store}" to see its commits.'
    )


def logged_quality(runs: Sequence[StoredRun], metric: Metric) -> str | None:
    """Return the logged metric behind an accuracy, loss or score: that of the newest run."""
    if metric.name not in QUALITY_METRICS:
        return None
    return next((run.quality for run in reversed(runs) if run.values.get(metric.name) is not None), None)


def _start(since: str, groups: Sequence[Rows]) -> float:
    """Return the time that ``since`` names: a date, or the date of a commit."""
    try:
        moment = datetime.fromisoformat(since)
    except ValueError:
        pass
    else:
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)).timestamp()
    dates = [
        row.date_unix_s
        for rows in groups
        for row in rows
        if row.commit is not None and len(since) >= LEAST_PREFIX and row.commit.startswith(since)
    ]
    if not dates:
        raise HistoryError(
            f'--since "{since}": neither a date nor a commit of the history. Give a date such as 2026-11-01, or the '
            "first characters of a commit."
        )
    return min(dates)


def _nothing(store: str | Path, metric: Metric, since: str | None, contents: Contents) -> str:
    used = [run for run in contents.runs if run.left_out is None]
    if not used:
        reasons = ", ".join(f"{n} {why}" for why, n in Counter(run.left_out for run in contents.runs).items())
        problem = f"{store}: no valid run in it ({reasons or 'it has no runs'})."
        return " ".join([problem, *contents.notes, "Add runs that finished."])
    if since is not None:
        return f'--since "{since}": no row of {metric.name} since then. Give an earlier date.'
    known = [name for name in METRICS if any(run.values.get(name) is not None for run in used)]
    return f'--metric "{metric.name}": no run in {store} has it. Choose from: {", ".join(known)}.'


def find_trends(groups: Sequence[Rows], metric: Metric, quality: str | None, confidence: float) -> tuple[Trend, ...]:
    """Return the trend of each series that has rows with the metric."""
    trends = []
    for rows in groups:
        of_rows = [row_values(row, metric, quality) for row in rows]
        kept = [(row, values) for row, values in zip(rows, of_rows, strict=True) if len(values)]
        if kept:
            means = np.array([to_scale(values, metric) for _, values in kept], np.float64)
            shown, of_runs = zip(*kept, strict=True)
            trends.append(Trend(shown, of_runs, find_changes(means, confidence), len(rows) - len(kept)))
    return tuple(trends)


def series_name(row: MeasuredRow) -> str:
    """Return the name of the machine and its device."""
    facts = row.runs[-1].facts
    parts = (facts.get("host.name"), hardware_name(facts))
    return ", ".join(str(part) for part in parts if part) or "machine not recorded"


def _series(
    trend: Trend,
    metric: Metric,
    quality: str | None,
    newest: Trend,
    names: dict[str, tuple[str, ...]],
    allow: Collection[str],
    repository: Path,
) -> Series:
    segments, noise = trend.segments, trend.segments.noise
    rows = tuple(
        Row(
            commit=row.commit,
            subject=row.runs[0].subject,
            date_unix_s=row.date_unix_s,
            runs=len(values),
            # The logarithm of equal values, such as memory, would round them.
            value=from_scale(to_scale(values, metric), metric) if np.ptp(values) else float(values[0]),
            low=float(values.min()),
            high=float(values.max()),
            level=from_scale(segments.levels[segments.segment_of(number)], metric),
            baselines=names.get(row.commit, ()) if row.commit is not None else (),
        )
        for number, (row, values) in enumerate(zip(trend.rows, trend.of_runs, strict=True))
    )
    facts = trend.rows[-1].runs[-1].facts
    host = facts.get("host.name")
    return Series(
        name=series_name(trend.rows[-1]),
        machine=None if host is None else str(host),
        hardware=hardware_name(facts),
        arms=tuple(dict.fromkeys(run.arm for row in trend.rows for run in row.runs if run.arm is not None)),
        differs=() if trend is newest else unfair_differences(newest.rows[-1].runs, trend.rows[-1].runs, allow),
        rows=rows,
        changes=tuple(
            _change(change, rows, metric, repository, _confirmed(change, trend, metric, quality))
            for change in segments.changes
        ),
        noise=None if noise.sd is None else from_scale(noise.sd, metric) - (metric.scale is Scale.RATIO),
        autocorrelation=noise.autocorrelation,
        note=_series_note(trend),
    )


def _series_note(trend: Trend) -> str | None:
    notes = []
    if len(trend.rows) < FEWEST_VALUES:
        count = "1 row" if len(trend.rows) == 1 else f"{len(trend.rows)} rows"
        notes.append(f"{count}: a change point needs at least {FEWEST_VALUES}.")
    if trend.segments.smooth:
        notes.append("A trend or a season fits the rows better than changes at single commits, so none is reported.")
    for first, last in trend.segments.excursions:
        notes.append(f"Rows {first + 1} to {last + 1} were at another level, and the series returned.")
    pooled = [row for row in trend.rows if _pools(row)]
    if pooled:
        arms = ", ".join(dict.fromkeys(run.arm for row in pooled for run in row.runs if run.arm))
        notes.append(f"Some rows pool arms of one study that have equal fingerprints: {arms}. Add one arm with --arm.")
    if trend.missing:
        notes.append(f"{trend.missing} {'row lacks' if trend.missing == 1 else 'rows lack'} the metric.")
    return " ".join(notes) or None


def _pools(row: MeasuredRow) -> bool:
    """Return whether a row has runs of several arms of one study."""
    arms: dict[str, set[str | None]] = {}
    for run in row.runs:
        if run.study is not None:
            arms.setdefault(run.study, set()).add(run.arm)
    return any(len(of_study) > 1 for of_study in arms.values())


def _change(
    change: ChangePoint, rows: Sequence[Row], metric: Metric, repository: Path, confirmed: bool | None
) -> LevelChange:
    first, last = rows[change.low - 1], rows[change.high]
    known = None
    if first.commit is not None and last.commit is not None:
        known = commits_between(first.commit, last.commit, repository)
    if known:
        commits = tuple(Commit(commit, subject) for commit, subject in known[-MOST_COMMITS:])
    else:
        measured = rows[change.low : change.high + 1]
        commits = tuple(Commit(row.commit, row.subject) for row in measured if row.commit is not None)[-MOST_COMMITS:]
    rises = (change.change.value or 0.0) > 0
    return LevelChange(
        row=change.position,
        earliest=change.low,
        latest=change.high,
        before=rows[change.position - 1].commit,
        after=rows[change.position].commit,
        estimate=change.change if metric.scale is Scale.DIFFERENCE else change.change.map(math.exp),
        worse=rises != metric.higher_is_better,
        p=change.p,
        commits=commits,
        commit_count=len(known) if known else None,
        confirmed=confirmed,
    )


def _confirmed(change: ChangePoint, trend: Trend, metric: Metric, quality: str | None) -> bool | None:
    """Return whether the runs of earlier commits that started after the change are nearer to the old level."""
    began_unix_s = min(row.started_unix_s for row in trend.rows[change.position :])
    again = [
        row_values(replace(row, runs=runs), metric, quality)
        for row in trend.rows[: change.position]
        if (runs := tuple(run for run in row.runs if run.started_unix_s > began_unix_s))
    ]
    means = [to_scale(values, metric) for values in again if len(values)]
    if not means:
        return None
    segment = trend.segments.segment_of(change.position)
    old, new = trend.segments.levels[segment - 1 : segment + 1]
    mean = sum(means) / len(means)
    return abs(mean - old) < abs(mean - new)


def left_out_notes(runs: Sequence[StoredRun]) -> list[str]:
    """Return a note on the runs that do not count; nothing without any."""
    reasons = Counter(run.left_out.partition(":")[0] for run in runs if run.left_out is not None)
    parts = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    return [f"Runs that do not count: {parts}."] if parts else []


def _notes(contents: Contents, metric: Metric, quality: str | None) -> tuple[str, ...]:
    notes = left_out_notes(contents.runs)
    used = [run for run in contents.runs if run.left_out is None]
    others = sum(run.quality != quality for run in used if run.values.get(metric.name) is not None) if quality else 0
    if others:
        notes.append(f"Runs that logged another metric than {quality}, and have no value here: {others}.")
    without = sum(run.commit is None for run in used)
    if without:
        notes.append(f"Runs without a commit, because they did not run in a git repository: {without}.")
    return tuple(notes)
