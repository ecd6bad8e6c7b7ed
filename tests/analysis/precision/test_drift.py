from __future__ import annotations

import msgspec
import numpy as np
import pytest
from scipy import stats

from lightning_perf.analysis.precision.shadow import OTHER_SEEDS, judge_drift
from lightning_perf.run_files.numerics.precision import LayerDrift, NumericsDrift


def judge(mixed_end: float, fp32_end: float, seed_ends: list[float]) -> NumericsDrift:
    layers = [LayerDrift("fc", 0.001)]
    return judge_drift(
        precision="16-mixed",
        mixed_losses=[1.0],
        fp32_losses=[1.0],
        mixed_end=mixed_end,
        fp32_end=fp32_end,
        seed_ends=seed_ends,
        layers=layers,
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


def test_drift_is_what_precision_changed():
    assert judge(2.25, 2.0, [2.0, 2.1, 1.9, 2.0]).drift == 0.25
    with pytest.raises(ValueError, match="3 other seeds given, but 4 are needed"):
        judge(2.0, 2.0, [2.0, 2.0, 2.0])
