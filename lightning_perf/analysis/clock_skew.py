"""Clock skew: device work that begins before the call that launched it, which no device can do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightning_perf.trace.trace import Trace

__all__ = ["ClockSkew", "clock_skew"]


@dataclass(frozen=True)
class ClockSkew:
    """How far the host's and the device's clocks disagree, over the whole recording.

    The recorder converts the device's times to the host's clock. Where it does so badly, what overlaps, what is hidden
    and what the device waits for are wrong by as much.

    Attributes:
        early: Pieces of device work that begin before their launch call does.
        linked: Pieces of device work whose launch was recorded.
        lead_ns: By how much the earliest of them does: the clocks differ by at least that.
    """

    early: int
    linked: int
    lead_ns: int


def clock_skew(trace: Trace) -> ClockSkew | None:
    """Look for device work that begins before it was launched.

    Args:
        trace: The recording.

    Returns:
        The skew, or None where there is no such work.
    """
    call = trace.links.device_runtime
    linked = np.flatnonzero(call >= 0)
    lead = trace.runtime.start_ns[call[linked]] - trace.device.start_ns[linked]
    early = int((lead > 0).sum())
    return ClockSkew(early, len(linked), int(lead.max())) if early else None
