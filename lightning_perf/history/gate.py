"""Judge the runs of a new commit by the history: `HistoryGate`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_perf import __version__
from lightning_perf.compare.records.fairness import likely_cause
from lightning_perf.compare.records.metrics import METRICS, QUALITY_METRICS, Metric, Scale
from lightning_perf.compare.verdicts.comparison import UnfairError
from lightning_perf.compare.verdicts.gates import Gate, GateOutcome, GateResult, judge, parse_gate
from lightning_perf.documents import Format, SavedDocument, TextDocument
from lightning_perf.errors import CompareError, InvalidRunsError
from lightning_perf.history.read import (
    MeasuredRow,
    Trend,
    find_metric,
    find_trends,
    from_scale,
    group_runs,
    left_out_notes,
    logged_quality,
    matching_commits,
    row_values,
    series_name,
    to_scale,
    unfair_differences,
)
from lightning_perf.history.store import HistoryError, StoredBaseline, StoredRun, open_store, read_runs, read_store
from lightning_perf.statistics.change_points import predict
from lightning_perf.statistics.values import Estimate, Float64Array

if TYPE_CHECKING:
    from lightning_perf.show.blocks import Block

SCHEMA_VERSION = 1


class JudgedMetric(Struct, frozen=True):
    """A metric of the new runs next to the level of the history.

    Attributes:
        metric: Name of the metric.
        value: Mean over the new runs.
        level: Level of the history that it is compared with.
        rows: Number of rows at that level.
        first: Commit of the first of these rows.
        last: Commit of the last of these rows.
        estimate: Ratio of the new runs to the level with its prediction interval; for accuracy the difference.
    """

    metric: str
    value: float
    level: float
    rows: int
    first: str | None
    last: str | None
    estimate: Estimate


class HistoryGate(TextDocument, SavedDocument, frozen=True):
    """The outcome of gates that compare new runs with a history.

    Attributes:
        store: Where the history is.
        commit: Revision of the new runs, or None.
        runs: Number of new runs that count.
        series: Name of the series that the runs were compared with.
        baseline: Name of the baseline, or None for the newest level of the history.
        outcome: The worst outcome of the gates.
        gates: The outcome of each gate.
        metrics: The figures behind the gates.
        notes: Facts about the runs and the history that affect how far you can trust the result.
        tool_version: Version of lightning-perf that made the document.
        schema_version: `SCHEMA_VERSION` of the writer.
    """

    store: str
    commit: str | None
    runs: int
    series: str
    baseline: str | None
    outcome: GateOutcome
    gates: tuple[GateResult, ...]
    metrics: tuple[JudgedMetric, ...]
    notes: tuple[str, ...]
    tool_version: str | None = None
    schema_version: int = SCHEMA_VERSION

    _format = Format("gate of a history", "gate", SCHEMA_VERSION, "judge the runs again", HistoryError)

    def blocks(self) -> Iterator[Block]:
        """Yield the outcome and each metric, then the table of the gates."""
        from lightning_perf.history.blocks import gate_blocks

        return gate_blocks(self)


def slowdown_gate(metric: str, max_slowdown: float) -> Gate:
    """Return the gate that allows a slowdown by a share, e.g. 0.05 for a step time of 1.05 times the level."""
    known = find_metric(metric)
    if not known.is_timed:
        sign = ">=-0.01" if known.scale is Scale.DIFFERENCE else ">=0.95" if known.higher_is_better else "<=1.05"
        raise HistoryError(
            f'--max-slowdown: "{metric}" is not a time or a throughput. Write a gate instead: --gate "{metric}{sign}".'
        )
    limit = f">={1 / (1 + max_slowdown):.6g}" if known.higher_is_better else f"<={1 + max_slowdown:.6g}"
    return parse_gate(f"{metric}{limit}")


def gate_runs(
    store: str | Path,
    runs: Sequence[str | Path],
    gates: Sequence[Gate],
    *,
    baseline: str | None = None,
    arm: str | None = None,
    allow: Collection[str] = (),
    confidence: float = 0.95,
) -> HistoryGate:
    """Compare the runs of one commit with the level of a history, and apply gates.

    Args:
        store: The history.
        runs: Folders with runs, folders of studies, or archives of either. All runs have the same commit.
        gates: Limits of the ratio to the level, or of the difference in accuracy; see `parse_gate`.
        baseline: A named baseline or a commit. The level is then that of the rows around it. By default it is the
            newest level: that of the rows after the last change point.
        arm: The arm of the study to judge.
        allow: Facts that may differ from the history.
        confidence: Coverage of the intervals.

    Returns:
        The outcomes.

    Raises:
        HistoryError: The history cannot be read, or lacks the baseline or the metric.
        CompareError: The runs cannot be read, or have several commits or settings.
        InvalidRunsError: No run is finished and valid.
        UnfairError: No series of the history has the fingerprint of the runs.
        MissingExtraError: changeforest or scipy is not installed.
    """
    contents = read_store(open_store(store))
    given = [run for path in runs for run in read_runs(path, arms=() if arm is None else (arm,))]
    judged = _judged_row(given)
    ids = {run.run_id for run in given}
    stored = [run for run in contents.runs if run.run_id not in ids]
    results, figures, notes, name = [], [], [*contents.notes], None
    for gate in gates:
        metric = find_metric(gate.metric)
        trends = find_trends(group_runs(stored, allow), metric, logged_quality(stored, metric), confidence)
        trend = _fair_trend(trends, judged, allow, metric, store)
        name = series_name(trend.rows[-1])
        quality = trend.rows[-1].runs[-1].quality if metric.name in QUALITY_METRICS else None
        values = row_values(judged, metric, quality)
        if not len(values):
            results.append(judge(gate, str(judged.commit), None))
            continue
        segment, note = _segment(trend, baseline, contents.baselines, store)
        notes += [] if note is None else [note]
        if trend.segments.smooth:
            notes.append(f"The {metric.title} of the history follows a trend or a season: its level is uncertain.")
        figure = _compare(trend, segment, values, metric, confidence)
        figures.append(figure)
        # Memory may be the same in every run. Times never are, unless runs were copied.
        equal = not metric.is_timed and trend.segments.equal
        results.append(judge(gate, judged.commit or "runs", figure.estimate, deterministic=equal))
    outcomes = {result.outcome for result in results}
    worst = (GateOutcome.FAILED, GateOutcome.INCONCLUSIVE, GateOutcome.PASSED)
    notes += left_out_notes(given)
    return HistoryGate(
        store=str(store),
        commit=judged.commit,
        runs=len(judged.runs),
        series=name or "",
        baseline=baseline,
        outcome=next(outcome for outcome in worst if outcome in outcomes),
        gates=tuple(results),
        metrics=tuple({figure.metric: figure for figure in figures}.values()),
        notes=tuple(dict.fromkeys(notes)),
        tool_version=__version__,
    )


def _judged_row(given: Sequence[StoredRun]) -> MeasuredRow:
    used = tuple(run for run in given if run.left_out is None)
    if not used:
        reasons = ", ".join(f"{count} {why}" for why, count in Counter(run.left_out for run in given).items())
        raise InvalidRunsError(f"no valid run to judge ({reasons}). Train again.")
    problem = next(_problems(used), None)
    if problem is not None:
        raise CompareError(problem)
    return MeasuredRow(used[0].commit, used, min(run.started_unix_s for run in used))


def _problems(used: Sequence[StoredRun]) -> Iterator[str]:
    """Yield the reasons not to judge runs together."""
    arms = dict.fromkeys(run.arm for run in used if run.arm is not None)
    if len(arms) > 1:
        yield f"the runs are of several arms: {', '.join(arms)}. Choose the one to judge with --arm."
    commits = dict.fromkeys(run.commit or "none recorded" for run in used)
    if len(commits) > 1:
        yield f"the runs are of several commits: {', '.join(commits)}. Judge one commit at a time."
    facts = ", ".join(difference.fact for difference in unfair_differences(used[:1], used))
    if facts:
        yield f"the runs differ among themselves in {facts}. Judge one setting at a time."


def _fair_trend(
    trends: Sequence[Trend], judged: MeasuredRow, allow: Collection[str], metric: Metric, store: str | Path
) -> Trend:
    if not trends:
        known = [name for name in METRICS if any(run.values.get(name) is not None for run in judged.runs)]
        raise HistoryError(
            f"{store}: no run in it has the metric {metric.name}. The new runs have: {', '.join(known) or 'none'}."
        )
    unfair = [unfair_differences(trend.rows[-1].runs, judged.runs, allow) for trend in trends]
    for trend, differences in zip(trends, unfair, strict=True):
        if not differences:
            return trend
    differences = min(unfair, key=len)
    raise UnfairError(
        "history",
        {"new runs": differences},
        f"No series of the history has these settings. If {likely_cause([one.fact for one in differences])} does not "
        f"matter, name it with --allow. Otherwise add runs of earlier commits with these settings to {store}.",
    )


def _segment(
    trend: Trend, baseline: str | None, baselines: Sequence[StoredBaseline], store: str | Path
) -> tuple[int, str | None]:
    """Return the number of the segment to compare with, and a note."""
    segments = trend.segments
    if baseline is None:
        return len(segments.starts) - 1, None
    named = {one.name: one.commit for one in baselines}
    commits = {row.commit for row in trend.rows if row.commit is not None}
    if baseline in named and named[baseline] not in commits:
        raise HistoryError(
            f'--baseline "{baseline}": its commit {named[baseline]} has no row on this machine and in this setting. '
            "Add runs of it, or set the baseline to another commit."
        )
    if baseline not in named and not any(commit.startswith(baseline) for commit in commits):
        raise HistoryError(
            f'--baseline "{baseline}": neither a baseline nor a commit of this series. '
            f"Baselines: {', '.join(named) or 'none is set'}. "
            f"Set it with: lightning-perf history baseline set {baseline} --store {store}"
        )
    commit = named.get(baseline) or matching_commits(commits, baseline, store)
    row = max(number for number, row in enumerate(trend.rows) if row.commit == commit)
    segment = segments.segment_of(row)
    later = len(segments.starts) - 1 - segment
    changes = "1 change point" if later == 1 else f"{later} change points"
    return segment, f"The history has {changes} since the baseline {baseline} ({commit})." if later else None


def _compare(trend: Trend, segment: int, values: Float64Array, metric: Metric, confidence: float) -> JudgedMetric:
    segments = trend.segments
    first = segments.starts[segment]
    last = first + segments.length(segment) - 1
    # The noise between rows includes that between their runs. With fewer runs than usual the new mean may vary more.
    usual = sum(map(len, trend.of_runs)) / len(trend.of_runs)
    share = max(1.0, usual / len(values))
    mean = to_scale(values, metric)
    estimate = predict(segments, segment, mean, share, confidence)
    if metric.scale is Scale.RATIO:
        estimate = estimate.map(math.exp)
    return JudgedMetric(
        metric=metric.name,
        value=from_scale(mean, metric),
        level=from_scale(segments.levels[segment], metric),
        rows=segments.length(segment),
        first=trend.rows[first].commit,
        last=trend.rows[last].commit,
        estimate=estimate,
    )
