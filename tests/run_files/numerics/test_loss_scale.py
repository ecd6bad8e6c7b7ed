from __future__ import annotations

import pytest

from lightning_perf.errors import TraceError
from lightning_perf.run_files.numerics.samples import SCALE_EVENTS, OverflowOrigin, ScaleEvent

EVENTS = (
    ScaleEvent("start", 10, 65536.0, 0, 0),
    ScaleEvent("overflow", 12, 32768.0, 3, 300, wasted_ns=100, scheduler_steps=1, steps_since_change=2),
)


def test_what_a_resumed_run_adds_to_a_torn_line_is_read(tmp_path):
    path = tmp_path / "loss_scale.rank0.jsonl"
    torn = ScaleEvent("overflow", 3, 1.0, 4, 400, origin=OverflowOrigin("fc", "output", "inf"))
    path.write_bytes(SCALE_EVENTS.encode(EVENTS[0]) + SCALE_EVENTS.encode(torn)[:-4] + SCALE_EVENTS.encode(*EVENTS))
    assert SCALE_EVENTS.read(path) == (EVENTS[0], *EVENTS)


def test_bad_files_say_where(tmp_path):
    path = tmp_path / "loss_scale.rank0.jsonl"
    path.write_bytes(b'{"kind":"melt"}\n' + SCALE_EVENTS.encode(EVENTS[0]))
    with pytest.raises(TraceError, match="line 1 is no loss-scale event"):
        SCALE_EVENTS.read(path)
    with pytest.raises(TraceError, match="cannot be read"):
        SCALE_EVENTS.read(tmp_path / "none")
