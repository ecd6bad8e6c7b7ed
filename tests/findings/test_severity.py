"""The severity of a finding follows from the middle of its estimate."""

from __future__ import annotations

import pytest

from lightning_perf.findings.finding import Problem, SavingRange, Severity, make_finding, severity_of


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 30, "high"),
        (0, 29.9, "moderate"),
        (0, 20, "moderate"),  # up to a fifth of the step, and perhaps nothing
        (15, 15, "high"),
        (10, 19.9, "moderate"),
        (0, 10, "moderate"),
        (0, 9.9, "low"),
        (5, 5, "moderate"),
        (3, 3, "low"),
    ],
)
def test_by_the_middle_of_the_estimate_in_percent_of_the_step(low: float, high: float, expected: Severity) -> None:
    assert severity_of(low, high, 100) == expected
    problem = Problem("", (), "", SavingRange((low * 1e4, high * 1e4), ""))
    assert make_finding("launch-bound", problem, whole_ns=1e6, rank=None).severity == expected


def test_a_small_upper_end_is_not_high() -> None:
    # "up to 24.6 µs" of a step of 150 µs was called high.
    assert severity_of(0, 24.6, 150) == "moderate"


def test_a_step_without_a_length() -> None:
    assert severity_of(1, 2, 0) == "low"


def test_a_saving_is_cut_off_at_the_step_before_its_middle_is_taken() -> None:
    made = make_finding("launch-bound", Problem("", (), "", SavingRange((0, 5e6), "")), whole_ns=1e6, rank=None)
    assert (made.saving_high_ms, made.severity) == (1.0, "high")
