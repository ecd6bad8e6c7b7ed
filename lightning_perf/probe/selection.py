"""Chooses the calls that a probe makes: those with the most time, as far as the time for the probe reaches."""

from __future__ import annotations

from collections.abc import Collection

from lightning_perf.analysis.model.operator_calls import OperatorCalls

__all__ = ["COVERAGE", "covered_share", "select_calls"]

COVERAGE = 0.97
"""Share of the operators' time from which further calls are left out."""

SHORTEST_NS = 3_000
"""Shorter calls are left out: their time is that of calling them, which no setting changes."""


def covered_share(calls: OperatorCalls, chosen: Collection[int]) -> float:
    """Return the share of the operators' time that chosen calls have."""
    whole = sum(call.forward_ns + call.backward_ns for call in calls.calls)
    return sum(calls.calls[place].forward_ns + calls.calls[place].backward_ns for place in chosen) / max(1, whole)


def select_calls(calls: OperatorCalls, possible: Collection[int], pass_ns: float) -> tuple[int, ...]:
    """Choose calls, those with the most time first.

    Args:
        calls: The calls.
        possible: Places of the calls that can be made.
        pass_ns: Most time for making each chosen call once, by the recorded times.

    Returns:
        Places of the chosen calls, in the order of the step. At least one if there is any.
    """
    time_ns = {place: call.forward_ns + call.backward_ns for place, call in enumerate(calls.calls)}
    whole = sum(time_ns.values())
    chosen: list[int] = []
    covered = spent = 0.0
    for place in sorted(possible, key=lambda place: -time_ns[place]):
        each = time_ns[place] / calls.calls[place].calls
        if covered >= COVERAGE * whole:
            break
        if each < SHORTEST_NS or (chosen and spent + each > pass_ns):
            continue
        chosen.append(place)
        spent += each
        covered += time_ns[place]
    return tuple(sorted(chosen))
