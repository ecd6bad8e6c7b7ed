"""Comparisons made to fool the verdict: equal runs, diverged runs, crashed runs, other machines, busy machines."""

from __future__ import annotations

import functools

import pytest

from lightning_perf.compare.commands.compare import exit_code
from lightning_perf.compare.verdicts.build import compare_arms
from lightning_perf.compare.verdicts.gates import GateOutcome, Settings, parse_gate
from lightning_perf.statistics.margins import Kept
from tests.compare.support import write_arms

GATE = Settings(gates=(parse_gate("accuracy>=-0.01"),))


@pytest.fixture
def arms(tmp_path):
    return functools.partial(write_arms, tmp_path)


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


def test_an_equal_ratio_in_every_block_is_its_own_interval(arms):
    comparison = compare_arms(arms((100.0,) * 6, (94.0,) * 6))
    (result,) = (result for result in comparison.candidates[0].metrics if result.metric == "step_time")
    assert (result.estimate.low, result.estimate.high) == (result.estimate.value, result.estimate.value)
    assert result.estimate.value == pytest.approx(0.94)
    assert result.detectable is None
    assert comparison.candidates[0].verdict.kind.value == "faster"
    assert "(95 % interval the same in every block)" in comparison.candidates[0].verdict.headline
