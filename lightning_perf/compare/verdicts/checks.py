"""The checks of a comparison: `CHECKS` can refuse it, `NOTES` says how far you can trust it.

Each check is a row: a pure function of the facts. The rows are in the order in which problems are reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from lightning_perf.compare.records.metrics import METRICS, best_logged
from lightning_perf.compare.records.record import GIVEN_UP, RunRecord
from lightning_perf.compare.verdicts.comparison import UnfairError
from lightning_perf.compare.verdicts.facts import Facts, without_warm_up
from lightning_perf.compare.verdicts.gates import ALLOW_WORK
from lightning_perf.errors import CompareError, InvalidRunsError
from lightning_perf.units import format_duration

FAR_APART_S = 3600.0
"""A note names runs that started further apart than this."""

DRIFT_APART = 0.05
"""A note says that the steps of one arm become slower within a run than those of the other by at least this share."""

BUSY_SHARE = 0.1
"""Report other processes from this share of the usable processors' time."""

THROTTLED_SHARE = 0.02
"""Report a CPU quota from this share of the training."""

BUSY_LOAD = 0.5
"""Report the load at the start of a run from this value per processor, if records lack the share of other processes."""


def _too_few_arms(facts: Facts) -> None:
    if len(facts.arms) < 2:
        raise CompareError(
            f"A comparison needs at least two arms, not {len(facts.arms)}. Give a folder of runs for each arm, or the "
            "folder of a study."
        )


def _given_twice(facts: Facts) -> None:
    counts = Counter(run.path.resolve() for runs in facts.arms.values() for run in runs)
    for path, count in counts.items():
        if count > 1:
            raise CompareError(f"{path}: this run is given {count} times. Give each arm its own folders.")
    arms = {name: {run.identity: run.path for run in runs} for name, runs in facts.arms.items()}
    for name, runs in list(arms.items())[1:]:
        for identity in runs.keys() & arms[facts.baseline].keys():
            original = arms[facts.baseline][identity]
            raise CompareError(f"{runs[identity]}: a copy of {original}. Give {name} runs of its own.")


def _without_valid_run(facts: Facts) -> None:
    for name, used in facts.used.items():
        if not used:
            counts = Counter(facts.left_out[name].values())
            reasons = ", ".join(f"{count} {reason}" for reason, count in counts.items())
            raise InvalidRunsError(
                f"{name}: no valid run to compare ({reasons or 'it has no runs'}). Train this arm again."
            )


def _without_common_block(facts: Facts) -> None:
    blocks = {name: {run.place.block for run in runs if run.place} for name, runs in facts.used.items()}
    base = facts.baseline
    for name in facts.candidates:
        if facts.blocked and not blocks[name] & blocks[base]:
            raise InvalidRunsError(
                f"{name}: no block has valid runs of both {name} and {base}. Run the study again to resume."
            )


def _unfair(facts: Facts) -> None:
    unfair = {name: check.unfair for name, check in facts.fairness.items() if check.unfair}
    if unfair:
        raise UnfairError(facts.baseline, unfair)


def _goal_without_accuracy(facts: Facts) -> None:
    quality, settings = facts.quality, facts.settings
    needed = settings.goal is not None or settings.collapse_below is not None
    if needed and quality is not None and not quality.is_accuracy:
        raise CompareError(
            f"--goal and --collapse-below need an accuracy, but {quality.name} is a {quality.metric}. "
            "Leave them out, or name the accuracy with --accuracy METRIC."
        )


CHECKS: tuple[Callable[[Facts], None], ...] = (
    _too_few_arms,
    _given_twice,
    _without_valid_run,
    _without_common_block,
    _unfair,
    _goal_without_accuracy,
)
"""The checks that refuse a comparison with a `CompareError`. A check may rely on the ones before it."""


def _not_blocked(facts: Facts) -> Iterator[str]:
    if not facts.blocked:
        yield (
            "The runs are not from the blocks of one study, so drift of the machine can look like a difference between "
            "the arms. A study alternates the arms."
        )


def _same_treatment(facts: Facts) -> Iterator[str]:
    for name, check in facts.fairness.items():
        if facts.treatment and not any(difference.allowed_by == "treatment" for difference in check.differences):
            yield (
                f"The records of {name} and {facts.baseline} do not differ in the setting being tested "
                f"({', '.join(facts.treatment)}). Check that it reaches the training."
            )


def _unchecked(facts: Facts) -> Iterator[str]:
    unchecked = sorted({fact for check in facts.fairness.values() for fact in check.unchecked})
    if unchecked:
        yield f"Not checked, because no run recorded it: {', '.join(unchecked)}."
    unknown = sorted({fact for check in facts.fairness.values() for fact in check.unknown})
    if unknown:
        yield f"Not checked, because it is unknown in at least one run: {'; '.join(unknown)}."


def _blocks_far_apart(facts: Facts) -> Iterator[str]:
    if not facts.blocked:
        return
    starts: dict[int, list[float]] = {}
    for run in facts.runs:
        starts.setdefault(run.place.block if run.place else 0, []).append(run.started_unix_s)
    longest_s = max((run.train_time_s or 0.0 for run in facts.runs), default=0.0)
    for block, times in sorted(starts.items()):
        gap_s = max(times) - min(times)
        if gap_s > FAR_APART_S + longest_s * len(facts.arms):
            yield f"Block {block}: its runs started {format_duration(gap_s * 1e9)} apart."


def _arms_far_apart(facts: Facts) -> Iterator[str]:
    if facts.blocked:
        return
    starts = {name: [run.started_unix_s for run in runs] for name, runs in facts.used.items()}
    base = starts[facts.baseline]
    for name in facts.candidates:
        gap_s = max(min(starts[name]) - max(base), min(base) - max(starts[name]))
        if gap_s > FAR_APART_S:
            yield f"The runs of {facts.baseline} and {name} are {format_duration(gap_s * 1e9)} apart."


def _only_profiled(facts: Facts) -> Iterator[str]:
    for name, runs in facts.used.items():
        slowed = sum(run.steps is not None and run.steps.only_profiled for run in runs)
        if slowed:
            yield f"{name}: {slowed} of {len(runs)} runs have only profiled steps, which are slower than others."


def _profiled_unequally(facts: Facts) -> Iterator[str]:
    recorded = {
        name: sorted({run.steps.profiled_steps for run in runs if run.steps}) for name, runs in facts.used.items()
    }
    if len({tuple(counts) for counts in recorded.values()}) > 1:
        counted = "; ".join(f"{name} {', '.join(map(str, counts)) or 'unknown'}" for name, counts in recorded.items())
        yield (
            f"The arms have different numbers of profiled steps per run ({counted}). Profiling makes training times "
            "longer. The timed runs of a study are not profiled."
        )


def _different_work(facts: Facts) -> Iterator[str]:
    for name, pair in facts.pairs.items():
        for metric, reason in pair.different_work.items():
            title = METRICS[metric].title
            yield f"The {title} of {name} is not compared: {reason}. If this does not matter, add --allow {ALLOW_WORK}."


def _slower_during_a_run(facts: Facts) -> Iterator[str]:
    """Yield a note on steps that become slower during the runs of one arm only."""
    drifts = {
        name: float(np.median(known))
        for name, runs in facts.used.items()
        if (known := [run.steps.drift for run in runs if run.steps is not None and run.steps.drift is not None])
    }
    base = facts.baseline
    for name in facts.candidates:
        if {name, base} <= drifts.keys() and abs(drifts[name] - drifts[base]) >= DRIFT_APART:
            changes = " and ".join(f"{100 * drifts[arm]:+.0f} % in {arm}".replace("-", "−") for arm in (name, base))
            yield f"Within a run, the step time changes by {changes}. The means hold for runs of this length only."


def _quality_of_runs(facts: Facts) -> Iterator[str]:
    quality = facts.quality
    if quality is not None and quality.in_percent:
        yield f"{quality.name} was logged in per cent and is divided by 100 here. Goal and margin are shares."
    if quality is not None:
        return
    best = best_logged(facts.runs)
    if best is None:
        why = "the runs share no metric such as val_acc or val_loss. Log one, or name another metric with --quality"
    else:
        lack = {name: sum(not best.is_in(run) for run in runs) for name, runs in facts.used.items()}
        counts = ", ".join(
            f"{count} of {len(facts.used[name])} runs of {name}" for name, count in lack.items() if count
        )
        why = f"{best.name} is missing in {counts}. Log it in all, or name another metric with --quality"
    yield f"Whether the candidates still learn was not checked, because {why}."


def _single_runs(facts: Facts) -> Iterator[str]:
    quality = facts.quality
    for name, runs in facts.used.items():
        without = 0 if quality is None else sum(not quality.is_in(run) for run in runs)
        if quality is not None and without:
            yield f"{name}: {without} of {len(runs)} runs logged no {quality.name}."
        for remark, count in Counter(remark for run in runs for remark in run.remarks).items():
            yield f"{name}: in {count} of {len(runs)} runs {remark}."
        problems = [run.steps_problem for run in runs if run.steps_problem is not None]
        if problems:
            yield f"{name}: the step times of {len(problems)} of {len(runs)} runs cannot be read: {problems[0]}"


NOTES: tuple[Callable[[Facts], Iterator[str]], ...] = (
    _not_blocked,
    _same_treatment,
    _unchecked,
    _blocks_far_apart,
    _arms_far_apart,
    _only_profiled,
    _profiled_unequally,
    _different_work,
    _slower_during_a_run,
    _quality_of_runs,
    _single_runs,
)
"""The notes on the design of a comparison and on its runs."""


def busy_lines(arms: Mapping[str, Sequence[RunRecord]]) -> tuple[str, ...]:
    """Describe other load on the machine during all runs of two arms, the most important first.

    The runs include those left out because their times are invalid.
    """
    counted = {name: without_warm_up(runs) for name, runs in arms.items()}
    return (
        *_other_processes(counted),
        *_cpu_quota(counted),
        *_load_at_start(counted),
        *_invalid_times(counted),
    )


def _other_processes(counted: Mapping[str, Sequence[RunRecord]]) -> Iterator[str]:
    shares = {name: [s for run in runs if (s := run.other_cpu_share) is not None] for name, runs in counted.items()}
    if any(share >= BUSY_SHARE for of_arm in shares.values() for share in of_arm):
        each = " and ".join(f"{_range(of_arm)} during {name}" for name, of_arm in shares.items() if of_arm)
        yield f"The machine was busy: other processes took {each} of the processors' time."


def _cpu_quota(counted: Mapping[str, Sequence[RunRecord]]) -> Iterator[str]:
    quotas = {name: [s for run in runs if (s := run.cpu_throttled_share) is not None] for name, runs in counted.items()}
    if any(share >= THROTTLED_SHARE for of_arm in quotas.values() for share in of_arm):
        each = " and ".join(f"{_range(of_arm)} of {name}" for name, of_arm in quotas.items() if of_arm)
        yield f"A CPU quota held the runs back for {each}."


def _load_at_start(counted: Mapping[str, Sequence[RunRecord]]) -> Iterator[str]:
    runs = [run for of_arm in counted.values() for run in of_arm]
    loads = []
    for run in runs:
        load, cpus = run.notes.get("load_1min"), run.notes.get("cpus")
        if isinstance(load, (int, float)) and isinstance(cpus, (int, float)) and cpus:
            loads.append((load / cpus, load, cpus))
    if any(run.other_cpu_share is not None for run in runs) or not loads or max(loads)[0] < BUSY_LOAD:
        return
    _, load, cpus = max(loads)
    where = f"{load:.1f} on {cpus:.0f} processors"
    yield f"The machine may have been busy: the load was up to {where} when runs started (including earlier runs)."


def _invalid_times(counted: Mapping[str, Sequence[RunRecord]]) -> Iterator[str]:
    for name, runs in counted.items():
        found = [seen for run in runs if (seen := [problem for problem in run.problems if problem != GIVEN_UP])]
        problems = "; ".join(dict.fromkeys(problem for seen in found for problem in seen))
        if found:
            yield f"Left out as invalid, {len(found)} of {len(runs)} runs of {name}: {problems}."


def _range(shares: Sequence[float]) -> str:
    low, high = f"{100 * min(shares):.0f}", f"{100 * max(shares):.0f}"
    return f"{high} %" if low == high else f"{low} to {high} %"
