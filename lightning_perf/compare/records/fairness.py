"""Whether two arms may be compared: their fingerprints must agree in everything but the setting being tested."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from lightning_perf.compare.records.record import RunRecord
from lightning_perf.run_files.run_record import FactValue

__all__ = ["SEED_FACTS", "Difference", "Fairness", "check_fairness", "is_named", "likely_cause"]

SEED_FACTS = ("train.seed", "model.initial_weights", "data.first_batch", "data.manifest", "data.val_manifest")
"""Facts that differ from run to run by intent: over an arm's runs they have to form the same set in both arms. The data
are among them because a seed may draw what is held out."""

CONSEQUENCES = {
    "train.batch_size": ("data.first_batch",),
    "data.manifest": ("data.first_batch",),
    "train.seed": SEED_FACTS,
}
"""Facts that as a rule do not agree when the one on the left does not."""

ESSENTIAL = ("data.manifest", "model.initial_weights", "data.first_batch", "code.revision")
"""Facts whose absence is worth a word, since a comparison then takes their agreement on trust."""


@dataclass(frozen=True)
class Difference:
    """A fact in which the arms differ.

    Attributes:
        fact: Its name.
        baseline: Its values over the baseline's runs, as text, each once.
        candidate: The same of the candidate.
        allowed_by: ``"treatment"`` or ``"allow"`` when it may differ; None when it makes the comparison unfair. What is
            under test may differ between the arms, not within one.
    """

    fact: str
    baseline: tuple[str, ...]
    candidate: tuple[str, ...]
    allowed_by: str | None


@dataclass(frozen=True)
class Fairness:
    """The outcome of the check.

    Attributes:
        differences: What differs, the unfair first, in alphabetical order.
        unchecked: Essential facts that no run recorded.
    """

    differences: tuple[Difference, ...]
    unchecked: tuple[str, ...]

    @property
    def unfair(self) -> tuple[Difference, ...]:
        """The differences that forbid the comparison."""
        return tuple(difference for difference in self.differences if difference.allowed_by is None)


HOST = "host."
"""Group of facts about the machine. Blocks of a study may run on different machines, the runs of one block may not."""

ENVIRONMENT = "env."
"""Group of facts that are recorded where they are set only."""


def is_named(fact: str, names: Collection[str]) -> bool:
    """Whether a fact is among names, where a name may be a whole group or the part after the group.

    Example:
        >>> is_named("train.precision", ["precision"]), is_named("flags.tf32_matmul", ["flags"])
        (True, True)
        >>> is_named("train.batch_size", ["size"])
        False
    """
    group, _, rest = fact.partition(".")
    return any(name in (fact, group, rest) for name in names)


def likely_cause(facts: Collection[str]) -> str:
    """The differing fact to name first: one that brings others about, then one that is not itself a consequence.

    Example:
        >>> likely_cause(["data.first_batch", "code.revision", "train.batch_size"])
        'train.batch_size'
        >>> likely_cause(["data.first_batch", "data.manifest"])
        'data.manifest'
    """
    return min(facts, key=lambda fact: (fact not in CONSEQUENCES, fact in SEED_FACTS, fact))


def check_fairness(
    baseline: Sequence[RunRecord],
    candidate: Sequence[RunRecord],
    *,
    treatment: Collection[str] = (),
    allow: Collection[str] = (),
    blocked: bool = False,
) -> Fairness:
    """Compare the fingerprints of two arms.

    Args:
        baseline: Runs of the baseline, at least one.
        candidate: Runs of the candidate, at least one.
        treatment: Facts under test: each has one value in all runs of an arm.
        allow: Facts that may differ although they are not under test, also within an arm.
        blocked: Whether runs are paired by block: then what depends on the seed has to agree within each block.

    Returns:
        What differs.
    """
    baseline, candidate = [_with_host(run) for run in baseline], [_with_host(run) for run in candidate]
    names = sorted({fact for run in (*baseline, *candidate) for fact in run.facts})
    under_test = _with_consequences(names, treatment)
    allowed = _with_consequences(names, allow)
    differences = []
    for fact in names:
        if _agree(fact, baseline, candidate, blocked):
            continue
        settled = fact in SEED_FACTS or (_is_one(fact, baseline) and _is_one(fact, candidate))
        allowed_by = "treatment" if fact in under_test and settled else "allow" if fact in allowed else None
        differences.append(Difference(fact, _values(fact, baseline), _values(fact, candidate), allowed_by))
    unchecked = tuple(fact for fact in ESSENTIAL if all(run.facts.get(fact) is None for run in (*baseline, *candidate)))
    return Fairness(tuple(sorted(differences, key=lambda d: (d.allowed_by is not None, d.fact))), unchecked)


def _with_host(run: RunRecord) -> RunRecord:
    """Older records name the machine in a note."""
    host = run.notes.get("host")
    return run if "host.name" in run.facts or not host else replace(run, facts={**run.facts, "host.name": host})


def _with_consequences(facts: Sequence[str], names: Collection[str]) -> set[str]:
    chosen = {fact for fact in facts if is_named(fact, names)}
    return chosen.union(*(CONSEQUENCES.get(fact, ()) for fact in chosen))


def _agree(fact: str, baseline: Sequence[RunRecord], candidate: Sequence[RunRecord], blocked: bool) -> bool:
    if fact not in SEED_FACTS and not (blocked and fact.startswith(HOST)):
        return _is_one(fact, (*baseline, *candidate))
    if blocked:
        ours, theirs = _by_block(fact, baseline), _by_block(fact, candidate)
        return all(ours[block] == theirs[block] for block in ours.keys() & theirs.keys())
    a = Counter(_key(run.facts.get(fact)) for run in baseline)
    b = Counter(_key(run.facts.get(fact)) for run in candidate)
    # With unequal numbers of runs the smaller arm's seeds have to be among the larger's.
    return a == b if len(baseline) == len(candidate) else not (a - b) or not (b - a)


def _is_one(fact: str, runs: Sequence[RunRecord]) -> bool:
    return len({_key(run.facts.get(fact)) for run in runs}) == 1


def _by_block(fact: str, runs: Sequence[RunRecord]) -> Mapping[int | None, tuple[str, FactValue]]:
    return {run.place.block if run.place else None: _key(run.facts.get(fact)) for run in runs}


def _key(value: FactValue) -> tuple[str, FactValue]:
    # 1, 1.0 and True are equal in Python and are not the same setting.
    return type(value).__name__, value


def _values(fact: str, runs: Sequence[RunRecord]) -> tuple[str, ...]:
    missing = "not set" if fact.startswith(ENVIRONMENT) else "not recorded"
    return tuple(dict.fromkeys(missing if run.facts.get(fact) is None else str(run.facts[fact]) for run in runs))
