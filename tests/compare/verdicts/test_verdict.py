import math

import msgspec
import numpy as np
import pytest

from lightning_perf.analysis.precision.amp_gain import AmpGain
from lightning_perf.compare.records.metrics import Quality
from lightning_perf.compare.records.record import read_record
from lightning_perf.compare.verdicts.build import compare_arms
from lightning_perf.compare.verdicts.comparison import MetricResult, VerdictKind
from lightning_perf.compare.verdicts.facts import Learned
from lightning_perf.compare.verdicts.gates import Settings
from lightning_perf.compare.verdicts.verdict import Evidence, classify, describe_verdict
from lightning_perf.report.document import SCHEMA_VERSION
from lightning_perf.run_files.run_record import Place
from lightning_perf.statistics.collapse import CollapseCounts
from lightning_perf.statistics.exact import sign_flip_test
from lightning_perf.statistics.location import (
    Difference,
    blocks_needed,
    minimal_detectable_effect,
    non_inferiority,
    paired_difference,
    paired_ratio,
)
from lightning_perf.statistics.values import Estimate
from tests.compare.support import BASE_MS, write_arms, write_run
from tests.support.shown import console_text


def time_result(ratios, metric="step_time", detectable=0.02):
    base = [100.0] * len(ratios)
    candidate = [100 * ratio for ratio in ratios]
    exact = sign_flip_test([math.log(ratio) for ratio in ratios])
    estimate = paired_ratio(base, candidate)
    return MetricResult(metric, estimate, exact, estimate, deterministic=False, detectable=detectable)


def verdict(ratios, **changes):
    defaults = {
        "baseline": "fp32",
        "candidate": "amp",
        "results": [time_result(ratios)],
        "blocked": True,
        "equivalence": 0.01,
        "unfinished": NONE,
    }
    return describe_verdict(Evidence(**defaults | changes))


NONE = CollapseCounts(0, 6, 0, 6)
FASTER = [0.94 * math.exp(gap) for gap in (-0.003, -0.002, -0.001, 0.001, 0.002, 0.003)]


def accuracy(value, error, collapsed=NONE):
    kept = non_inferiority(Difference(value, error, 5, 6, "paired", None), 0.01)
    return Learned(Quality("val_acc"), kept, value, collapsed, diverged=False)


@pytest.mark.parametrize(
    ("low", "high", "kind"),
    [
        (0.90, 0.95, VerdictKind.FASTER),
        (0.90, 1.00, VerdictKind.INCONCLUSIVE),
        (1.00, 1.10, VerdictKind.INCONCLUSIVE),
        (0.90, 1.10, VerdictKind.INCONCLUSIVE),
        (1.02, 1.10, VerdictKind.SLOWER),
        (0.995, 1.005, VerdictKind.EQUIVALENT),
        (0.992, 0.996, VerdictKind.EQUIVALENT),
        (1 / 1.01, 1.01, VerdictKind.EQUIVALENT),
        (0.989, 1.0, VerdictKind.INCONCLUSIVE),
        (None, None, VerdictKind.INCONCLUSIVE),
    ],
)
def test_the_interval_decides(low, high, kind):
    assert classify(Estimate(1.0, low, high, 0.95, 6, "t"), 0.01) is kind


@pytest.mark.parametrize(
    ("factor", "kind", "begin"),
    [
        (
            1,
            VerdictKind.FASTER,
            "amp is faster than fp32: step time −6.0 % (95 % interval −6.2 % to −5.8 %), a speed-up of 1.064 (1.06",
        ),
        (1 / 0.94, VerdictKind.EQUIVALENT, "amp is as fast as fp32: "),
        (1.2, VerdictKind.SLOWER, "amp is slower than fp32: step time +12.8 %"),
    ],
)
def test_outcomes_in_words(factor, kind, begin):
    words = verdict([ratio * factor for ratio in FASTER])
    assert words.kind is kind
    assert words.headline.startswith(begin)


def test_an_inconclusive_verdict_says_how_many_blocks_would_do_and_warns_of_adding():
    words = verdict([0.9, 1.05, 0.97, 1.02, 0.93, 0.99], results=[time_result([0.9, 1.05, 0.97, 1.02, 0.93, 0.99])])
    assert words.kind is VerdictKind.INCONCLUSIVE
    assert words.headline.startswith("Inconclusive whether amp is faster than fp32: step time −2.")
    assert "blocks detects it with 80 % power" in words.next
    assert "adding blocks until a result appears" in words.next


def test_a_single_block_is_inconclusive_with_its_change():
    words = verdict([0.94], results=[time_result([0.94], detectable=None)])
    assert words.kind is VerdictKind.INCONCLUSIVE
    assert "step time −6.0 % without an interval, because one pair" in words.headline
    assert words.details == ()
    assert words.next == "Run a study with 6 blocks."


def test_five_blocks_cannot_reach_five_percent_in_the_exact_test_and_are_told():
    words = verdict(FASTER[:5])
    assert "the smallest possible with 5 blocks is 0.0625" in words.details[-2]
    assert words.next.startswith("With 6 or more blocks")
    assert "smallest possible" not in " ".join(verdict(FASTER).details)


def test_runs_that_were_not_blocked_are_sent_to_a_study():
    assert verdict(FASTER, blocked=False).next.startswith("Run both arms in the blocks of one study")


def test_without_step_times_the_training_time_decides_and_without_any_nothing_does():
    assert "training time −6.0 %" in verdict(FASTER, results=[time_result(FASTER, "train_time")]).headline
    assert verdict(FASTER, results=[time_result(FASTER, "host_memory")]).headline == (
        "Inconclusive: the runs have no times."
    )


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (-0.001, 0.001, "Accuracy kept: −0.10 points, at worst −0.30 points (95 % bound, margin 1 point)."),
        (-0.05, 0.001, "Accuracy lost: −5.00 points, at best −4.80 points (95 % bound, margin 1 point)."),
        (-0.01, 0.01, "Accuracy undecided: −1.00 points, between −3.02 points and +1.02 points (90 % int"),
    ],
)
def test_accuracy_in_words(value, error, text):
    words = verdict(FASTER, learned=accuracy(value, error))
    assert words.details[0].startswith(text)


def test_collapsed_runs_are_counted_and_qualify_the_accuracy():
    words = verdict(FASTER, learned=accuracy(0.0, 0.001, CollapseCounts(0, 6, 2, 6)))
    assert words.details[0].startswith("Accuracy of the runs that learned is kept")
    assert words.details[1].startswith("Collapsed runs: 2 of 6, in the baseline 0 of 6")
    equal = verdict(FASTER, learned=accuracy(0.0, 0.0, CollapseCounts(0, 6, 2, 6))).details[0]
    assert equal == "Accuracy of the runs that learned is kept: +0.00 points in every block of theirs (margin 1 point)."
    none = verdict(FASTER, learned=accuracy(0.0, 0.001))
    assert "ollapsed" not in " ".join(none.details)


def test_few_noisy_runs_give_factors_and_no_percentages_in_the_thousands():
    words = verdict([1.0, 3.0], results=[time_result([0.5, 5.0], detectable=10_000.0)])
    assert "step time +58.1 % (95 % interval under ×10⁻⁶ to over ×10⁶)" in words.headline
    assert "a speed-up of 0.632 (under 10⁻⁶ to over 10⁶)" in words.headline
    assert words.details[-1] == "With this spread, these runs detect a factor of 10001 with 80 % power."
    assert " (the spread is uncertain with 2 blocks), a new study with " in words.next


def test_a_new_study_has_at_least_the_blocks_of_the_exact_test():
    ratios = [0.7, 0.8, 0.9]
    spread = np.log(ratios).std(ddof=1)
    detectable = math.expm1(minimal_detectable_effect(3) * spread)
    words = verdict(ratios, results=[time_result(ratios, detectable=detectable)])
    assert blocks_needed(abs(np.log(ratios).mean()) / spread) < 6
    assert "a new study with 6 blocks" in words.next


def test_an_undecided_accuracy_states_the_change_that_was_seen():
    single = non_inferiority(paired_difference([0.9], [0.9]), 0.01)
    (line, *_) = verdict(FASTER, learned=Learned(Quality("val_acc"), single, 0.0, NONE, diverged=False)).details
    assert line == "Accuracy undecided: +0.00 points; one pair of runs does not tell the spread."


def leave_prediction(run, speedup, steps_ms=100.0):
    """A report beside a run that predicts this speed-up at the most, and one of 1.25 at the least."""
    gain = AmpGain("H200", 5, 1e6 * steps_ms, (), 0.0, 0.2e6 * steps_ms, 1e6 * steps_ms * (1 - 1 / speedup))
    report = {"schema_version": SCHEMA_VERSION, "lead": 0, "ranks": [{"amp_gain": gain, "more": [1]}], "notes": []}
    run.path.with_name("report.json").write_bytes(msgspec.json.encode(report))
    return read_record(run.path)


@pytest.mark.parametrize(("candidate_ms", "held"), [(50.0, True), (90.0, False), (30.0, False)])
def test_a_prediction_of_the_baseline_stands_beside_what_mixed_precision_brought(tmp_path, candidate_ms, held):
    made = write_arms(tmp_path, candidate=tuple(candidate_ms / 100 * ms for ms in BASE_MS), train__precision="16-mixed")
    warm_up = write_run(tmp_path / "warm-up", started=0.5, place=Place("s", "fp32", 0, 0, treatment=("precision",)))
    made["fp32"] = [leave_prediction(warm_up, 2.5), *made["fp32"]]
    comparison = compare_arms(made)
    prediction = comparison.candidates[0].prediction
    assert (prediction.run_id, prediction.held) == ("warm-up", held)
    assert (prediction.low, prediction.high) == pytest.approx((1.25, 2.5))
    assert prediction.measured.value == pytest.approx(100 / candidate_ms)
    lines = console_text(comparison.blocks()).splitlines()
    (line,) = [line for line in lines if line.startswith("The profiled run warm-up predicted")]
    assert ("within" if held else "outside") in line


def test_a_prediction_is_only_for_mixed_precision(tmp_path):
    made = write_arms(tmp_path, flags__tf32_cudnn="ieee", train__precision="32-true")
    made["fp32"][0] = leave_prediction(made["fp32"][0], 2.5)
    assert compare_arms(made, Settings(treatment=("flags",))).candidates[0].prediction is None


@pytest.mark.parametrize("report", [b"", b"{}", b'{"schema_version": 99, "lead": 0, "ranks": []}', b"[1]"])
def test_a_report_that_cannot_be_read_predicts_nothing(tmp_path, report):
    run = write_arms(tmp_path)["fp32"][0]
    run.path.with_name("report.json").write_bytes(report)
    assert read_record(run.path).predicted_speedup is None
