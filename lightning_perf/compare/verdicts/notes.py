"""Notes on the design of a comparison and on its runs."""

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
    """Return notes on the design and the fingerprints.

    Args:
        checks: The check of each candidate, by its name.
        blocked: Whether runs are paired by block.
        treatment: Facts being tested.
        baseline: The baseline's name.
    """
    notes = []
    if not blocked:
        notes.append(
            "The runs are not from the blocks of one study, so drift of the machine can look like a difference between "
            "the arms. A study alternates the arms."
        )
    for name, check in checks.items():
        if treatment and not any(difference.allowed_by == "treatment" for difference in check.differences):
            notes.append(
                f"The records of {name} and {baseline} do not differ in the setting being tested "
                f"({', '.join(treatment)}). Check that it reaches the training."
            )
    unchecked = sorted({fact for check in checks.values() for fact in check.unchecked})
    if unchecked:
        notes.append(f"Not checked, because no run recorded it: {', '.join(unchecked)}.")
    unknown = sorted({fact for check in checks.values() for fact in check.unknown})
    if unknown:
        notes.append(f"Not checked, because it is unknown in at least one run: {'; '.join(unknown)}.")
    return tuple(notes)


def run_notes(used: Mapping[str, Sequence[RunRecord]], quality: Quality | None) -> tuple[str, ...]:
    """Return notes on single runs.

    Args:
        used: The runs of each arm that count.
        quality: The metric that shows how well they learned, or None.
    """
    notes = _profiling_notes(used)
    if quality is None:
        notes.append(
            "Whether the candidates still learn was not checked, because the runs share no metric such as val_acc or "
            "val_loss. Log one, or name another metric with --quality."
        )
    elif quality.in_percent:
        notes.append(f"{quality.name} was logged in per cent and is divided by 100 here. Goal and margin are shares.")
    for name, runs in used.items():
        without = sum(not quality.is_in(run) for run in runs) if quality is not None else 0
        if quality is not None and without:
            notes.append(f"{name}: {without} of {len(runs)} runs logged no {quality.name}.")
        remarks = Counter(remark for run in runs for remark in run.remarks)
        notes += [f"{name}: in {count} of {len(runs)} runs {remark}." for remark, count in remarks.items()]
        unread = [run.steps_problem for run in runs if run.steps_problem is not None]
        notes += [f"{name}: the step times of a run cannot be read: {problem}" for problem in unread]
    return tuple(notes)


def _profiling_notes(used: Mapping[str, Sequence[RunRecord]]) -> list[str]:
    """Return notes on profiled runs. Outside a study runs may be profiled; step times leave out profiled steps."""
    notes = []
    for name, runs in used.items():
        slowed = sum(run.steps is not None and run.steps.only_profiled for run in runs)
        if slowed:
            notes.append(
                f"{name}: {slowed} of {len(runs)} runs have only profiled steps, which are slower than others."
            )
    recorded = {name: sorted({run.steps.profiled_steps for run in runs if run.steps}) for name, runs in used.items()}
    if len({tuple(counts) for counts in recorded.values()}) > 1:
        counted = "; ".join(f"{name} {', '.join(map(str, counts)) or 'unknown'}" for name, counts in recorded.items())
        notes.append(
            f"The arms have different numbers of profiled steps per run ({counted}). Profiling makes training times "
            "longer. The timed runs of a study are not profiled."
        )
    return notes
