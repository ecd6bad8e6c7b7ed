"""Comparisons made to fool the verdict: equal runs, diverged runs, crashed runs, other machines, busy machines."""

from typing import TypeAlias

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from scipy import stats

from lightning_perf.compare.judge import exit_code
from lightning_perf.compare.records.record import RunRecord
from lightning_perf.compare.verdicts.build import compare_arms
from lightning_perf.compare.verdicts.comparison import Comparison
from lightning_perf.compare.verdicts.gates import GateOutcome, Settings, parse_gate
from lightning_perf.errors import CompareError
from lightning_perf.statistics.location import Kept

Arms: TypeAlias = dict[str, list[RunRecord]]

GATE = Settings(gates=(parse_gate("accuracy>=-0.01"),))


def test_accuracy_that_is_equal_in_every_block_is_kept_and_passes_the_gate(arms):
    comparison = compare_arms(arms(), GATE)
    (candidate,) = comparison.candidates
    assert candidate.accuracy.kept is Kept.KEPT
    assert (candidate.accuracy.lower_bound, candidate.accuracy.upper_bound) == (0.0, 0.0)
    assert "Accuracy kept: +0.00 points in every block (margin 1 point)." in candidate.verdict.details
    assert comparison.gates[0].outcome is GateOutcome.PASSED
    assert exit_code(comparison) == 0


def test_accuracy_that_is_lower_in_every_block_is_lost(arms):
    comparison = compare_arms(arms(accuracies=(0.5, 0.85)), GATE)
    assert comparison.candidates[0].accuracy.kept is Kept.LOST
    assert exit_code(comparison) == 1


def test_equal_memory_in_every_block_is_its_own_interval_and_equal_times_are_not(arms):
    comparison = compare_arms(arms((100.0,) * 6, (94.0,) * 6))
    results = {result.metric: result for result in comparison.candidates[0].metrics}
    memory = results["host_memory"]
    assert (memory.estimate.low, memory.estimate.value, memory.estimate.high) == (1.0, 1.0, 1.0)
    assert memory.detectable is None
    assert results["step_time"].estimate.low is None
    assert comparison.candidates[0].verdict.kind.value == "inconclusive"


def losses(arms: dict[str, list[RunRecord]], of_arm: dict[str, tuple[float | None, ...]], metric: str) -> Arms:
    """Replace the logged metric of each run by this one."""
    return {
        name: [
            replace(run, epochs=tuple(msgspec.structs.replace(epoch, metrics={metric: value}) for epoch in run.epochs))
            for run, value in zip(runs, of_arm[name], strict=True)
        ]
        for name, runs in arms.items()
    }


FP32_LOSS = (0.30, 0.31, 0.29, 0.30, 0.32, 0.30)
SAME_LOSS = tuple(value * 1.001 for value in FP32_LOSS)


@pytest.mark.parametrize("blocked", [True, False])
@pytest.mark.parametrize("final", [None, 9.0])
@pytest.mark.parametrize("metric", ["val_loss", "val_perplexity"])
def test_a_candidate_that_diverged_in_all_runs_is_not_faster(arms, metric, final, blocked):
    made = losses(arms(blocked=blocked), {"fp32": FP32_LOSS, "amp": (final,) * 6}, metric)
    comparison = compare_arms(made, Settings(gates=(parse_gate("step_time<=1.05"),)))
    (candidate,) = comparison.candidates
    assert (comparison.quality_metric, comparison.quality_is) == (metric, "loss")
    assert candidate.verdict.kind.value == "diverged"
    assert candidate.verdict.headline.startswith("amp diverged or collapsed in 6 of 6 runs (fp32: 0 of 6). ")
    assert any(line.startswith(f"{metric} lost: 6 of 6 runs diverged or collapsed.") for line in details(comparison))
    assert candidate.collapse_p == pytest.approx(stats.fisher_exact([[0, 6], [6, 0]]).pvalue)
    assert exit_code(comparison) == 1


def test_nan_accuracy_in_all_runs_is_not_faster(arms):
    made = arms(accuracies=(None, None))
    comparison = compare_arms(made)
    assert comparison.candidates[0].verdict.kind.value == "diverged"
    assert "undecided" not in " ".join(details(comparison))
    assert exit_code(comparison) == 1
    allowed = compare_arms(made, Settings(allow=("divergence",)))
    assert allowed.candidates[0].verdict.kind.value == "faster"
    assert exit_code(allowed) == 0


@pytest.mark.parametrize("final", [None, 9.0])
def test_a_single_run_that_diverged_is_named_and_refuses_faster(arms, final):
    made = losses(arms(), {"fp32": FP32_LOSS, "amp": (final, *SAME_LOSS[1:])}, "val_loss")
    comparison = compare_arms(made)
    assert comparison.candidates[0].verdict.kind.value == "inconclusive"
    assert "1 of 6 runs" in comparison.candidates[0].verdict.headline
    assert exit_code(comparison) == 0  # without a gate, only a candidate that diverged is a failure
    gated = compare_arms(made, Settings(gates=(parse_gate("loss<=1.05"),)))
    assert exit_code(gated) == 4


def test_equal_shares_of_nan_runs_rarely_look_like_a_difference(arms):
    made, rng = arms(), np.random.default_rng(0)
    kinds = []
    for _ in range(60):
        of_arms = {
            name: tuple(None if bad else 0.3 + 0.01 * rng.normal() for bad in rng.random(6) < 0.2) for name in made
        }
        kinds.append(compare_arms(losses(made, of_arms, "val_loss")).candidates[0].verdict.kind.value)
    assert kinds.count("diverged") <= 0.06 * len(kinds) + 2


def test_accuracies_that_are_equal_in_all_runs_are_kept_outside_of_blocks_too(arms):
    made = losses(arms(blocked=False), {"fp32": (0.9,) * 6, "amp": (0.9,) * 6}, "val_acc")
    comparison = compare_arms(made, GATE)
    assert comparison.candidates[0].accuracy.kept is Kept.KEPT
    assert comparison.gates[0].outcome is GateOutcome.PASSED


def test_a_renamed_metric_is_named_and_nothing_else_is_compared(arms):
    made = arms()
    made["fp32"] = [with_loss(run, 0.3) for run in made["fp32"]]
    made["amp"] = [
        replace(
            run, epochs=tuple(msgspec.structs.replace(e, metrics={"val/acc": 0.9, "val_loss": 0.3}) for e in run.epochs)
        )
        for run in made["amp"]
    ]
    comparison = compare_arms(made)
    assert comparison.quality_metric is None
    assert any("val/acc is missing in 6 of 6 runs of fp32" in note for note in comparison.notes)


def test_a_nan_loss_counts_although_the_accuracy_is_fine(arms):
    made = arms()
    made["fp32"] = [with_loss(run, 0.3) for run in made["fp32"]]
    made["amp"] = [with_loss(run, None) for run in made["amp"]]
    assert compare_arms(made).candidates[0].verdict.kind.value == "diverged"
    made["fp32"] = [with_loss(run, None) for run in made["fp32"]]
    assert compare_arms(made).candidates[0].verdict.kind.value == "faster"


@pytest.mark.parametrize(
    ("change", "kept"), [(0.004, Kept.KEPT), (0.02, Kept.LOST), (-0.05, Kept.KEPT), (0.010, Kept.UNDECIDED)]
)
def test_a_loss_is_held_against_a_margin_of_the_baselines_mean(arms, change, kept):
    wobble = (0.998, 1.003, 1.0, 0.999, 1.002, 0.998)
    amp = tuple(value * (1 + change) * w for value, w in zip(FP32_LOSS, wobble, strict=True))
    comparison = compare_arms(losses(arms(), {"fp32": FP32_LOSS, "amp": amp}, "val_loss"))
    (candidate,) = comparison.candidates
    mean = sum(FP32_LOSS) / 6
    gain = [(base - value) / mean for base, value in zip(FP32_LOSS, amp, strict=True)]
    theirs = stats.ttest_1samp(gain, 0, alternative="greater").confidence_interval(0.95).low
    assert candidate.quality.lower_bound == pytest.approx(theirs)
    assert candidate.quality.kept is kept
    assert candidate.accuracy is None
    assert any(line.startswith(f"val_loss {kept.value}: ") for line in candidate.verdict.details)
    assert candidate.verdict.kind.value == "faster"


def test_a_gate_on_the_loss_is_judged_by_its_ratio_and_by_diverged_runs(arms):
    settings = Settings(gates=(parse_gate("loss<=1.01"),))
    made = arms()
    outcomes = [
        compare_arms(losses(made, {"fp32": FP32_LOSS, "amp": amp}, "val_loss"), settings).gates[0].outcome
        for amp in (FP32_LOSS, SAME_LOSS, (None,) * 3 + FP32_LOSS[3:], (9.0,) * 6)
    ]
    assert outcomes == [GateOutcome.PASSED, GateOutcome.PASSED, GateOutcome.FAILED, GateOutcome.FAILED]


def test_a_score_may_be_negative_and_has_a_verdict_of_its_own(arms):
    scores = (-2.0, -2.1, -1.9, -2.0, -2.05, -1.95)
    made = losses(arms(), {"fp32": scores, "amp": tuple(value - 0.5 for value in scores)}, "elbo")
    comparison = compare_arms(made, Settings(quality="elbo:max"))
    assert comparison.quality_is == "score"
    assert comparison.candidates[0].quality.kept is Kept.LOST
    assert "elbo lost: 25 % worse in every block (margin 1 %)." in details(comparison)


def test_runs_without_any_quality_say_so(arms):
    comparison = compare_arms(losses(arms(), {"fp32": (1.0,) * 6, "amp": (1.0,) * 6}, "lr"))
    assert comparison.quality_metric is None
    assert any(note.startswith("Whether the candidates still learn was not checked") for note in comparison.notes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quality": "lr"}, r"whether higher or lower is better\. Write lr:max or lr:min"),
        ({"quality": "val_los:min"}, r'No run logged a metric "val_los". They logged: lr, val_loss'),
        ({"quality": "val_loss", "accuracy": "lr"}, "choose one of them"),
        ({"accuracy": "val_loss"}, "Give --quality val_loss:min instead"),
        ({"quality": "val_loss", "goal": 0.9}, "--goal and --collapse-below need an accuracy"),
    ],
)
def test_what_is_not_a_quality_is_an_error_with_its_fix(arms, settings, message):
    made = {
        name: [with_loss(run, 0.3, lr=0.1) for run in runs]
        for name, runs in losses(arms(), {"fp32": FP32_LOSS, "amp": FP32_LOSS}, "val_loss").items()
    }
    with pytest.raises(CompareError, match=message):
        compare_arms(made, Settings(**settings))


@pytest.mark.parametrize("hit", [1, 3, 6])
def test_a_larger_loss_never_gets_a_milder_result(arms, hit):
    made = arms(accuracies=(0.9,))
    wobble = (0.0, 0.001, 0.002, 0.001, 0.0, 0.002)
    harshness = (GateOutcome.PASSED, GateOutcome.INCONCLUSIVE, GateOutcome.FAILED)
    seen = []
    for loss in (0.0, 0.02, 0.05, 0.12, 0.15, 0.6, None):
        lost = [level(0.9 + w, loss if n < hit else 0.0) for n, w in enumerate(wobble)]
        accuracies = {"fp32": tuple(0.9 + w for w in wobble), "amp": tuple(lost)}
        (gate,) = compare_arms(losses(made, accuracies, "val_acc"), GATE).gates
        seen.append(harshness.index(gate.outcome))
    assert seen == sorted(seen)
    if hit == len(wobble):
        assert seen[1:] == [2] * 6


def level(accuracy: float, loss: float | None) -> float | None:
    return None if loss is None else accuracy - loss


def with_loss(run: RunRecord, loss: float | None, **metrics: float) -> RunRecord:
    epochs = (msgspec.structs.replace(e, metrics={**e.metrics, "val_loss": loss, **metrics}) for e in run.epochs)
    return replace(run, epochs=tuple(epochs))


def details(comparison: Comparison) -> tuple[str, ...]:
    return comparison.candidates[0].verdict.details
