"""The memory that other batch sizes would need, and the largest batch that fits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightning_perf.trace.columns import Int64Array

MARGIN = 0.05
"""Share by which both ends of a prediction are widened: the sizes of some blocks follow the batch only roughly."""

LARGEST_FACTOR = 1000
"""A largest batch is sought up to this many times the recorded one. Beyond, memory does not limit it."""


@dataclass(frozen=True)
class BatchLine:
    """The memory at one moment of a step, as a function of the batch size.

    Attributes:
        fixed_bytes: Bytes that do not depend on the batch size.
        sample_bytes: Bytes per sample.
    """

    fixed_bytes: int
    sample_bytes: float


@dataclass(frozen=True)
class BatchMemory:
    """The peak for other batch sizes: the highest of several lines, since the moment of the peak may change.

    Attributes:
        batch_size: Samples of the recorded batches.
        low: The lines if blocks as large as a parameter stay the same size, e.g. casts of weights.
        high: The lines if these blocks grow with the batch, too.
        sample_bytes: Bytes per further sample in large batches, by the high lines.
        doubled_low_bytes: The least memory in tensors that is predicted for a batch of twice the size.
        doubled_high_bytes: The most.
        available_bytes: Memory that tensors could use; None if it was not recorded. On a device, the share that the
            allocator held without tensors is taken off.
        largest_low: The largest batch that fits by the high prediction; None if it is not known, or if memory does not
            limit the batch.
        largest_high: The largest batch that fits by the low prediction; None as above.
    """

    batch_size: int
    low: tuple[BatchLine, ...]
    high: tuple[BatchLine, ...]
    sample_bytes: float
    doubled_low_bytes: int
    doubled_high_bytes: int
    available_bytes: int | None
    largest_low: int | None
    largest_high: int | None

    def peak_bytes(self, batch_size: int) -> tuple[int, int]:
        """Return the least and the most memory in tensors that are predicted for a batch size."""
        return _range(self.low, self.high, batch_size)


def batch_memory(
    total: Int64Array, likely: Int64Array, possible: Int64Array, batch_size: int, available_bytes: int | None
) -> BatchMemory | None:
    """Predict the peak for other batch sizes from the memory of the recorded steps.

    Args:
        available_bytes: Memory that tensors could use; None if it is not known.
    """
    if not len(total) or batch_size < 1 or not int(possible.max()):
        return None
    low, high = (_envelope(total - part, part, batch_size) for part in (likely, possible))
    limits: tuple[int | None, int | None] = (None, None)
    if available_bytes is not None:
        limits = (
            _largest(high, available_bytes / (1 + MARGIN), batch_size),
            _largest(low, available_bytes / (1 - MARGIN), batch_size),
        )
    return BatchMemory(
        batch_size, low, high, high[-1].sample_bytes, *_range(low, high, 2 * batch_size), available_bytes, *limits
    )


def _range(low: tuple[BatchLine, ...], high: tuple[BatchLine, ...], batch_size: int) -> tuple[int, int]:
    return int(_peak(low, batch_size) * (1 - MARGIN)), int(_peak(high, batch_size) * (1 + MARGIN))


def _peak(lines: tuple[BatchLine, ...], batch_size: int) -> float:
    return max(line.fixed_bytes + line.sample_bytes * batch_size for line in lines)


def _envelope(fixed: Int64Array, growing: Int64Array, batch_size: int) -> tuple[BatchLine, ...]:
    """Return the lines that are the highest for some batch size, the flattest first."""
    order = np.lexsort((fixed, growing))
    slopes, heights = growing[order], fixed[order]
    # Of equal slopes the highest counts, and a line below a steeper one that is also higher never does.
    last = np.append(slopes[1:] != slopes[:-1], True)
    slopes, heights = slopes[last], heights[last]
    above = np.maximum.accumulate(heights[::-1])[::-1]
    keep = np.append(heights[:-1] > above[1:], True)
    hull: list[tuple[int, int]] = []
    for slope, height in zip(slopes[keep].tolist(), heights[keep].tolist(), strict=True):
        while len(hull) > 1 and _is_hidden(hull[-2], hull[-1], (slope, height)):
            hull.pop()
        hull.append((slope, height))
    return tuple(BatchLine(height, slope / batch_size) for slope, height in hull)


def _is_hidden(flat: tuple[int, int], line: tuple[int, int], steep: tuple[int, int]) -> bool:
    """Whether the steep line passes the flat one no later than the line between them does."""
    return (flat[1] - steep[1]) * (line[0] - flat[0]) <= (flat[1] - line[1]) * (steep[0] - flat[0])


def _largest(lines: tuple[BatchLine, ...], available: float, batch_size: int) -> int | None:
    """Return the largest batch for which every line fits; None if memory does not limit it."""
    limits = [max(available - line.fixed_bytes, 0.0) / line.sample_bytes for line in lines if line.sample_bytes > 0]
    if any(line.fixed_bytes > available for line in lines):
        return 0
    largest = min(limits, default=float("inf"))
    return int(largest) if largest <= LARGEST_FACTOR * batch_size else None
