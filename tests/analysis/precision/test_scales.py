"""The loss scale of fp16, and gradients that underflow at it."""

import struct

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lightning_perf.analysis.precision.scales import (
    OTHER_SEEDS,
    ScalerState,
    ShadowDrift,
    judge_drift,
    summarize_loss_scale,
    summarize_shadow,
    tabulate_underflow,
)
from lightning_perf.run_files.numerics.precision import LossScaleHistory, NumericsDrift, UnderflowTable
from lightning_perf.run_files.numerics.samples import (
    SCALE_EVENTS,
    Arithmetic,
    GradientSample,
    LayerGradients,
    LayerShadow,
    NonFinite,
    ScaleEvent,
    ShadowSample,
)
from tests.support.known import known


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


def shadow_step(step: int, cosine: float | None, *, loss: float | None = 1.01, head: float = 0.999) -> ShadowSample:
    layers = {"body": LayerShadow(cosine, 1.5), "head": LayerShadow(head, 0.5 + step / 1000)}
    return ShadowSample(step, loss, 1.0, LayerShadow(cosine, 1.02), layers, cost_ns=10 + step, elapsed_ns=1000 + step)


def summarized(*samples: ShadowSample) -> ShadowDrift:
    return known(summarize_shadow(samples))


def test_no_samples():
    assert summarize_shadow([]) is None


def test_layers_and_losses():
    drift = summarized(shadow_step(0, 0.99), shadow_step(100, 0.95, loss=1.05), shadow_step(200, None, loss=None))
    body, head = drift.layers
    assert (body.name, body.lowest_cosine, body.lowest_step, body.unknown) == ("body", 0.95, 100, 1)
    assert body.mean_cosine == pytest.approx(0.97)
    assert (head.name, head.lowest_norm_ratio, head.highest_norm_ratio) == ("head", 0.5, 0.7)
    assert drift.cost_share == 210 / 1200
    assert drift.summary == (
        "The cosine between the gradients and those in FP32 is at least 0.9500 (step 100).",
        "The losses differ by at most 5 %.",
        "No layer falls below 0.9.",
    )


def test_a_layer_that_points_elsewhere():
    drift = summarized(shadow_step(0, 0.99, head=-0.4))
    assert [layer.name for layer in drift.drifting] == ["head"]
    assert "head points elsewhere: its cosine falls to -0.40 at step 0." in drift.summary
    assert [layer.name for layer in summarized(shadow_step(0, 0.99, head=0.0)).drifting] == ["head"]


def test_growing_drift():
    drift = summarized(*(shadow_step(step, 1 - 0.001 * (step + 1)) for step in range(8)))
    assert (
        drift.summary[-1] == "The drift grows: 1 - cosine is 5.0 times as large at the end as at the start."
    )  # (7 + 8) / (1 + 2)
    few = summarized(*(shadow_step(step, 1 - 0.001 * (step + 1)) for step in range(7)))
    assert "The drift grows" not in " ".join(few.summary)


def judge(mixed_end: float, fp32_end: float, seed_ends: list[float]) -> NumericsDrift:
    return judge_drift(
        precision="16-mixed",
        mixed_losses=[1.0],
        fp32_losses=[1.0],
        mixed_end=mixed_end,
        fp32_end=fp32_end,
        seed_ends=seed_ends,
    )


def test_interval_is_students_for_one_more_run():
    ends = [2.0, 2.1, 1.9, 2.05, 2.02]
    drift = judge(2.0, ends[0], ends[1:])
    t = stats.t(df=4, loc=np.mean(ends), scale=np.std(ends, ddof=1) * np.sqrt(1 + 1 / 5))
    assert (drift.expected_low, drift.expected_high) == pytest.approx(t.interval(0.95), abs=1e-4)
    assert msgspec.json.decode(msgspec.json.encode(drift), type=NumericsDrift) == drift


def test_harmless_runs_are_named_in_one_case_of_twenty():
    draw = np.random.default_rng(0)
    runs = draw.normal(2.0, 0.05, (4000, 2 + OTHER_SEEDS))
    named = sum(judge(row[0], row[1], row[2:].tolist()).beyond_seed_noise for row in runs)
    assert stats.binomtest(named, len(runs), 0.05).pvalue > 0.01


def test_nan_is_beyond_any_noise_unless_fp32_diverges_too():
    assert judge(float("nan"), 2.0, [2.0, 2.1, 1.9, 2.0]).beyond_seed_noise
    assert not judge(float("nan"), float("nan"), [2.0, 2.1, 1.9, 2.0]).beyond_seed_noise


def test_other_numbers_of_seeds_are_refused():
    with pytest.raises(ValueError, match="3 other seeds given, but 4 are needed"):
        judge(2.0, 2.0, [2.0, 2.0, 2.0])
