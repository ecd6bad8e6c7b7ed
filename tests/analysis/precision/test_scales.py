"""The loss scale of fp16, and gradients that underflow at it."""

import struct

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_perf.analysis.precision.scales import ScalerState, summarize_loss_scale, tabulate_underflow
from lightning_perf.run_files.numerics.precision import LossScaleHistory, UnderflowTable
from lightning_perf.run_files.numerics.samples import (
    SCALE_EVENTS,
    Arithmetic,
    GradientSample,
    LayerGradients,
    NonFinite,
    ScaleEvent,
)


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
    ScaleEvent("overflow", 12, 32768.0, 3, 300, wasted_ns=100, scheduler_steps=1),
    ScaleEvent(
        "overflow", 13, 16384.0, 4, 450, wasted_ns=150, origin=NonFinite("aten::mm", "fc", "", False, "inf", "float16")
    ),
    ScaleEvent("growth", 15, 32768.0, 6, 700),
    ScaleEvent("end", 19, 32768.0, 10, 1000),
)


def test_history_of_a_run():
    history = summarize_loss_scale(EVENTS)
    assert history.scales == (65536.0, 32768.0, 16384.0, 32768.0, 32768.0)
    assert (history.attempts, history.skipped_steps, history.scheduler_steps_on_skips) == (10, 2, 1)
    assert (history.wasted_ns, history.goodput) == (250, 0.75)
    assert history.finished
    assert msgspec.json.decode(msgspec.json.encode(history), type=LossScaleHistory) == history


def test_killed_run_has_the_history_up_to_its_last_event(tmp_path):
    path = tmp_path / "loss_scale.rank0.jsonl"
    path.write_bytes(SCALE_EVENTS.encode(*EVENTS[:3]) + SCALE_EVENTS.encode(EVENTS[3])[:25])
    events = SCALE_EVENTS.read(path)
    assert events == EVENTS[:3]
    history = summarize_loss_scale(events)
    assert (history.finished, history.attempts, history.scales[-1]) == (False, 4, 16384.0)


def test_goodput_is_a_share_also_of_a_run_without_time_and_of_one_that_skipped_every_step():
    assert summarize_loss_scale(EVENTS[:1]).goodput == 1.0
    skipped = ScaleEvent("overflow", 1, 1.0, 1, 1000, wasted_ns=1001)
    assert summarize_loss_scale([EVENTS[0], skipped]).goodput == 0


@pytest.mark.parametrize("summarize", [summarize_loss_scale, tabulate_underflow])
def test_nothing_sampled_is_an_error(summarize):
    with pytest.raises(ValueError, match=r"the run did not start|before its first sampled step"):
        summarize([])


def count(values: np.ndarray, arithmetic: Arithmetic = "fp16") -> LayerGradients:
    """An independent count of values by power of two."""
    finite = values[np.isfinite(values)]
    exponents = np.floor(np.log2(np.abs(finite[finite != 0]))).astype(int)
    first = int(exponents.min()) if len(exponents) else 0
    counts = np.bincount(exponents - first) if len(exponents) else np.zeros(0, int)
    return LayerGradients(
        arithmetic, int((finite == 0).sum()), len(values) - len(finite), first, tuple(counts.tolist())
    )  # fmt: skip


magnitudes = st.lists(
    st.sampled_from([0.0]) | st.floats(2.0**-30, 2.0**15, allow_subnormal=False), min_size=1, max_size=40
)


@given(st.lists(magnitudes, min_size=1, max_size=4))
def test_shares_against_numpys_fp16(samples):
    arrays = [np.array(values) for values in samples]
    table = tabulate_underflow([GradientSample(n, 1.0, {"fc": count(a)}, {}) for n, a in enumerate(arrays)])
    values = np.concatenate(arrays)
    (row,) = table.layers
    nonzero = values[values != 0]
    smallest = float(np.finfo(np.float16).smallest_normal)
    assert row.values == len(values)
    assert row.zero_share == pytest.approx((values == 0).mean())
    if not len(nonzero):
        assert (row.subnormal_share, row.median_exponent, row.headroom_doublings) == (0.0, None, None)
        return
    assert row.subnormal_share == pytest.approx((nonzero < smallest).mean())
    assert row.headroom_doublings is not None
    with np.errstate(over="ignore"):
        power = 2.0 ** np.floor(np.log2(nonzero.max()))
        assert np.isfinite(np.float16(power * 2.0**row.headroom_doublings))
        assert np.isinf(np.float16(nonzero.max() * 2.0 ** (row.headroom_doublings + 1)))
    assert row.underflows == (row.subnormal_share > 0.1)
    assert msgspec.json.decode(msgspec.json.encode(table), type=UnderflowTable) == table


def layer(exponent: int, arithmetic: Arithmetic = "fp16", values: int = 100) -> LayerGradients:
    return LayerGradients(arithmetic, 0, 0, exponent, (values,))


def sample(layers: dict[str, LayerGradients], **hidden: LayerGradients) -> GradientSample:
    return GradientSample(0, 1024.0, layers, hidden)


ADVISED: dict[str, tuple[dict[str, int], str, float | tuple[str, ...] | None]] = {
    "a scale that lifts all layers": ({"a": -20, "b": -5}, "init_scale", 1024.0 * 2**6),
    "FP32 for a few": ({"tiny": -24, **{f"layer{n}": 13 for n in range(5)}}, "keep_fp32", ("tiny",)),
    "bf16 for many": ({"large": 15, **{f"layer{n}": -22 for n in range(5)}}, "bf16", None),
}
"""The exponents of layers, the action, and its argument."""


@pytest.mark.parametrize("case", ADVISED)
def test_the_smallest_change_is_advised(case):
    exponents, action, argument = ADVISED[case]
    table = tabulate_underflow([sample({name: layer(exponent) for name, exponent in exponents.items()})])
    assert table.advice.action == action
    assert (table.advice.init_scale or table.advice.keep_fp32 or None) == argument
    assert table.headroom_doublings == 15 - max(exponents.values())
    if action == "init_scale":
        lifted = {name: layer(exponent + 6) for name, exponent in exponents.items()}
        assert tabulate_underflow([sample(lifted)]).underflowing == ()


def test_layer_that_vanished_counts_by_what_a_larger_scale_showed():
    gone = LayerGradients("fp16", 50, 0, -40, ())
    table = tabulate_underflow([sample({"a": gone, "b": layer(0)}, a=layer(-27, values=30))])
    row = table.layers[0]
    assert (row.vanished, row.zero_share, row.values, row.underflows) == (True, 1.0, 50, True)
    assert row.median_exponent == -27
    assert table.advice.init_scale == 1024.0 * 2**13
    dead = tabulate_underflow([sample({"a": gone}, a=gone)])
    assert (dead.layers[0].vanished, dead.layers[0].underflows, dead.advice) == (False, False, None)
    assert tabulate_underflow([sample({"a": gone})]).layers[0].vanished is None


def test_layers_in_fp32_neither_underflow_nor_overflow_fp16():
    table = tabulate_underflow([sample({"norm": layer(-30, "fp32"), "head": layer(40, "fp32"), "fc": layer(3)})])
    assert table.underflowing == ()
    assert table.headroom_doublings == 12
    assert table.advice is None


def test_overflowing_steps_are_left_out_while_there_are_others():
    broken = sample({"a": LayerGradients("fp16", 0, 4, -20, (96,))})
    table = tabulate_underflow([broken, sample({"a": layer(0)})])
    assert (table.samples, table.layers[0].values, table.layers[0].underflows) == (1, 100, False)
    alone = tabulate_underflow([broken])
    assert (alone.samples, alone.layers[0].values) == (1, 100)
