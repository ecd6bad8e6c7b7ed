"""Drift from FP32: the summary of shadow steps against figures by hand, and the judgement of replays."""

import msgspec
import numpy as np
import pytest
from scipy import stats

from lightning_perf.analysis.precision.shadow import OTHER_SEEDS, ShadowDrift, judge_drift, summarize_shadow
from lightning_perf.run_files.numerics.precision import NumericsDrift
from lightning_perf.run_files.numerics.samples import LayerShadow, ShadowSample
from tests.support.known import known


def sample(step: int, cosine: float | None, *, loss: float | None = 1.01, head: float = 0.999) -> ShadowSample:
    layers = {"body": LayerShadow(cosine, 1.5), "head": LayerShadow(head, 0.5 + step / 1000)}
    return ShadowSample(step, loss, 1.0, LayerShadow(cosine, 1.02), layers, cost_ns=10 + step, elapsed_ns=1000 + step)


def summarized(*samples: ShadowSample) -> ShadowDrift:
    return known(summarize_shadow(samples))


def test_no_samples():
    assert summarize_shadow([]) is None


def test_layers_and_losses():
    drift = summarized(sample(0, 0.99), sample(100, 0.95, loss=1.05), sample(200, None, loss=None))
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
    drift = summarized(sample(0, 0.99, head=-0.4))
    assert [layer.name for layer in drift.drifting] == ["head"]
    assert "head points elsewhere: its cosine falls to -0.40 at step 0." in drift.summary
    assert [layer.name for layer in summarized(sample(0, 0.99, head=0.0)).drifting] == ["head"]


def test_growing_drift():
    drift = summarized(*(sample(step, 1 - 0.001 * (step + 1)) for step in range(8)))
    assert (
        drift.summary[-1] == "The drift grows: 1 - cosine is 5.0 times as large at the end as at the start."
    )  # (7 + 8) / (1 + 2)
    few = summarized(*(sample(step, 1 - 0.001 * (step + 1)) for step in range(7)))
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
