"""Whether two arms may be compared: their fingerprints must agree in everything but the setting being tested."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from lightning_perf.compare.records.fingerprint import NOT_HASHED, hash_methods
from lightning_perf.run_files.run_record import FactValue

HASHES = ("model.initial_weights", "data.first_batch", "data.manifest", "data.val_manifest")
"""Facts that are hashes of content."""

SEED_FACTS = ("train.seed", *HASHES)
"""Facts that may differ from run to run. Over the runs of an arm they must form the same set in both arms. The data
sets are among them because a seed may choose the held-out samples."""

CONSEQUENCES = {
    "train.batch_size": ("data.first_batch",),
    "data.manifest": ("data.first_batch",),
    "train.seed": SEED_FACTS,
    "data.num_workers": ("data.persistent_workers", "data.prefetch_factor"),
}
"""Facts that usually differ when the fact on the left does: the last two exist only with worker processes."""

ESSENTIAL = ("data.manifest", "model.initial_weights", "data.first_batch", "code.revision")
"""Facts that a note names when no run recorded them: the comparison then assumes that they agree."""

Facts: TypeAlias = Mapping[str, FactValue]
"""The fingerprint of a run."""


class Difference(Struct, frozen=True):
    """A fact that differs between the arms.

    Attributes:
        fact: Its name.
        baseline: Its distinct values over the baseline's runs, as text.
        candidate: Its distinct values over the candidate's runs, as text.
        allowed_by: ``"treatment"`` or ``"allow"`` if the fact may differ; None if it makes the comparison unfair. A
            treatment may differ between the arms, but not within an arm.
    """

    fact: str
    baseline: tuple[str, ...]
    candidate: tuple[str, ...]
    allowed_by: str | None


class Fairness(Struct, frozen=True):
    """The differences between the fingerprints of two arms.

    Attributes:
        differences: All facts that differ, the unfair ones first, each group in alphabetical order.
        unchecked: Essential facts that no run recorded.
        unknown: Facts that are a hash in some runs only, or hashes that were taken in different ways, with the reason.
    """

    differences: tuple[Difference, ...]
    unchecked: tuple[str, ...]
    unknown: tuple[str, ...] = ()

    @property
    def unfair(self) -> tuple[Difference, ...]:
        """The differences that make the comparison unfair."""
        return tuple(difference for difference in self.differences if difference.allowed_by is None)


HOST = "host."
"""Group of facts about the machine. A study may use several machines, but only one per block."""

ENVIRONMENT = "env."
"""Group of environment variables, which are recorded only where they are set."""


def is_named(fact: str, names: Collection[str]) -> bool:
    """Return whether names cover a fact. A name may be the fact, its whole group, or the part after the group.

    Example:
        >>> is_named("train.precision", ["precision"]), is_named("flags.tf32_matmul", ["flags"])
        (True, True)
        >>> is_named("train.batch_size", ["size"])
        False
    """
    group, _, rest = fact.partition(".")
    return any(name in (fact, group, rest) for name in names)


def likely_cause(facts: Collection[str]) -> str:
    """Return the differing fact to name first: one that causes others, else one that is not itself a consequence.

    Example:
        >>> likely_cause(["data.first_batch", "code.revision", "train.batch_size"])
        'train.batch_size'
        >>> likely_cause(["data.first_batch", "data.manifest"])
        'data.manifest'
    """
    return min(facts, key=lambda fact: (fact not in CONSEQUENCES, fact in SEED_FACTS, fact))


def check_fairness(
    baseline: Sequence[Facts],
    candidate: Sequence[Facts],
    *,
    treatment: Collection[str] = (),
    allow: Collection[str] = (),
    blocks: tuple[Sequence[int], Sequence[int]] | None = None,
) -> Fairness:
    """Compare the fingerprints of the runs of two arms with at least one run each.

    A fact of the `treatment` must have one value in all runs of an arm. Those of `allow` may differ, also within an
    arm. If both arms ran in `blocks`, facts that depend on the seed must agree within each block.
    """
    both = (*baseline, *candidate)
    names = sorted({fact for facts in both for fact in facts})
    under_test = _with_consequences(names, treatment)
    allowed = _with_consequences(names, allow)
    differences = []
    unknown = []
    for fact in names:
        ours, theirs = ([facts.get(fact) for facts in runs] for runs in (baseline, candidate))
        reason = _why_unknown(fact, {*ours, *theirs})
        if reason is not None:
            unknown.append(f"{fact} ({reason})")
            continue
        if _agree(fact, ours, theirs, blocks):
            continue
        settled = fact in SEED_FACTS or (_is_one(ours) and _is_one(theirs))
        allowed_by = "treatment" if fact in under_test and settled else "allow" if fact in allowed else None
        differences.append(Difference(fact, _texts(fact, ours), _texts(fact, theirs), allowed_by))
    unchecked = tuple(fact for fact in ESSENTIAL if all(facts.get(fact) is None for facts in both))
    ordered = sorted(differences, key=lambda difference: (difference.allowed_by is not None, difference.fact))
    return Fairness(tuple(ordered), unchecked, tuple(unknown))


def hardware_name(facts: Facts) -> str | None:
    """Return the name of the device; for a processor with the number of threads, which its speed depends on."""
    name, threads = facts.get("device.name"), facts.get("device.threads")
    if name is None:
        return None
    return f"{name}, {threads} thread{'' if threads == 1 else 's'}" if threads is not None else str(name)


def _why_unknown(fact: str, values: Collection[FactValue]) -> str | None:
    """Return why values of a fact cannot be compared: one is not hashed, or they are hashed in different ways."""
    texts = sorted(value for value in values if isinstance(value, str))
    reason = next((text for text in texts if text.startswith(NOT_HASHED)), None)
    if reason is None and fact in HASHES and len({hash_methods(text) for text in texts}) > 1:
        return "the runs hashed it in different ways"
    return reason


def _with_consequences(facts: Sequence[str], names: Collection[str]) -> set[str]:
    chosen = {fact for fact in facts if is_named(fact, names)}
    return chosen.union(*(CONSEQUENCES.get(fact, ()) for fact in chosen))


def _agree(
    fact: str,
    ours: Sequence[FactValue],
    theirs: Sequence[FactValue],
    blocks: tuple[Sequence[int], Sequence[int]] | None,
) -> bool:
    if fact not in SEED_FACTS and not (blocks is not None and fact.startswith(HOST)):
        return _is_one((*ours, *theirs))
    keys, other_keys = list(map(_key, ours)), list(map(_key, theirs))
    if blocks is not None:
        by_block, other_by_block = (
            dict(zip(blocks[0], keys, strict=True)),
            dict(zip(blocks[1], other_keys, strict=True)),
        )
        return all(by_block[block] == other_by_block[block] for block in by_block.keys() & other_by_block.keys())
    a, b = Counter(keys), Counter(other_keys)
    # If the arms have different numbers of runs, the seeds of the smaller arm must be among those of the larger.
    return a == b if len(ours) == len(theirs) else not (a - b) or not (b - a)


def _is_one(values: Sequence[FactValue]) -> bool:
    return len(set(map(_key, values))) == 1


def _key(value: FactValue) -> tuple[str, FactValue]:
    # 1, 1.0 and True are equal in Python, but they are different settings.
    return type(value).__name__, value


def _texts(fact: str, values: Sequence[FactValue]) -> tuple[str, ...]:
    missing = "not set" if fact.startswith(ENVIRONMENT) else "not recorded"
    return tuple(dict.fromkeys(missing if value is None else str(value) for value in values))
