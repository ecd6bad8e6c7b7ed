"""Report other load on the machine during the runs: other processes, CPU quotas, throttled devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lightning_perf.compare.records.record import GIVEN_UP, RunRecord

__all__ = ["busy_lines"]

BUSY_SHARE = 0.1
"""Report other processes from this share of the usable processors' time."""

THROTTLED_SHARE = 0.02
"""Report a CPU quota from this share of the training."""

BUSY_LOAD = 0.5
"""Report the load at the start of a run from this value per processor, if records lack the share of other processes."""

_WARM_UP = 0


def busy_lines(arms: Mapping[str, Sequence[RunRecord]]) -> tuple[str, ...]:
    """Describe other load on the machine during the runs of two arms.

    Args:
        arms: All runs of both arms, including those left out because their times are invalid.

    Returns:
        Sentences, the most important first. Empty for an otherwise idle machine.
    """
    counted = {
        name: [run for run in runs if run.place is None or run.place.block != _WARM_UP] for name, runs in arms.items()
    }
    lines = []
    shares = {name: [s for run in runs if (s := run.other_cpu_share) is not None] for name, runs in counted.items()}
    if any(share >= BUSY_SHARE for of_arm in shares.values() for share in of_arm):
        each = " and ".join(f"{_range(of_arm)} during {name}" for name, of_arm in shares.items() if of_arm)
        lines.append(f"The machine was busy: other processes took {each} of the processors' time.")
    quotas = {name: [s for run in runs if (s := run.cpu_throttled_share) is not None] for name, runs in counted.items()}
    if any(share >= THROTTLED_SHARE for of_arm in quotas.values() for share in of_arm):
        each = " and ".join(f"{_range(of_arm)} of {name}" for name, of_arm in quotas.items() if of_arm)
        lines.append(f"A CPU quota held the runs back for {each}.")
    if not any(shares.values()):
        lines += _load_at_start([run for runs in counted.values() for run in runs])
    for name, runs in counted.items():
        found = [seen for run in runs if (seen := [problem for problem in run.problems if problem != GIVEN_UP])]
        problems = "; ".join(dict.fromkeys(problem for seen in found for problem in seen))
        if found:
            lines.append(f"Left out as invalid, {len(found)} of {len(runs)} runs of {name}: {problems}.")
    return tuple(lines)


def _range(shares: Sequence[float]) -> str:
    low, high = f"{100 * min(shares):.0f}", f"{100 * max(shares):.0f}"
    return f"{high} %" if low == high else f"{low} to {high} %"


def _load_at_start(runs: Sequence[RunRecord]) -> list[str]:
    loads = []
    for run in runs:
        load, cpus = run.notes.get("load_1min"), run.notes.get("cpus")
        if isinstance(load, (int, float)) and isinstance(cpus, (int, float)) and cpus:
            loads.append((load / cpus, load, cpus))
    if not loads or max(loads)[0] < BUSY_LOAD:
        return []
    _, load, cpus = max(loads)
    where = f"{load:.1f} on {cpus:.0f} processors"
    return [f"The machine may have been busy: the load was up to {where} when runs started (including earlier runs)."]
