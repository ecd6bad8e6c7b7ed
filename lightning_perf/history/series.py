"""Group stored runs into series that may be compared, and into one row per commit."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TypeAlias

import numpy as np
from msgspec import Struct

from lightning_perf.compare.records.fairness import (
    SEED_FACTS,
    Difference,
    check_fairness,
    is_named,
)
from lightning_perf.compare.records.metrics import METRICS, Metric, Scale
from lightning_perf.history.store import HistoryError, StoredRun
from lightning_perf.statistics.values import Float64Array

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
