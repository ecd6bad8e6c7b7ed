from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_perf.analysis.precision.loss_scale import ScalerState, summarize_loss_scale
from lightning_perf.run_files.numerics.precision import LossScaleHistory
from lightning_perf.run_files.numerics.samples import SCALE_EVENTS, OverflowOrigin, ScaleEvent


def as_fp32(value: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return float("inf")


@given(
    st.lists(st.booleans(), max_size=60),
    st.integers(1, 5),
    st.sampled_from([1.5, 2.0, 3.7]),
    st.sampled_from([0.5, 0.1]),
    st.sampled_from([65536.0, 2.0**126, 2.0**-148]),
)
@settings(deadline=None)  # the first example imports torch
def test_follows_the_scaler_of_torch(overflows, interval, growth, backoff, scale):
    torch = pytest.importorskip("torch")
    theirs, tracker = torch.full((), scale), torch.full((), 0, dtype=torch.int32)
    ours = ScalerState(as_fp32(scale), 0, growth, backoff, interval)
    for overflow in overflows:
        torch._amp_update_scale_(theirs, tracker, torch.tensor(float(overflow)), growth, backoff, interval)
        ours = ours.after(overflow=overflow)
        assert (ours.scale, ours.steps_since_change) == (theirs.item(), tracker.item())


EVENTS = (
    ScaleEvent("start", 10, 65536.0, 0, 0),
    ScaleEvent("overflow", 12, 32768.0, 3, 300, wasted_ns=100, scheduler_steps=1, steps_since_change=2),
    ScaleEvent("overflow", 13, 16384.0, 4, 450, wasted_ns=150, origin=OverflowOrigin("fc", "its output", "inf")),
    ScaleEvent("growth", 15, 32768.0, 6, 700, steps_since_change=2),
    ScaleEvent("end", 19, 32768.0, 10, 1000, steps_since_change=4),
)


def test_history_of_a_run():
    history = summarize_loss_scale(EVENTS)
    assert (history.initial_scale, history.final_scale) == (65536.0, 32768.0)
    assert (history.lowest_scale, history.highest_scale) == (16384.0, 65536.0)
    assert (history.attempts, history.skipped_steps, history.growths) == (10, 2, 1)
    assert (history.scheduler_steps_on_skips, history.steps_since_change) == (1, 4)
    assert (history.wasted_ns, history.goodput) == (250, 0.75)
    assert history.finished
    assert msgspec.json.decode(msgspec.json.encode(history), type=LossScaleHistory) == history


def test_killed_run_has_the_history_up_to_its_last_event(tmp_path):
    path = tmp_path / "loss_scale.rank0.jsonl"
    path.write_bytes(SCALE_EVENTS.encode(*EVENTS[:3]) + SCALE_EVENTS.encode(EVENTS[3])[:25])
    events = SCALE_EVENTS.read(path)
    assert events == EVENTS[:3]
    history = summarize_loss_scale(events)
    assert (history.finished, history.attempts, history.final_scale) == (False, 4, 16384.0)


def test_no_events_are_no_history():
    with pytest.raises(ValueError, match="the run did not start"):
        summarize_loss_scale([])


def test_run_without_training_time_wastes_nothing():
    assert summarize_loss_scale(EVENTS[:1]).goodput == 1.0


def test_goodput_is_a_share_also_of_a_run_that_skipped_every_step():
    skipped = ScaleEvent("overflow", 1, 1.0, 1, 1000, wasted_ns=1001)
    assert summarize_loss_scale([EVENTS[0], skipped]).goodput == 0
