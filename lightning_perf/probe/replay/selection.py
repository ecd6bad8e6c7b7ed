"""Chooses the calls that a probe makes: those that cover the most of the step, as far as its time reaches."""

from __future__ import annotations

from collections.abc import Collection

from lightning_perf.analysis.model.operator_calls import OperatorCalls

COVERAGE = 0.97
"""Share of the operators' time from which further calls are left out, if time allows."""

SHORTEST_NS = 3_000
"""Shorter calls are left out: their time is that of calling them, which no setting changes."""

CALLING_NS = 10_000
"""Time that the probe itself takes for each call, about."""


def covered_share(calls: OperatorCalls, chosen: Collection[int]) -> float:
    """Return the share of the operators' time that chosen calls have."""
    whole = sum(call.forward_ns + call.backward_ns for call in calls.calls)
    return sum(calls.calls[place].forward_ns + calls.calls[place].backward_ns for place in chosen) / max(1, whole)


def select_calls(
    calls: OperatorCalls, possible: Collection[int], pass_ns: float, coverage: float = COVERAGE
) -> tuple[int, ...]:
    """Choose calls that cover much of the step and take little time, because the step repeats them.

    Args:
        possible: Places of the calls that can be made.

    Returns:
        Places of the chosen calls, in the order of the step. At least one if there is any.
    """
    time_ns = [call.forward_ns + call.backward_ns for call in calls.calls]
    cost_ns = [whole / call.calls + CALLING_NS for whole, call in zip(time_ns, calls.calls, strict=True)]
    # The greedy solution of the knapsack problem: by value per cost (Dantzig, Operations Research 5, 1957).
    worthwhile = [place for place in possible if cost_ns[place] >= SHORTEST_NS + CALLING_NS]
    chosen: list[int] = []
    covered = spent_ns = 0.0
    for place in sorted(worthwhile, key=lambda place: -time_ns[place] / cost_ns[place]):
        if covered >= coverage * sum(time_ns):
            break
        if chosen and spent_ns + cost_ns[place] > pass_ns:
            continue
        chosen.append(place)
        spent_ns += cost_ns[place]
        covered += time_ns[place]
    return tuple(sorted(chosen))
