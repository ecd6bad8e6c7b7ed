"""Conclusions from the measured variants: the best trade-offs, the recommended one, and doubts about the figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.measurement.measure import Latency, Rounds, speedup
from lightning_perf.inference.results.tradeoff import Cell, Machine, Recommendation, Row, measured_rows
from lightning_perf.units import format_milliseconds, format_ratio, format_share

BUSY = 0.5
"""A note mentions other load if the load average is above this: half a processor."""

WAITED = 1.1
"""A note says that calls waited for their processor if wall time over CPU time on one thread is above this."""

NOISY = 0.05
"""A note mentions A/A noise above this."""


LEAST_AGREEMENT, LEAST_BEYOND_CHANCE = 0.5, 0.2
"""A variant that gives the class of the original for a smaller share of the inputs is another model. So is one with a
smaller agreement beyond chance (Cohen's kappa), such as one that gives the most frequent class for all inputs."""

MOST_ERROR = 1.0
"""Without validation data, outputs that are wrong by as much as the largest output are ruined."""


def pareto_front(points: Mapping[str, tuple[float, float]], tie: float = 0.0) -> tuple[str, ...]:
    """Return the names of the points, each a cost and an accuracy, that no other point beats, the cheapest first.

    One point beats another if it is at least as accurate and cheaper by more than a tie, the relative difference of
    cost that is within the noise. It also beats the other if it is more accurate and its cost is at most a tie higher.
    There are no cycles: a chain of such steps never loses accuracy, and with equal accuracy its cost falls. So the
    front is never empty.
    """

    def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
        (cost, accuracy), (other_cost, other_accuracy) = one, other
        cheaper, no_dearer = cost * (1 + tie) < other_cost, cost <= other_cost * (1 + tie)
        return (cheaper and accuracy >= other_accuracy) or (no_dearer and accuracy > other_accuracy)

    front = [name for name, point in points.items() if not any(beats(other, point) for other in points.values())]
    return tuple(sorted(front, key=lambda name: (points[name][0], -points[name][1])))


def cell_of(rows: Sequence[Row], *, threads: int, batch: int, baseline: Rounds, again: Rounds) -> Cell:
    """Find the noise and the best variants for one batch size and number of threads.

    `again` are the rounds of the baseline's twin.
    """
    noise = speedup(again, baseline)
    ends = [value for value in (noise.value, noise.low, noise.high) if value is not None]
    tie = max((max(value, 1 / value) - 1 for value in ends), default=0.0)
    fast: dict[str, tuple[float, float]] = {}
    small: dict[str, tuple[float, float]] = {}
    for row, latency in measured_rows(rows, threads, batch):
        if ruin_of(row) is not None:
            continue
        accuracy = float(_correct(row))
        fast[row.variant] = latency.p50_ms, accuracy
        if row.size_bytes:
            small[row.variant] = min(row.size_bytes, row.packed_bytes or row.size_bytes), accuracy
    return Cell(threads, batch, noise, tie, pareto_front(fast, tie), pareto_front(small))


def ruin_of(row: Row) -> str | None:
    """Return how a variant's outputs show that it is no longer the model; None if they do not."""
    accuracy = row.accuracy
    if accuracy is None:
        if row.output_error is None or row.output_error < MOST_ERROR:
            return None
        return f"its outputs differ from the original's by {row.output_error:.1f} times the largest output"
    if accuracy.chance_agreement is None:
        return None  # the original
    text = f"it agrees with the original on {format_share(accuracy.agreement)} of the inputs"
    if accuracy.agreement < LEAST_AGREEMENT:
        return text
    beyond_chance = accuracy.agreement - accuracy.chance_agreement
    if beyond_chance < LEAST_BEYOND_CHANCE * (1 - accuracy.chance_agreement):
        return f"{text}, and by chance it would on {format_share(accuracy.chance_agreement)}"
    return None


def ruin_notes(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return a note on each variant that is no longer the model."""
    return tuple(f"{row.variant} is not recommended: {ruin}." for row in rows if (ruin := ruin_of(row)) is not None)


def condition_notes(machine: Machine, rows: Sequence[Row], cells: Sequence[Cell]) -> tuple[str, ...]:
    """Return notes about conditions that make the figures less reliable."""
    notes = []
    if machine.load_before is not None and machine.load_before > BUSY:
        notes.append(
            f"Other processes were using this machine: load average {machine.load_before:.2f} before the measurement."
        )
    for cell in cells:
        latency = rows[0].latency(cell.threads, cell.batch)
        if machine.device_type == "cpu" and cell.threads == 1 and latency is not None and latency.cpu_ms > 0:
            waited = latency.p50_ms / latency.cpu_ms
            if waited > WAITED:
                notes.append(
                    f"{cell.conditions}: calls took {waited:.2f} times their CPU time because they waited for a "
                    "processor."
                )
        if cell.tie > NOISY:
            notes.append(
                f"{cell.conditions}: two measurements of the original differ by up to {100 * cell.tie:.0f} %. Smaller "
                "differences between variants are noise. Measure on a quiet machine, or with more --seconds."
            )
    return tuple(notes)


NO_LIMIT_WITHOUT_DATA = (
    "A limit on the accuracy drop needs held-out inputs with labels, but there are no validation data. "
    "Give --data, or leave out --max-accuracy-drop."
)


def recommend(
    rows: Sequence[Row],
    cell: Cell,
    *,
    max_latency_ms: float | None,
    max_accuracy_drop_points: float | None,
    doubt: str | None = None,
) -> Recommendation | None:
    """Choose the variant to deploy; None without limits.

    With a limit on the accuracy drop, this is the fastest variant within the limits. Among variants with equal latency
    within the noise, it is the most accurate one, then the smallest. With a limit on the latency only, it is the most
    accurate variant within the limit, then the fastest. The limit on latency is one of the p90. A variant with ruined
    outputs is never chosen, and nothing is if `doubt` says why accuracy means nothing.
    """
    if max_latency_ms is None and max_accuracy_drop_points is None:
        return None
    variant, reason = None, doubt
    if doubt is None:
        variant, reason = _choose(
            measured_rows(rows, cell.threads, cell.batch), cell.tie, max_latency_ms, max_accuracy_drop_points
        )
    return Recommendation(max_latency_ms, max_accuracy_drop_points, variant, reason or "")


def _choose(
    measured: Sequence[tuple[Row, Latency]], tie: float, max_latency_ms: float | None, max_drop: float | None
) -> tuple[str | None, str]:
    """Return the best variant, and why it is the best, or why there is none."""
    if max_drop is not None and not any(row.accuracy for row, _ in measured):
        raise InferenceError(NO_LIMIT_WITHOUT_DATA)
    ruined = ruin_notes([row for row, _ in measured])
    measured = [(row, latency) for row, latency in measured if ruin_of(row) is None]
    if ruined and not measured:
        return None, ruined[0]
    kept = [
        (row, latency)
        for row, latency in measured
        if latency.slow_ms <= _limit(max_latency_ms) and _drop(row) <= _limit(max_drop)
    ]
    if not kept:
        return None, _nearest(measured, max_latency_ms, max_drop)
    if max_drop is None:
        row, latency = min(kept, key=lambda pair: (-_correct(pair[0]), pair[1].p50_ms))
    else:
        fastest_ms = min(latency.p50_ms for _, latency in kept)
        tied = [pair for pair in kept if pair[1].p50_ms <= fastest_ms * (1 + tie)]
        row, latency = min(tied, key=lambda pair: (-_correct(pair[0]), pair[0].size_bytes or 0, pair[1].p50_ms))
    return row.variant, _praise(row, latency, max_drop)


def _limit(given: float | None) -> float:
    return math.inf if given is None else given


def _drop(row: Row) -> float:
    return row.accuracy.drop_points if row.accuracy is not None else math.inf


def _correct(row: Row) -> int:
    return row.accuracy.correct if row.accuracy is not None else 0


def _praise(row: Row, latency: Latency, max_drop: float | None) -> str:
    p50, p90 = format_milliseconds(latency.p50_ms), format_milliseconds(latency.slow_ms)
    parts = [f"p50 {p50}, p90 {p90} with batch {latency.batch}"]
    if latency.speedup is not None and latency.speedup.value is not None:
        times = format_ratio(latency.speedup.value).removesuffix("×")
        parts.append(f"{times} times as fast as the original")
    accuracy = row.accuracy
    if accuracy is None:
        return f"{', '.join(parts)}. Accuracy was not measured."
    parts.append(f"accuracy {100 * accuracy.share:.1f} %, {_points(accuracy.drop_points)}")
    text = f"{', '.join(parts)}."
    if max_drop is not None and accuracy.drop_high_points is not None and accuracy.drop_high_points > max_drop:
        text += (
            f" With {accuracy.units} independent inputs a drop of up to {accuracy.drop_high_points:.1f} points "
            "cannot be ruled out."
        )
    return text


def _nearest(measured: Sequence[tuple[Row, Latency]], max_latency_ms: float | None, max_drop: float | None) -> str:
    if not measured:
        return "No variant was measured."
    fastest, fastest_latency = min(measured, key=lambda pair: pair[1].slow_ms)
    fastest_text = format_milliseconds(fastest_latency.slow_ms)
    if max_latency_ms is not None and fastest_latency.slow_ms > max_latency_ms:
        return (
            f"No variant has a p90 latency of at most {format_milliseconds(max_latency_ms)}: the fastest, "
            f"{fastest.variant}, has {fastest_text}."
        )
    accurate = [pair for pair in measured if _drop(pair[0]) <= _limit(max_drop)]
    if not accurate:
        best = min((row for row, _ in measured), key=_drop)
        return f"No variant is within the limit on accuracy: the nearest, {best.variant}, has {_points(_drop(best))}."
    row, latency = min(accurate, key=lambda pair: pair[1].slow_ms)
    return (
        f"No variant is within both limits: the fastest within the limit on accuracy, {row.variant}, has a p90 of "
        f"{format_milliseconds(latency.slow_ms)}; {fastest.variant} has {fastest_text} and {_points(_drop(fastest))}."
    )


def _points(drop: float) -> str:
    if drop == 0:
        return "no drop"
    return f"a drop of {drop:.2f} points" if drop > 0 else f"{-drop:.2f} points above the original"
