"""A quantity over time, thinned for drawing without losing its extremes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightning_perf.trace.columns import Int64Array

__all__ = ["Series", "thin"]


@dataclass(frozen=True)
class Series:
    """A step function: each value holds from its time to the next.

    Attributes:
        time_ns: Times, ascending, from the begin of the recording.
        value: The value from each time on.
    """

    time_ns: tuple[int, ...]
    value: tuple[int, ...]


def thin(time_ns: Int64Array, value: Int64Array, origin_ns: int, buckets: int = 256) -> Series:
    """Thin a step function to at most four points a bucket: its first, least, greatest and last value there.

    Drawn with at least as many pixels as buckets the line is the same (M4 aggregation; Jugel et al., *M4: A
    Visualization-Oriented Time Series Data Aggregation*, VLDB 2014).

    Args:
        time_ns: Times of the changes, ascending.
        value: The value from each time on.
        origin_ns: What to subtract from the times.
        buckets: Into how many spans of equal length the time is divided.

    Returns:
        The series; whole when it is short enough.
    """
    if len(time_ns) > 4 * buckets:
        span = int(time_ns[-1] - time_ns[0]) + 1
        edges = time_ns[0] + np.arange(buckets, dtype=np.int64) * span // buckets
        first = np.unique(np.searchsorted(time_ns, edges, side="left"))
        last = np.append(first[1:], len(time_ns))
        kept = [first, last - 1]
        for begin, end in zip(first.tolist(), last.tolist(), strict=True):
            part = value[begin:end]
            kept.append(np.array([begin + int(part.argmin()), begin + int(part.argmax())]))
        rows = np.unique(np.concatenate(kept))
        time_ns, value = time_ns[rows], value[rows]
    return Series(tuple((time_ns - origin_ns).tolist()), tuple(value.tolist()))
