"""What the reader of a comparison should know of its runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from lightning_perf.compare.records.fairness import Fairness
from lightning_perf.compare.records.metrics import Quality
from lightning_perf.compare.records.record import RunRecord

__all__ = ["fairness_notes", "run_notes"]


def fairness_notes(
    checks: Mapping[str, Fairness], blocked: bool, treatment: Sequence[str], baseline: str
) -> tuple[str, ...]:
    """What is to be said of the design and the fingerprints.

    Args:
        checks: The check of each candidate, by its name.
        blocked: Whether runs are paired by block.
        treatment: Facts under test.
        baseline: The baseline's name.
    """
    notes = []
    if not blocked:
        notes.append(
            "The runs were not blocked: a drift of the machine between the arms looks like a difference of the arms. "
            "The blocks of a study alternate them."
        )
    for name, check in checks.items():
        if treatment and not any(difference.allowed_by == "treatment" for difference in check.differences):
            notes.append(
                f"{name} and {baseline} do not differ in what is under test ({', '.join(treatment)}), as far as their "
                "records tell: does the setting reach the training?"
            )
    unchecked = sorted({fact for check in checks.values() for fact in check.unchecked})
    if unchecked:
        notes.append(f"Not recorded by any run, so taken on trust: {', '.join(unchecked)}.")
    return tuple(notes)


def run_notes(used: Mapping[str, Sequence[RunRecord]], quality: Quality | None) -> tuple[str, ...]:
    """What single runs leave to be said.

    Args:
        used: The runs of each arm that count.
        quality: The metric that says how well they learned, or None.
    """
    notes = _profiling_notes(used)
    if quality is None:
        notes.append(
            "Nothing checks that the candidates still learn: the runs have no metric in common such as val_acc or "
            "val_loss. Log one, or name another with --quality."
        )
    elif quality.in_percent:
        notes.append(f"{quality.name} is logged in per cent and was divided by 100: goal and margin are shares.")
    for name, runs in used.items():
        without = sum(not quality.is_in(run) for run in runs) if quality is not None else 0
        if quality is not None and without:
            notes.append(f"{name}: {without} of {len(runs)} runs logged no {quality.name}.")
        remarks = Counter(remark for run in runs for remark in run.remarks)
        notes += [f"{name}: in {count} of {len(runs)} runs {remark}." for remark, count in remarks.items()]
        unread = [run.steps_problem for run in runs if run.steps_problem is not None]
        notes += [f"{name}: a run has no step times, since they cannot be read: {problem}" for problem in unread]
    return tuple(notes)


def _profiling_notes(used: Mapping[str, Sequence[RunRecord]]) -> list[str]:
    """Outside a study runs may be profiled: step times leave profiled steps out, where there are others."""
    notes = []
    for name, runs in used.items():
        slowed = sum(run.steps is not None and run.steps.only_profiled for run in runs)
        if slowed:
            notes.append(f"{name}: step times of {slowed} of {len(runs)} runs are of profiled steps, which are slower.")
    recorded = {name: sorted({run.steps.profiled_steps for run in runs if run.steps}) for name, runs in used.items()}
    if len({tuple(counts) for counts in recorded.values()}) > 1:
        told = "; ".join(f"{name} {', '.join(map(str, counts)) or 'unknown'}" for name, counts in recorded.items())
        notes.append(
            f"The arms were not profiled alike (profiled steps a run: {told}): training times of those that were are "
            "longer by what the profiler took. The timed runs of a study are not profiled."
        )
    return notes
