"""Comparison of ranks: which rank waits for which in collectives, which rank is slow, and how fast their link is."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.intervals import averaged_steps, in_averaged_host_steps, in_averaged_steps
from lightning_perf.analysis.ranks.communication import (
    CollectiveRow,
    bus_factor,
    collective_bytes,
    collective_kind,
)
from lightning_perf.analysis.steps.breakdown import Breakdown, is_host_collective
from lightning_perf.machine.hardware import DeviceLink, find_link
from lightning_perf.trace.columns import NO_ROW, DeviceEvents, Spans
from lightning_perf.trace.description import Metadata
from lightning_perf.trace.indexing import at_rows
from lightning_perf.trace.trace import Trace

COLLECTIVES_KEPT = 4096
"""Collectives of a rank that are kept, the earliest ones. They suffice to see which rank waits for which."""


class CollectiveCall(Struct, frozen=True):
    """One collective on one rank.

    Attributes:
        name: The collective as recorded, or its kernel.
        group: Process group; empty if not recorded.
        duration_ns: Time from the rank's arrival to the end: the wait for the others, then the transfer.
        bus_bytes: Bytes that bus bandwidth counts; 0 if unknown.
    """

    step: int
    name: str
    group: str
    start_ns: int
    duration_ns: int
    bus_bytes: int = 0


class RankTimes(Struct, frozen=True):
    """One rank's times, as means over its averaged steps.

    Attributes:
        world_size: Ranks in the run, as this one recorded; None if not recorded.
        hostname: Its host; None if not recorded.
        categories_ns: Time by top category of the breakdown, as pairs of name and time.
        collectives: Its collectives in time order: those on the device, or else those on the host.
        first_step: Number of the first averaged step; None if the recording marks none.
        begin_ns: Start of that step, on the recording's clock.
    """

    rank: int
    world_size: int | None
    hostname: str | None
    steps: int
    step_ns: float
    categories_ns: tuple[tuple[str, float], ...]
    collectives: tuple[CollectiveCall, ...]
    first_step: int | None = None
    begin_ns: int | None = None


def rank_times(trace: Trace, breakdown: Breakdown, rank: int) -> RankTimes:
    """Extract the facts for the comparison of ranks. A recording does not always contain its rank."""
    averaged = np.flatnonzero(averaged_steps(trace) & trace.steps.marked)
    return RankTimes(
        rank=rank,
        world_size=trace.metadata.world_size,
        hostname=trace.metadata.hostname,
        steps=breakdown.averaged_steps,
        step_ns=breakdown.wall.mean_ns or 0.0,
        categories_ns=tuple(
            (row.name, row.mean_ns) for row in breakdown.categories if row.parent is None and row.mean_ns is not None
        ),
        collectives=_collectives(trace),
        first_step=int(trace.steps.number[averaged[0]]) if len(averaged) else None,
        begin_ns=int(trace.steps.start_ns[averaged[0]]) if len(averaged) else None,
    )


def _collectives(trace: Trace) -> tuple[CollectiveCall, ...]:
    """Return the collectives on the device, or else those on the host."""
    table: DeviceEvents | Spans = trace.device
    rows = np.flatnonzero(trace.device.is_collective & in_averaged_steps(trace, table.start_ns))[:COLLECTIVES_KEPT]
    recorded = np.full(len(table), NO_ROW, dtype=np.int32)
    recorded[trace.collectives.device_row] = np.arange(len(trace.collectives), dtype=np.int32)
    name, group = (
        at_rows(column, recorded[rows], NO_ROW) for column in (trace.collectives.name, trace.collectives.group)
    )
    if not len(rows):
        table = trace.annotations
        on_host = trace.names_where(is_host_collective)[table.name] & in_averaged_host_steps(trace, table.start_ns)
        rows = np.flatnonzero(on_host)[:COLLECTIVES_KEPT]
        name = group = np.full(len(rows), NO_ROW, dtype=np.int32)
    name = np.where(name == NO_ROW, table.name[rows], name)
    step = np.searchsorted(trace.steps.start_ns, table.start_ns[rows], side="right") - 1
    bus = np.array([*(_bus_bytes(trace, place) for place in range(len(trace.collectives))), 0], dtype=np.int64)
    sent = bus[recorded[rows]] if table is trace.device else np.zeros(len(rows), dtype=np.int64)
    columns = (trace.steps.number[step], name, group, table.start_ns[rows], table.duration_ns[rows], sent)
    return tuple(
        CollectiveCall(number, trace.names[code], trace.names[of] if of != NO_ROW else "", *rest)
        for number, code, of, *rest in zip(*(column.tolist() for column in columns), strict=True)
    )


def _bus_bytes(trace: Trace, place: int) -> int:
    """Return the bytes that bus bandwidth counts for a recorded collective; 0 if they are unknown."""
    table = trace.collectives
    kind, dtype = collective_kind(trace.names[table.name[place]]), int(table.dtype[place])
    sizes = int(table.in_elements[place]), int(table.out_elements[place])
    size = collective_bytes(kind, *sizes, trace.names[dtype] if dtype >= 0 else "")
    return round((size or 0) * (bus_factor(kind, int(table.group_size[place])) or 0))


_COMPARABLE_SHARE = 0.95

_SKEWS_LISTED = 20


class CollectiveSkew(Struct, frozen=True):
    """All matched calls of one collective.

    Attributes:
        name: The collective.
        group: Process group; empty if not recorded.
        calls: Calls matched between ranks.
        mean_skew_ns: Mean time from the first rank's arrival to the last one's.
        max_skew_ns: Largest such time.
        last_rank: The rank that arrived last most often.
    """

    name: str
    group: str
    calls: int
    mean_skew_ns: int
    max_skew_ns: int
    last_rank: int


class CollectiveWaits(Struct, frozen=True):
    """The waits in all matched collectives, over all recorded steps.

    Attributes:
        wait_ns: Time that each rank waited for the last one to arrive.
        awaited_ns: Time that the others waited for each rank, together. It sums to all waits.
        last_arrivals: Number of collectives in which each rank arrived last.
        bus_bytes_per_s: `Distributed.bus_bytes_per_s`.
    """

    clocks_comparable: bool | None
    matched: int
    wait_ns: Mapping[int, int]
    awaited_ns: Mapping[int, int]
    last_arrivals: Mapping[int, int]
    skew: tuple[CollectiveSkew, ...]
    bus_bytes_per_s: float | None


_Key = tuple[int, str, str, int]
"""Step, name, group, and a number that counts these within the step."""

_Arrivals = dict[int, int]
"""Arrival of each rank, on a scale with an arbitrary origin."""


def collective_waits(by_rank: Mapping[int, RankTimes]) -> CollectiveWaits:
    """Match the ranks' collectives and find out which rank waited for which."""
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
    # The last rank to arrive does not wait: its time is the transfer.
    known = [calls.values() for calls in matched.values() if all(call.bus_bytes for call in calls.values())]
    spent_ns = sum(min(call.duration_ns for call in calls) for calls in known)
    bandwidth = sum(next(iter(calls)).bus_bytes for calls in known) * 1e9 / spent_ns if spent_ns else None
    return CollectiveWaits(comparable, len(matched), wait, awaited, last, _skew(arrivals), bandwidth)


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
    """Check whether the clocks agree: no collective can end on one rank before it began on all."""
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


_IMBALANCE = 0.01
"""Ranks are equal if their work differs by less than this share: then no straggler is named. A rank is not named either
if the others wait for it for less than that share of a step."""

_MOST = 2 / 3
"""The others wait for a rank if at least this share of all waits is for it, and the waits matter to a step."""


class RankShare(Struct, frozen=True):
    """One rank, as means per step.

    Attributes:
        rank: The rank.
        hostname: Its host; None if not recorded.
        steps: Steps averaged.
        step_ns: Wall time.
        compute_ns: Device compute; None without a device.
        exposed_communication_ns: Communication that compute does not overlap; None without a device.
        input_ns: Exposed wait for input.
        wait_ns: Time that its collectives waited for other ranks; None if no collectives could be matched.
        work_ns: Wall time without the waits, at least 0: the rank's own time for a step.
        last_arrivals: Matched collectives in which it arrived last.
        awaited_ns: Time per step that the others' collectives waited for it, as the mean over them; None if no
            collectives could be matched.
        late_ns: How much later than the first rank it began the first recorded step. None if the recordings have
            no common first step or no common clock.
    """

    rank: int
    hostname: str | None
    steps: int
    step_ns: float
    compute_ns: float | None
    exposed_communication_ns: float | None
    input_ns: float
    wait_ns: float | None
    work_ns: float
    last_arrivals: int
    awaited_ns: float | None = None
    late_ns: int | None = None


class Straggler(Struct, frozen=True):
    """The rank with the longest work of its own.

    Attributes:
        rank: The rank.
        category: The breakdown's category in which it exceeds the others most.
        excess_ns: The excess over the others' median, per step.
        last_arrival_share: Part of the matched collectives in which it arrived last; None if none were matched.
    """

    rank: int
    category: str
    excess_ns: float
    last_arrival_share: float | None


class Awaited(Struct, frozen=True):
    """The rank that the others wait for: at least two thirds of all waits in collectives, and 1 % of a step.

    It mostly is the straggler. Otherwise, it may have come late to the first recorded step, or has much work just
    before a collective and little elsewhere.

    Attributes:
        rank: The rank.
        wait_ns: Its `RankShare.awaited_ns`.
        share: The part of all waits that was for it, 0 to 1.
        last_arrival_share: Part of the matched collectives in which it arrived last.
        late_ns: Its `RankShare.late_ns` if no rank began later. The waits then come, up to that much, from before the
            recording. None otherwise.
    """

    rank: int
    wait_ns: float
    share: float
    last_arrival_share: float
    late_ns: int | None


class Distributed(Struct, frozen=True):
    """The comparison of the ranks of a run.

    Attributes:
        ranks: Each rank that was read, by number.
        world_size: Ranks in the run; None if not recorded.
        missing_ranks: Ranks of the run that were not read. Collectives do not show their arrivals.
        clocks_comparable: Whether arrivals are compared by starts on a common clock. Otherwise by durations: a
            collective ends for all ranks at about the same time, so the rank with the shortest call arrived last. None
            if no collectives could be matched.
        matched_collectives: Collectives found on at least two ranks, by step, name, group and order.
        skew: Skew by collective, the largest total first.
        imbalance: Longest work of a rank over the ranks' mean work, minus 1: 0 if all are equal.
        balanced_saving_ns: The saving of a step if work were spread evenly: longest minus mean work.
        straggler: The rank with the longest work; None if the ranks are equal or there is only one.
        awaited: The rank that most of the waits were for; None without such a rank, or if no collectives could be
            matched.
        bus_bytes_per_s: Bus bandwidth of the matched collectives with known sizes, by the shortest time of each on any
            rank, which has no wait for others; None without any.
    """

    ranks: tuple[RankShare, ...]
    world_size: int | None
    missing_ranks: tuple[int, ...]
    clocks_comparable: bool | None
    matched_collectives: int
    skew: tuple[CollectiveSkew, ...]
    imbalance: float
    balanced_saving_ns: float
    straggler: Straggler | None
    awaited: Awaited | None = None
    bus_bytes_per_s: float | None = None


def distributed(ranks: Sequence[RankTimes]) -> Distributed | None:
    """Compare the ranks of a run; None for one rank without a sign of others."""
    by_rank: dict[int, RankTimes] = {}
    for each in ranks:
        by_rank.setdefault(each.rank, each)
    world_size = max((each.world_size for each in ranks if each.world_size is not None), default=None)
    if len(by_rank) < 2 and (world_size or 1) < 2:
        return None
    waits = collective_waits(by_rank)
    late = _late(by_rank, waits)
    shares = tuple(_share(by_rank[rank], waits, late.get(rank), len(by_rank)) for rank in sorted(by_rank))
    works = [share.work_ns for share in shares]
    mean = sum(works) / len(works) if works else 0.0
    imbalance = max(works) / mean - 1 if mean else 0.0
    return Distributed(
        ranks=shares,
        world_size=world_size,
        missing_ranks=tuple(rank for rank in range(world_size or 0) if rank not in by_rank),
        clocks_comparable=waits.clocks_comparable,
        matched_collectives=waits.matched,
        skew=waits.skew,
        imbalance=imbalance,
        balanced_saving_ns=max(works) - mean if works else 0.0,
        straggler=_straggler(by_rank, shares, waits.matched) if len(shares) > 1 and imbalance >= _IMBALANCE else None,
        awaited=_awaited(shares, waits),
        bus_bytes_per_s=waits.bus_bytes_per_s,
    )


def _late(by_rank: Mapping[int, RankTimes], waits: CollectiveWaits) -> dict[int, int]:
    """Return how much later than the first one each rank began the first recorded step."""
    begins = {rank: times.begin_ns for rank, times in by_rank.items() if times.begin_ns is not None}
    steps = {times.first_step for times in by_rank.values()}
    if not waits.clocks_comparable or len(steps) > 1 or len(begins) < len(by_rank):
        return {}
    first = min(begins.values())
    return {rank: begin - first for rank, begin in begins.items()}


def _share(times: RankTimes, waits: CollectiveWaits, late_ns: int | None, ranks: int) -> RankShare:
    categories = dict(times.categories_ns)
    steps = max(times.steps, 1)
    wait = waits.wait_ns[times.rank] / steps if waits.matched else None
    # Only exposed waiting lengthens the step. On the host it is time in which no operator runs.
    exposed = categories.get("communication", categories.get("host_other", 0.0))
    return RankShare(
        rank=times.rank,
        hostname=times.hostname,
        steps=times.steps,
        step_ns=times.step_ns,
        compute_ns=categories.get("device_compute"),
        exposed_communication_ns=categories.get("communication"),
        input_ns=categories.get("input", 0.0),
        wait_ns=wait,
        work_ns=max(times.step_ns - min(wait or 0.0, exposed), 0.0),
        last_arrivals=waits.last_arrivals[times.rank],
        awaited_ns=waits.awaited_ns[times.rank] / steps / max(ranks - 1, 1) if waits.matched else None,
        late_ns=late_ns,
    )


def _awaited(shares: Sequence[RankShare], waits: CollectiveWaits) -> Awaited | None:
    total = sum(waits.awaited_ns.values())
    most = max(shares, key=lambda share: waits.awaited_ns[share.rank], default=None)
    if most is None or not most.awaited_ns or waits.awaited_ns[most.rank] < _MOST * total:
        return None
    if most.awaited_ns < _IMBALANCE * statistics.fmean(share.step_ns for share in shares):
        return None
    began_last = most.late_ns is not None and most.late_ns == max(share.late_ns or 0 for share in shares) > 0
    return Awaited(
        rank=most.rank,
        wait_ns=most.awaited_ns,
        share=waits.awaited_ns[most.rank] / total,
        last_arrival_share=most.last_arrivals / waits.matched,
        late_ns=most.late_ns if began_last else None,
    )


def _straggler(by_rank: dict[int, RankTimes], shares: tuple[RankShare, ...], matched: int) -> Straggler:
    slowest = max(shares, key=lambda share: share.work_ns)
    own = _work_by_category(by_rank[slowest.rank], slowest)
    others = [_work_by_category(by_rank[share.rank], share) for share in shares if share is not slowest]
    excess = {name: time - statistics.median(other.get(name, 0.0) for other in others) for name, time in own.items()}
    category = max(excess, key=lambda name: excess[name]) if excess else "host_other"
    return Straggler(
        slowest.rank, category, excess.get(category, 0.0), slowest.last_arrivals / matched if matched else None
    )


def _work_by_category(times: RankTimes, share: RankShare) -> dict[str, float]:
    """Return the categories without the waits for other ranks, which are no reason for others to wait."""
    categories = dict(times.categories_ns)
    if categories.pop("communication", None) is None and "host_other" in categories:
        categories["host_other"] -= share.step_ns - share.work_ns
    return categories


class LinkUse(Struct, frozen=True):
    """How fast the collectives of known sizes move their bytes.

    Attributes:
        bus_bytes_per_s: Their bus bandwidth.
        at_least: Whether it can be higher, because not all ranks were read. It then follows from the shortest call of
            each size, which may include a wait for another rank.
        call_bus_bytes: Mean of the bytes that bus bandwidth counts for a call.
        link: Name of the link; None if it is not known.
        link_bytes_per_s: Its peak bandwidth in one direction.
        share: The bus bandwidth as a part of it.
        missing: Why the link is not known.
    """

    bus_bytes_per_s: float
    at_least: bool
    call_bus_bytes: float
    link: str | None = None
    link_bytes_per_s: float | None = None
    share: float | None = None
    missing: str | None = None


def link_use(
    collectives: tuple[CollectiveRow, ...], metadata: Metadata, compared: Distributed | None, given: float | None = None
) -> LinkUse | None:
    """Compare the bus bandwidth of one rank's collectives with the peak of its link; None for unknown sizes.

    Args:
        given: Peak of the link in one direction, in bytes per second, from the user.
    """
    told = [row for row in collectives if row.best_bus_bytes_per_s and row.bus_bytes_per_s]
    bus_bytes = sum((row.bus_bytes_per_s or 0.0) * row.total_ns / 1e9 for row in told)
    if not bus_bytes:
        return None
    whole = compared is not None and not compared.missing_ranks and compared.bus_bytes_per_s is not None
    rate = compared.bus_bytes_per_s if compared is not None and whole else None
    if rate is None:
        rate = bus_bytes / sum(row.calls * row.min_ns / 1e9 for row in told)
    calls = bus_bytes / sum(row.calls for row in told)
    link = DeviceLink("the given link", given) if given else _link(metadata, compared)
    if isinstance(link, str):
        return LinkUse(rate, not whole, calls, missing=link)
    return LinkUse(rate, not whole, calls, link.name, link.bytes_per_s, rate / link.bytes_per_s)


def _link(metadata: Metadata, compared: Distributed | None) -> DeviceLink | str:
    """Return the link inside of the machine, or why it is not known."""
    hosts = {share.hostname for share in compared.ranks} if compared and not compared.missing_ranks else {None}
    nodes = metadata.settings.nodes if metadata.settings is not None else None
    if nodes != 1 and (nodes is not None or len(hosts) > 1 or None in hosts):
        # A process may see only its own device, so fewer devices than ranks do not show several machines.
        return f"ranks {'are' if (nodes or len(hosts)) > 1 else 'may be'} on several machines"
    names = {device.name for device in metadata.devices if device.name}
    name = next(iter(names)) if len(names) == 1 else None
    return find_link(name) or f"no link of {name or 'these devices'} is known"
