"""The categories of step time: which category gets each instant of a step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lightning_perf.analysis.core.caching import cached_per_trace
from lightning_perf.analysis.core.intervals import EMPTY, Intervals, merge
from lightning_perf.analysis.steps.phase_timeline import marks_by_phase
from lightning_perf.analysis.steps.runtime_calls import RuntimeKind, runtime_kinds
from lightning_perf.trace.columns import DeviceKind, Int64Array
from lightning_perf.trace.trace import Trace

__all__ = [
    "CATEGORIES",
    "DEVICE_CATEGORIES",
    "device_rows",
    "host_sets",
]


CATEGORIES: tuple[tuple[str, str | None], ...] = (
    ("device_compute", None),
    ("communication", None),
    ("memcpy", None),
    ("memcpy_h2d", "memcpy"),
    ("memcpy_d2h", "memcpy"),
    ("memcpy_d2d", "memcpy"),
    ("memcpy_p2p", "memcpy"),
    ("memcpy_unknown", "memcpy"),
    ("memset", None),
    ("input", None),
    ("kernel_launch", None),
    ("runtime", None),
    ("runtime_sync", "runtime"),
    ("runtime_alloc", "runtime"),
    ("runtime_other", "runtime"),
    ("host_compute", None),
    ("host_other", None),
)
"""Every category and its parent, in order of display, which is also the order of priority."""

DEVICE_CATEGORIES: dict[str, DeviceKind] = {
    "device_compute": DeviceKind.COMPUTE,
    "communication": DeviceKind.COLLECTIVE,
    "memcpy_h2d": DeviceKind.H2D,
    "memcpy_d2h": DeviceKind.D2H,
    "memcpy_d2d": DeviceKind.D2D,
    "memcpy_p2p": DeviceKind.P2P,
    "memcpy_unknown": DeviceKind.COPY,
    "memset": DeviceKind.MEMSET,
}
"""The categories that device work fills, in order of priority."""

_RUNTIME_CATEGORIES: dict[str, RuntimeKind] = {
    "kernel_launch": RuntimeKind.LAUNCH,
    "runtime_sync": RuntimeKind.SYNC,
    "runtime_alloc": RuntimeKind.ALLOC,
    "runtime_other": RuntimeKind.OTHER,
}


def device_rows(trace: Trace, kind: DeviceKind) -> Int64Array:
    """Return the rows of device work of one kind, ascending."""
    return np.flatnonzero(trace.device.kind == kind)


@cached_per_trace
def host_sets(trace: Trace) -> tuple[tuple[str, Intervals], ...]:
    """Return when each category of the host is active, in order of priority, without ``host_other``."""
    return tuple(_host_sets(trace))


def _host_sets(trace: Trace) -> Iterator[tuple[str, Intervals]]:
    fetch = marks_by_phase(trace).get("fetch")
    if fetch is None:
        yield "input", EMPTY
    else:
        waits = fetch.thread == trace.steps.thread
        yield "input", merge(fetch.start_ns[waits], fetch.end_ns[waits])
    kinds = runtime_kinds(trace)
    for name, kind in _RUNTIME_CATEGORIES.items():
        rows = kinds == kind
        yield name, merge(trace.runtime.start_ns[rows], trace.runtime.end_ns[rows])
    yield "host_compute", merge(trace.operators.start_ns, trace.operators.end_ns)
