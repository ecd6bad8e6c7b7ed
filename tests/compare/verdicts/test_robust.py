"""From ten blocks on, outlier runs do not hide a difference; the mean of the steps still decides."""

import numpy as np
import pytest
from scipy import stats

from benchmarks.comparing import verdict_noise
from benchmarks.comparing.verdict_noise import (
    SUMMARIES,
    chosen_interval,
    coverage,
    draw_runs,
    rank_interval,
    verdicts,
)
from lightning_perf.compare.judge import exit_code
from lightning_perf.compare.records.record import read_record
from lightning_perf.compare.verdicts.build import compare_arms
from lightning_perf.compare.verdicts.comparison import VerdictKind
from lightning_perf.compare.verdicts.gates import GateOutcome, Settings, parse_gate
from lightning_perf.compare.verdicts.pair import RANK_BLOCKS
from lightning_perf.run_files.steps import STEPS, StepSample
from lightning_perf.statistics.exact import signed_rank_test, walsh_ratio
from lightning_perf.statistics.location import paired_ratio
from tests.compare.support import write_arms

BLOCKS = 12
RNG = np.random.default_rng(2)
BASE = 100 * np.exp(RNG.normal(0, 0.02, BLOCKS))
OUTLIERS = np.array([1.0, 1.0, 1.25, *[1.0] * (BLOCKS - 3)])
BOTH = BASE * OUTLIERS[::-1]
CANDIDATE = BASE * 0.98 * np.exp(RNG.normal(0, 0.005, BLOCKS)) * OUTLIERS


def test_outlier_runs_of_both_arms_do_not_hide_a_difference_from_ten_blocks_on(tmp_path):
    comparison = compare_arms(write_arms(tmp_path, BOTH, CANDIDATE))
    result = comparison.candidates[0].metric("step_time")
    assert paired_ratio(BOTH, CANDIDATE).high > 1  # Student's t sees nothing
    expected = walsh_ratio(BOTH, CANDIDATE)
    assert (result.estimate.low, result.estimate.high) == pytest.approx((expected.low, expected.high), rel=1e-6)
    assert result.estimate.confidence == 0.95
    assert result.exact.method == "exact signed-rank test"
    assert result.exact.p == pytest.approx(stats.wilcoxon(np.log(CANDIDATE / BOTH), method="exact").pvalue)
    assert comparison.candidates[0].verdict.kind is VerdictKind.FASTER
    assert result.far_blocks is None


@pytest.mark.parametrize(("blocks", "slow"), [(12, 1), (20, 2), (20, 1)])
@pytest.mark.parametrize("factor", [3.0, 1.3])
def test_rare_slow_runs_of_the_candidate_make_the_verdict_inconclusive(tmp_path, blocks, slow, factor):
    rng = np.random.default_rng(5)
    base = 100 * np.exp(rng.normal(0, 0.005, blocks))
    candidate = base * 0.98 * np.exp(rng.normal(0, 0.005, blocks))
    candidate[:slow] *= factor
    gates = Settings(gates=(parse_gate("step_time<=1.05"), parse_gate("throughput>=0.99")))
    comparison = compare_arms(write_arms(tmp_path, base, candidate), gates)
    (result,) = comparison.candidates
    assert walsh_ratio(base, candidate).high < 1  # the ranks alone would say faster
    assert result.verdict.kind is VerdictKind.INCONCLUSIVE
    time = result.metric("step_time")
    assert time.mean.value == pytest.approx(candidate.sum() / base.sum(), rel=1e-6)
    assert time.estimate.low < time.mean.value < time.estimate.high
    assert time.far_blocks == (0, slow)
    assert result.verdict.details[0].startswith("The mean step time of all runs changed by")
    assert f"Amp was far slower than usual in {slow} of {blocks} blocks" in result.verdict.details[1]
    if factor == 3.0:
        assert {gate.outcome for gate in comparison.gates} == {GateOutcome.INCONCLUSIVE}
        assert exit_code(comparison) == 4


def test_a_verdict_names_the_share_of_slow_runs_that_it_may_miss(tmp_path):
    (candidate,) = compare_arms(write_arms(tmp_path)).candidates
    assert candidate.verdict.kind is VerdictKind.FASTER
    least = stats.binomtest(0, 6, alternative="less").proportion_ci(0.95).high
    assert f"if they are fewer than {100 * least:.0f} % (95 % confidence)." in candidate.verdict.details[1]


@pytest.mark.parametrize(
    ("blocks", "method"), [(RANK_BLOCKS - 1, "paired t"), (RANK_BLOCKS, "Walsh"), (51, "paired t")]
)
def test_the_number_of_blocks_alone_chooses_the_interval(tmp_path, blocks, method):
    base = 100 * np.exp(RNG.normal(0, 0.02, blocks))
    comparison = compare_arms(write_arms(tmp_path, base, base * np.exp(RNG.normal(0, 0.02, blocks))))
    assert comparison.candidates[0].metric("step_time").estimate.method.startswith(method)
    memory = comparison.candidates[0].metric("device_memory")
    assert memory.estimate.method.startswith("paired t")  # not a time


def test_runs_apart_keep_welchs_interval(tmp_path):
    comparison = compare_arms(write_arms(tmp_path, BASE, CANDIDATE, blocked=False))
    assert comparison.candidates[0].metric("step_time").estimate.method.startswith("Welch")


@pytest.mark.parametrize("n", [6, 9, 12, 20])
def test_the_signed_rank_test_is_scipys(n):
    for seed in range(20):
        d = np.random.default_rng([n, seed]).normal(0.3, 1, n)
        assert signed_rank_test(d).p == pytest.approx(stats.wilcoxon(d, method="exact").pvalue)


def test_the_signed_rank_test_without_differences_or_with_too_many():
    assert signed_rank_test([]).p is None
    assert signed_rank_test([1.0] * 51).p is None
    assert signed_rank_test([0.0] * 6).p == 1.0
    assert signed_rank_test([0.5, -0.5, 0.5, -0.5]).p == 1.0


@pytest.mark.parametrize("kind", ["normal", "bimodal", "skewed arms", "skewed candidate"])
def test_false_verdicts_are_at_most_six_percent_under_every_noise(kind):
    runs = draw_runs(kind, 1000, 20, {"mean": SUMMARIES["mean"]})["mean"]
    low, high = chosen_interval(runs)
    assert sum(verdicts((low, high), 0.0)) <= 0.06 + 2 * 0.0075  # two standard errors of the simulation
    assert coverage((low, high)) <= 0.985


def test_the_simulation_computes_what_compare_computes(tmp_path):
    rng = np.random.default_rng(3)
    drawn = rng.normal(0, 0.02, (6, BLOCKS, 2)) + np.log(100)
    drawn[3:, 0, 1] += np.log([1.1, 1.5, 3.0])
    for row, ends in enumerate(zip(*chosen_interval(drawn), strict=True)):
        base, candidate = np.exp(drawn[row]).T
        estimate = compare_arms(write_arms(tmp_path / str(row), base, candidate)).candidates[0].metric("step_time")
        assert np.exp(ends) == pytest.approx([estimate.estimate.low, estimate.estimate.high], rel=1e-6)
        assert estimate.far_blocks is not None or row < 4  # 1.1 times is within the noise


@pytest.mark.parametrize("title", list(verdict_noise.HIDDEN)[:2])
def test_only_the_mean_sees_costs_that_most_steps_do_not_have(title):
    rng = np.random.default_rng(1)
    times = np.exp(verdict_noise.draw_noise("normal", rng, 100, BLOCKS))
    times[:, :, 1] = verdict_noise.HIDDEN[title](rng, times[:, :, 1])
    slower = {}
    for name, summary in verdict_noise.SUMMARIES.items():
        logs = np.log(summary(times))
        slower[name] = verdict_noise.verdicts(rank_interval(logs[..., 1] - logs[..., 0]), 0.0)[1]
    assert slower.pop("mean") > 0.99
    assert max(slower.values()) < 0.01


def with_bursts(arms, *, device_ns=None):
    """Let other load slow down a different share of each run's steps."""
    rng = np.random.default_rng(4)
    for runs in arms.values():
        for place, run in enumerate(runs):
            usual = round(run.steps.mean_ns)
            slow = 5 + rng.permutation(40) < 5 + rng.integers(0, 25)
            samples = [StepSample(n, usual, 0, device_ns, 32, False) for n in range(5)]
            samples += [
                StepSample(n, 2 * usual if late else usual, 0, device_ns, 32, False) for n, late in enumerate(slow, 5)
            ]
            (run.path.parent / "steps.rank0.jsonl").write_bytes(STEPS.encode(*samples))
            runs[place] = read_record(run.path)
    return arms


def test_an_inconclusive_verdict_adds_the_25th_percentile_when_that_is_far_more_certain(tmp_path):
    arms = with_bursts(write_arms(tmp_path))
    (candidate,) = compare_arms(arms).candidates
    assert candidate.verdict.kind is VerdictKind.INCONCLUSIVE
    expected = paired_ratio([r.step_p25_ns for r in arms["fp32"]], [r.step_p25_ns for r in arms["amp"]])
    assert candidate.step_time_p25 == expected
    assert expected.high < 1
    (line,) = (line for line in candidate.verdict.details if line.startswith("The 25th percentile of the step time"))
    assert "changed by −6." in line
    assert "does not show slow steps" in line


def test_no_25th_percentile_on_accelerators_nor_outside_of_blocks_nor_in_a_clear_verdict(tmp_path):
    on_gpu = with_bursts(write_arms(tmp_path / "gpu"), device_ns=10)
    assert compare_arms(on_gpu).candidates[0].step_time_p25 is None
    apart = with_bursts(write_arms(tmp_path / "apart", blocked=False))
    assert compare_arms(apart).candidates[0].step_time_p25 is None
    clear = compare_arms(write_arms(tmp_path / "clear")).candidates[0]
    assert clear.verdict.kind is VerdictKind.FASTER
    assert clear.step_time_p25 is not None
    assert "25th" not in " ".join(clear.verdict.details)
    assert clear.step_time_p25.value < 1
