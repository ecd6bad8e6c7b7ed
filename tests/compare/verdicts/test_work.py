"""Arms that did different work: their times are compared per sample, or not at all."""

import msgspec
import pytest
from msgspec.structs import replace

from lightning_perf.compare.judge import exit_code
from lightning_perf.compare.records.record import RunRecord, read_record
from lightning_perf.compare.verdicts.build import compare_arms
from lightning_perf.compare.verdicts.comparison import UnfairError
from lightning_perf.compare.verdicts.gates import GateOutcome, Settings, parse_gate
from lightning_perf.run_files.steps import STEPS, StepSample
from tests.compare.support import AMP_MS, BASE_MS


def with_steps(run: RunRecord, samples: int, *, growth: float = 0.0) -> RunRecord:
    """Let the steps of a run have so many samples, and become slower by a share."""
    assert run.steps is not None
    mean_ns = run.steps.mean_ns
    steps = [StepSample(n, round(mean_ns * (1 + growth * (n / 99 - 0.5))), 0, None, samples, False) for n in range(100)]
    (run.path.parent / "steps.rank0.jsonl").write_bytes(STEPS.encode(*steps))
    return read_record(run.path)


def test_half_the_samples_per_step_are_compared_per_sample(arms):
    made = arms(BASE_MS, tuple(0.55 * ms for ms in AMP_MS))
    made["amp"] = [with_steps(run, 16) for run in made["amp"]]
    gates = Settings(gates=(parse_gate("step_time<=1.0"), parse_gate("throughput>=0.99")))
    comparison = compare_arms(made, gates)
    (candidate,) = comparison.candidates
    assert candidate.verdict.kind.value == "slower"
    per_sample = sum(AMP_MS) * 2 * 0.55 / sum(BASE_MS)
    assert f"time per sample +{100 * (per_sample - 1):.1f} %" in candidate.verdict.headline
    assert [gate.outcome for gate in comparison.gates] == [GateOutcome.INCONCLUSIVE, GateOutcome.FAILED]
    assert "the runs have 16 samples per step, those of the baseline 32" in comparison.gates[0].reason
    assert any("step time of amp is not compared: the runs have 16 samples" in note for note in comparison.notes)
    allowed = compare_arms(made, Settings(allow=("work",)))
    assert allowed.candidates[0].verdict.kind.value == "faster"


def test_a_candidate_that_stopped_early_is_not_faster(arms):
    made = arms()
    made["fp32"] = [with_epochs(run, 40) for run in made["fp32"]]
    made["amp"] = [with_epochs(run, 15) for run in made["amp"]]
    comparison = compare_arms(made, Settings(gates=(parse_gate("train_time<=1.0"),)))
    (candidate,) = comparison.candidates
    assert candidate.verdict.kind.value == "inconclusive"
    assert "the runs have 15 epochs, those of the baseline 40" in candidate.verdict.headline
    assert exit_code(comparison) == 4
    assert candidate.metric("train_time").estimate.value == pytest.approx(15 / 40)


def with_epochs(run: RunRecord, count: int) -> RunRecord:
    """Let a run without step times have trained so many epochs, at the same speed."""
    epochs = tuple(
        msgspec.structs.replace(run.epochs[0], epoch=number, steps=10 * (number + 1)) for number in range(count)
    )
    return replace(run, steps=None, epochs=epochs, train_time_s=(run.train_time_s or 0.0) * count)


def test_steps_that_become_slower_in_one_arm_only_are_noted(arms):
    made = arms()
    made["amp"] = [with_steps(run, 32, growth=0.2) for run in made["amp"]]
    made["fp32"] = [with_steps(run, 32) for run in made["fp32"]]
    (note,) = (note for note in compare_arms(made).notes if note.startswith("Within a run"))
    assert "+16 % in amp and +0 % in fp32" in note
    made["fp32"] = [with_steps(run, 32, growth=0.2) for run in made["fp32"]]
    assert not [note for note in compare_arms(made).notes if note.startswith("Within a run")]


def test_another_frequency_of_validation_is_refused(arms):
    with pytest.raises(UnfairError, match="check_val_every_n_epoch"):
        compare_arms(arms(train__check_val_every_n_epoch=5))
