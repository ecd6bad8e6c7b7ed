"""Recommend the variant to deploy within limits of latency and accuracy."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.measurement.measure import Latency
from lightning_perf.inference.results.tradeoff import Cell, Recommendation, Row
from lightning_perf.units import format_milliseconds, format_ratio

__all__ = ["NO_LIMIT_WITHOUT_DATA", "recommend"]

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
) -> Recommendation:
    """Choose the variant to deploy.

    With a limit on the accuracy drop, this is the fastest variant within the limits. Among variants with equal latency
    within the noise, it is the most accurate one, then the smallest. With a limit on the latency only, it is the most
    accurate variant within the limit, then the fastest.

    Args:
        rows: The variants, the original first. A variant that failed, even at another batch size, is not chosen.
        cell: Batch size, threads, and noise.
        max_latency_ms: Highest p90 latency.
        max_accuracy_drop_points: Largest drop of accuracy, in percentage points.

    Raises:
        InferenceError: There is a limit on accuracy, but accuracy was not measured.
    """
    measured = [
        (row, latency)
        for row in rows
        if row.reason is None and (latency := row.latency(cell.threads, cell.batch)) is not None
    ]
    if max_accuracy_drop_points is not None and not any(row.accuracy for row, _ in measured):
        raise InferenceError(NO_LIMIT_WITHOUT_DATA)
    kept = [
        (row, latency)
        for row, latency in measured
        if (max_latency_ms is None or _slow_ms(latency) <= max_latency_ms)
        and (max_accuracy_drop_points is None or _drop(row) <= max_accuracy_drop_points)
    ]
    if not kept:
        reason = _nearest(measured, max_latency_ms, max_accuracy_drop_points)
        return Recommendation(max_latency_ms, max_accuracy_drop_points, None, reason)
    if max_accuracy_drop_points is None:
        row, latency = min(kept, key=lambda pair: (-_correct(pair[0]), pair[1].p50_ms))
    else:
        fastest_ms = min(latency.p50_ms for _, latency in kept)
        tied = [pair for pair in kept if pair[1].p50_ms <= fastest_ms * (1 + cell.tie)]
        row, latency = min(tied, key=lambda pair: (-_correct(pair[0]), pair[0].size_bytes or 0, pair[1].p50_ms))
    return Recommendation(
        max_latency_ms,
        max_accuracy_drop_points,
        row.variant,
        _praise(row, latency, max_accuracy_drop_points),
    )


def _slow_ms(latency: Latency) -> float:
    return latency.p90_ms if latency.p90_ms is not None else latency.p50_ms


def _drop(row: Row) -> float:
    return row.accuracy.drop_points if row.accuracy is not None else float("inf")


def _correct(row: Row) -> int:
    return row.accuracy.correct if row.accuracy is not None else 0


def _praise(row: Row, latency: Latency, max_drop: float | None) -> str:
    p50, p90 = format_milliseconds(latency.p50_ms), _slow_text(latency)
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
    fastest = min(measured, key=lambda pair: _slow_ms(pair[1]))
    if max_latency_ms is not None and _slow_ms(fastest[1]) > max_latency_ms:
        return (
            f"No variant has a p90 latency of at most {format_milliseconds(max_latency_ms)}: the fastest, "
            f"{fastest[0].variant}, has {_slow_text(fastest[1])}."
        )
    accurate = [pair for pair in measured if max_drop is None or _drop(pair[0]) <= max_drop]
    if not accurate:
        best = min(measured, key=lambda pair: _drop(pair[0]))
        return (
            f"No variant is within the limit on accuracy: the nearest, {best[0].variant}, has "
            f"{_points(_drop(best[0]))}."
        )
    row, latency = min(accurate, key=lambda pair: _slow_ms(pair[1]))
    return (
        f"No variant is within both limits: the fastest within the limit on accuracy, {row.variant}, has a p90 of "
        f"{_slow_text(latency)}; {fastest[0].variant} has {_slow_text(fastest[1])} and "
        f"{_points(_drop(fastest[0]))}."
    )


def _slow_text(latency: Latency) -> str:
    return format_milliseconds(_slow_ms(latency))


def _points(drop: float) -> str:
    if drop == 0:
        return "no drop"
    return f"a drop of {drop:.2f} points" if drop > 0 else f"{-drop:.2f} points above the original"
