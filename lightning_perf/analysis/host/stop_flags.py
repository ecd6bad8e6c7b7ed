"""Stop flags: Lightning broadcasts before each batch whether rank 0 got SIGTERM, and reads the answer at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightning_perf.analysis.core.averaged_steps import averaged_steps, in_averaged_steps
from lightning_perf.analysis.core.intervals import merge, subtract
from lightning_perf.analysis.steps.idle import device_busy
from lightning_perf.analysis.steps.phase_timeline import OWN_PREFIX
from lightning_perf.trace.trace import Trace

__all__ = ["StopFlags", "stop_flags"]

_BROADCAST, _READ = "c10d::broadcast_", "aten::item"


@dataclass(frozen=True)
class StopFlags:
    """Broadcasts of a flag that the host waits for, over the averaged steps.

    Attributes:
        steps: Steps that the figures are over.
        calls: Broadcasts.
        wait_ns: Time from the start of each broadcast until its value was read.
        exposed_ns: The part of that in which no device worked; all of it without a device.
    """

    steps: int
    calls: int
    wait_ns: int
    exposed_ns: int


def stop_flags(trace: Trace) -> StopFlags | None:
    """Find broadcasts of Lightning's stop flag.

    On more than one rank, Lightning 2.5.6 and later does ``torch.distributed.broadcast(flag, src=0)`` and
    ``flag.item()`` before each batch (``_TrainingEpochLoop._broadcast_sigterm_tensor`` in its source; issue #20825).
    It is recognized by its place: on the training thread, outside of all operators and phases, a broadcast followed
    only by the read of a value.

    Args:
        trace: The recording, with the phases that `PerfCallback` marks.

    Returns:
        The broadcasts, or None without any.
    """
    operators, marks = trace.operators, trace.annotations
    phases = np.flatnonzero(trace.names_where(lambda name: name.startswith(OWN_PREFIX))[marks.name])
    if not len(phases) or not len(operators):
        return None
    outermost = np.flatnonzero((trace.links.operator_parent < 0) & (operators.thread == trace.steps.thread))
    names = operators.name[outermost]
    is_broadcast = trace.names_where(lambda name: name == _BROADCAST)[names]
    is_read = trace.names_where(lambda name: name == _READ)[names]
    at = np.flatnonzero(is_broadcast[:-1] & is_read[1:])
    start, end = operators.start_ns[outermost[at]], operators.end_ns[outermost[at + 1]]
    busy = merge(marks.start_ns[phases], marks.end_ns[phases])
    phase = np.searchsorted(busy.end_ns, start, side="right")
    later = np.append(busy.start_ns, np.iinfo(np.int64).max)[phase]
    kept = (later >= end) & in_averaged_steps(trace, start)
    if not kept.any():
        return None
    waits = merge(start[kept], end[kept])
    exposed = subtract(waits, device_busy(trace)) if len(trace.device) else waits
    return StopFlags(
        steps=int(averaged_steps(trace).sum()),
        calls=int(kept.sum()),
        wait_ns=int((waits.end_ns - waits.start_ns).sum()),
        exposed_ns=int((exposed.end_ns - exposed.start_ns).sum()),
    )
