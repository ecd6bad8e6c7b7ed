"""Who waits for whom in the collectives of several ranks: matched by order, compared by begin or by duration."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from lightning_perf.analysis.rank_times import CollectiveCall, RankTimes

__all__ = ["CollectiveSkew", "CollectiveWaits", "collective_waits"]

_COMPARABLE_SHARE = 0.95

_SKEWS_LISTED = 20


@dataclass(frozen=True)
class CollectiveSkew:
    """All matched calls of one collective.

    Attributes:
        name: The collective.
        group: Process group; empty when not recorded.
        calls: Calls matched between ranks.
        mean_skew_ns: Mean time from the first rank's arrival to the last one's.
        max_skew_ns: Greatest.
        last_rank: The rank that arrived last most often.
    """

    name: str
    group: str
    calls: int
    mean_skew_ns: int
    max_skew_ns: int
    last_rank: int


@dataclass(frozen=True)
class CollectiveWaits:
    """The waits in all matched collectives, over all recorded steps.

    Attributes:
        clocks_comparable: Whether arrival is told by begins on a common clock. Otherwise by durations: a collective
            ends for all at about the same time, so that the rank it takes least time arrived last. None when no
            collectives could be matched.
        matched: Collectives found on at least two ranks, by step, name, group and order.
        wait_ns: What each rank waited for the last to arrive.
        awaited_ns: What the others waited for each rank, together; it sums to what all waited.
        last_arrivals: In how many collectives each rank arrived last.
        skew: Skew by collective, greatest total first.
    """

    clocks_comparable: bool | None
    matched: int
    wait_ns: Mapping[int, int]
    awaited_ns: Mapping[int, int]
    last_arrivals: Mapping[int, int]
    skew: tuple[CollectiveSkew, ...]


_Key = tuple[int, str, str, int]
"""Step, name, group, and the how-manieth of these in the step."""

_Arrivals = dict[int, int]
"""When each rank arrived, on a scale whose origin means nothing."""


def collective_waits(by_rank: Mapping[int, RankTimes]) -> CollectiveWaits:
    """Match the ranks' collectives and tell who waited for whom.

    Args:
        by_rank: The ranks' times by number.

    Returns:
        The waits: of every rank, 0 where it was in no matched collective.
    """
    matched = _match(by_rank)
    comparable = _comparable(matched)
    arrivals = {
        key: {rank: call.start_ns if comparable else -call.duration_ns for rank, call in calls.items()}
        for key, calls in matched.items()
    }
    wait, awaited, last = (dict.fromkeys(by_rank, 0) for _ in range(3))
    for arrived in arrivals.values():
        late = _last(arrived)
        for rank, time in arrived.items():
            wait[rank] += arrived[late] - time
            awaited[late] += arrived[late] - time
        last[late] += min(arrived.values()) < arrived[late]
    return CollectiveWaits(comparable, len(matched), wait, awaited, last, _skew(arrivals))


def _match(by_rank: Mapping[int, RankTimes]) -> dict[_Key, dict[int, CollectiveCall]]:
    found: dict[_Key, dict[int, CollectiveCall]] = defaultdict(dict)
    for rank, times in by_rank.items():
        count: Counter[tuple[int, str, str]] = Counter()
        for call in times.collectives:
            key = (call.step, call.name, call.group)
            found[(*key, count[key])][rank] = call
            count[key] += 1
    return {key: calls for key, calls in found.items() if len(calls) > 1}


def _comparable(matched: dict[_Key, dict[int, CollectiveCall]]) -> bool | None:
    """Clocks agree if a collective ends nowhere before it began everywhere: it cannot."""
    if not matched:
        return None
    possible = sum(
        max(call.start_ns for call in calls.values())
        <= min(call.start_ns + call.duration_ns for call in calls.values())
        for calls in matched.values()
    )
    return possible >= _COMPARABLE_SHARE * len(matched)


def _last(arrived: _Arrivals) -> int:
    return max(arrived, key=lambda rank: (arrived[rank], -rank))


def _skew(arrivals: dict[_Key, _Arrivals]) -> tuple[CollectiveSkew, ...]:
    skews: dict[tuple[str, str], list[int]] = defaultdict(list)
    last: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for (_, name, group, _), arrived in arrivals.items():
        skews[name, group].append(max(arrived.values()) - min(arrived.values()))
        last[name, group][_last(arrived)] += 1
    rows = [
        CollectiveSkew(*key, len(each), round(sum(each) / len(each)), max(each), last[key].most_common(1)[0][0])
        for key, each in skews.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.mean_skew_ns * row.calls, row.name))[:_SKEWS_LISTED])
