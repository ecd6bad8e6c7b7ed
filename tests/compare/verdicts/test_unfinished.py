"""Candidates that crash: counted, named in the headline, and failed unless allowed."""

import pytest

from lightning_perf.compare.judge import exit_code
from lightning_perf.compare.verdicts.build import compare_arms
from lightning_perf.compare.verdicts.gates import GateOutcome, Settings, parse_gate
from lightning_perf.run_files.run_record import Outcome, Place
from tests.compare.support import write_arms, write_run

GATE = parse_gate("step_time<=1.05")


def crash(arms, folder, blocks, outcome, *, blocked=True, again=None, start=0.5):
    """Add a crashed run of the candidate in each of these blocks; `again` says in which attempt."""
    for block in blocks:
        place = Place("s", "amp", block, 1, again or 0, ("precision",)) if blocked else None
        run = write_run(folder / f"crash{block}", outcome=outcome, place=place, started=start, train__seed=block)
        arms["amp"].append(run)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, None])
@pytest.mark.parametrize("blocked", [True, False])
def test_a_candidate_that_crashes_in_half_of_the_blocks_fails_the_gate(arms, tmp_path, outcome, blocked):
    made = arms(blocked=blocked)
    made["amp"] = made["amp"][:3]
    crash(made, tmp_path, (4, 5, 6), outcome, blocked=blocked)
    allow = () if blocked else ("seed",)
    comparison = compare_arms(made, Settings(gates=(GATE,), allow=allow))
    (candidate,) = comparison.candidates
    assert (candidate.unfinished.baseline, candidate.unfinished.of_baseline) == (0, 6)
    assert (candidate.unfinished.candidate, candidate.unfinished.of_candidate) == (3, 6)
    unit = "blocks" if blocked else "runs"
    assert candidate.verdict.kind.value == "unfinished"
    assert candidate.verdict.headline.startswith("amp did not finish " + ("in " if blocked else "") + f"3 of 6 {unit}")
    assert [gate.outcome for gate in comparison.gates] == [GateOutcome.PASSED, GateOutcome.FAILED]
    assert comparison.gates[1].gate == "failures"
    assert exit_code(comparison) == 1
    assert exit_code(compare_arms(made, Settings(allow=allow))) == 1
    allowed = compare_arms(made, Settings(gates=(GATE,), allow=(*allow, "failures")))
    assert (exit_code(allowed), allowed.candidates[0].verdict.kind.value) == (0, "faster")
    assert any(
        "that did not finish: 3 of 6, in the baseline 0 of 6" in d for d in allowed.candidates[0].verdict.details
    )


def test_a_run_that_crashed_and_was_repeated_still_counts(arms, tmp_path):
    made = arms()
    crash(made, tmp_path, (2, 5), Outcome.FAILED)
    assert compare_arms(made).candidates[0].verdict.headline.startswith("amp did not finish in 2 of 6 blocks (fp32: 0")


def test_what_the_user_stopped_or_a_reboot_cut_off_does_not_count(arms, tmp_path):
    made = arms()
    crash(made, tmp_path / "stopped", (2,), Outcome.STOPPED)
    crash(made, tmp_path / "cut", (3,), None)  # its attempt was completed by a later run
    assert compare_arms(made).candidates[0].unfinished.candidate == 0
    made = write_arms(tmp_path / "b")
    crash(made, tmp_path / "running", (7,), None, start=1000.0)
    assert compare_arms(made).candidates[0].unfinished.candidate == 0


def test_a_baseline_that_crashes_as_often_decides_nothing(arms, tmp_path):
    made = arms()
    for name in made:
        place = Place("s", name, 7, 0)
        made[name].append(write_run(tmp_path / f"x{name}", outcome=Outcome.FAILED, place=place, started=0.1))
    (candidate,) = compare_arms(made).candidates
    assert candidate.verdict.kind.value == "faster"
    assert "Blocks with a run that did not finish: 1 of 7, in the baseline 1 of 7." in candidate.verdict.details
