"""Computes values that several analyses of one trace need once per trace."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from lightning_perf.trace.trace import Trace

__all__ = ["cached_per_trace"]

T = TypeVar("T")


def cached_per_trace(function: Callable[[Trace], T]) -> Callable[[Trace], T]:
    """Keep the result of a function of a recording for as long as the recording itself is kept.

    Args:
        function: A pure function. Its result must not refer to the recording, or neither is ever freed.
    """
    kept: WeakKeyDictionary[Trace, T] = WeakKeyDictionary()

    @wraps(function)
    def remembered(trace: Trace) -> T:
        if trace not in kept:
            kept[trace] = function(trace)
        return kept[trace]

    return remembered
