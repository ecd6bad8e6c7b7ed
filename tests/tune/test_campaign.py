"""The trials' logic with planted processes, which answer at once with planted times, losses and faults."""

import time
from contextlib import nullcontext
from dataclasses import dataclass, field

import pytest

from lightning_perf.tune import campaign, runner
from lightning_perf.tune.campaign import run_campaign
from lightning_perf.tune.catalogue import LEVERS
from lightning_perf.tune.errors import NotApplicableError, NoTrainingError, OutOfTimeError, TrialError, TuneError
from lightning_perf.tune.lever import Machine
from lightning_perf.tune.messages import Prediction, Ready, Scouted, Window
from lightning_perf.tune.result import Outcome
from lightning_perf.tune.settings import TuneSettings
from lightning_perf.workers.process import WorkerExitError, WorkerFailureError, WorkerTimeoutError

STEP_S = 0.1


@dataclass
class Planted:
    """What a training with levers does.

    Attributes:
        factors: Of the step time, by lever.
        losses: Added to the loss, by lever.
        spread: Added to the loss by each seed.
        starts_s: Added to the start of a lever's training, by lever.
        faults: Raised when a lever's training begins, by lever.
        dies: The window after which the base ends, or None.
        predictions: Of the scout.
    """

    factors: dict = field(default_factory=dict)
    losses: dict = field(default_factory=dict)
    spread: float = 0.01
    starts_s: dict = field(default_factory=dict)
    faults: dict = field(default_factory=dict)
    dies: int | None = None
    predictions: tuple = ()
    orders: list = field(default_factory=list)
    alive: int = 0
    most: int = 0
    clock_s: float = 0.0


def failure(error):
    """What becomes of an error in a worker process; a `KeyboardInterrupt` is one of the tuner's own."""
    if isinstance(error, OutOfTimeError):
        return WorkerTimeoutError(str(error))
    return WorkerFailureError(str(error), type(error).__name__) if isinstance(error, TrialError) else error


@pytest.fixture
def planted(monkeypatch):
    plan = Planted()

    class Worker(nullcontext):
        def __init__(self, target, order, path):
            super().__init__(self)
            self.order = order
            self.windows = 0
            self.steps = 0
            plan.orders.append(order)
            plan.alive += 1
            plan.most = max(plan.most, plan.alive)
            plan.clock_s += 2.0

        def send(self, run):
            self.steps = run.steps

        def receive(self, kind, timeout_s):
            return {Scouted: self.scouted, Ready: self.ready, Window: self.trained}[kind](timeout_s)

        def scouted(self, timeout_s):
            if "scout" in plan.faults:
                raise failure(plan.faults["scout"])
            missing = {lever.name: "needs magic" if lever.name == "tf32" else None for lever in LEVERS}
            lines = {name: (f"set {name}",) for name, reason in missing.items() if reason is None}
            return Scouted(Machine("cpu", None, 2, "a CPU"), missing, lines, plan.predictions, None)

        def ready(self, timeout_s):
            for lever in self.order.levers:
                plan.clock_s += plan.starts_s.get(lever, 0)
                if lever in plan.faults:
                    raise failure(plan.faults[lever])
            return Ready()

        def trained(self, timeout_s):
            self.windows += 1
            if plan.dies is not None and not self.order.levers and self.windows == plan.dies:
                plan.dies = None
                raise WorkerExitError("its process was killed by SIGKILL", -9)
            seconds = STEP_S * self.steps * (1 + 0.001 * (self.windows % 3))
            samples, loss = 4 * self.steps, 1 + plan.spread * (self.order.seed % 3)
            for lever in self.order.levers:
                seconds *= plan.factors.get(lever, 1)
                loss += plan.losses.get(lever, 0)
                if lever.startswith("batch-size-x"):
                    samples *= int(lever[-1])
            if seconds > timeout_s:
                plan.clock_s += timeout_s
                raise WorkerTimeoutError("it was stopped")
            plan.clock_s += seconds
            return Window(seconds, self.steps, samples, (loss,) * self.steps)

        def close(self):
            plan.alive -= 1

        def __exit__(self, *error):
            self.close()

    monkeypatch.setattr(runner, "WorkerProcess", Worker)
    monkeypatch.setattr(campaign, "WorkerProcess", Worker)
    monkeypatch.setattr(time, "monotonic", lambda: plan.clock_s)
    monkeypatch.setattr(time, "perf_counter", lambda: plan.clock_s)
    return plan


def tuned(*levers, minutes=60.0, rounds=8):
    said = []
    settings = TuneSettings(levers=levers, minutes=minutes, rounds=rounds, window_s=1.0)
    return run_campaign("any:thing", settings, said.append), said


def outcomes(result):
    return {trial.lever: trial.outcome for trial in result.trials}


def test_every_outcome(planted):
    planted.factors = {"bf16-mixed": 0.5, "channels-last": 0.8, "workers-1": 1.3, "compile": 40, "batch-size-x2": 1.5}
    planted.losses = {"bf16-mixed": 1.0}
    planted.faults = {
        "fused-optimizer": TrialError("its process crashed with SIGSEGV; last lines: …"),
        "compile-reduce-overhead": NotApplicableError("turned out not to apply"),
        "16-mixed": TrialError("OutOfMemoryError: CUDA out of memory"),
    }
    result, said = tuned()
    found = outcomes(result)
    assert found["bf16-mixed"] is Outcome.REJECTED
    assert found["channels-last"] is Outcome.KEPT
    assert found["workers-1"] is found["compile"] is Outcome.SLOWER
    assert found["fused-optimizer"] is found["16-mixed"] is Outcome.FAILED
    assert found["tf32"] is found["compile-reduce-overhead"] is Outcome.NOT_APPLICABLE
    assert found["batch-size-x2"] is found["batch-size-x4"] is Outcome.MEASURED
    assert found["cudnn-benchmark"] is Outcome.NO_GAIN
    assert len(found) == len(LEVERS)
    trials = {trial.lever: trial for trial in result.trials}
    assert "the loss goes from 1 to 2" in trials["bf16-mixed"].reason
    assert "given up after 3 rounds" in trials["compile"].reason
    assert trials["channels-last"].measured.value == pytest.approx(0.8, rel=0.01)
    assert trials["batch-size-x2"].measured.value == pytest.approx(0.75, rel=0.01)  # a sample, on top of what is kept
    assert trials["batch-size-x4"].measured.value == pytest.approx(0.25, rel=0.01)
    assert [trial.lever for trial in result.trials][-2:] == ["tf32", "compile-reduce-overhead"]
    assert result.kept == ("channels-last",)
    assert result.lines == ("set channels-last",)
    assert result.combined.value == pytest.approx(0.8, rel=0.01)
    assert result.confirmed
    assert result.baseline_ms == pytest.approx(100, rel=0.01)
    assert result.noise.value == pytest.approx(1, abs=0.002)
    assert planted.alive == 0
    assert planted.most == 2  # never more than two trainings at a time
    assert any(line.startswith("fused-optimizer: failed, its process crashed with SIGSEGV") for line in said)


def test_gains_are_combined_greedily_and_a_family_holds_one_at_most(planted):
    planted.factors = {"bf16-mixed": 0.9, "16-mixed": 0.6, "channels-last": 0.8, "workers-1": 0.9, "workers-2": 0.95}
    result, _ = tuned("precision", "channels-last", "workers-1", "workers-2", "batch-size-x2")
    assert outcomes(result)["bf16-mixed"] is Outcome.REPLACED
    assert result.trials[0].reason == "16-mixed is faster still"
    assert result.kept == ("16-mixed", "channels-last", "workers-1")
    assert result.lines == ("set 16-mixed", "set channels-last", "set workers-1")
    assert result.combined.value == pytest.approx(0.6 * 0.8 * 0.9, rel=0.01)
    tried = [order.levers for order in planted.orders]
    assert ("16-mixed",) in tried
    assert ("16-mixed", "channels-last", "workers-2") in tried
    assert ("16-mixed", "channels-last", "workers-1", "batch-size-x2") in tried
    assert all("bf16-mixed" not in levers or levers == ("bf16-mixed",) for levers in tried)


def test_the_largest_predicted_saving_is_tried_first(planted):
    planted.predictions = (Prediction("input-bound", 0.1, 0.3), Prediction("channels-last", 0.2, 0.4))
    result, _ = tuned("bf16-mixed", "channels-last", "workers-1", "batch-size-x2")
    assert [trial.lever for trial in result.trials] == ["channels-last", "workers-1", "bf16-mixed", "batch-size-x2"]
    assert result.trials[0].predicted == (0.6, 0.8)
    assert result.trials[2].predicted is None


def test_the_budget_is_kept_and_leaves_time_for_the_last_measurement(planted):
    planted.factors = {"bf16-mixed": 0.5}
    result, _ = tuned(minutes=2.5)
    found = outcomes(result)
    assert found["bf16-mixed"] is Outcome.KEPT
    assert found["batch-size-x4"] is Outcome.NOT_TRIED
    assert result.combined is not None
    assert result.confirmed
    assert result.seconds <= result.budget_s


def test_a_lever_that_hangs_takes_half_of_what_is_left(planted):
    planted.factors = {"bf16-mixed": 1e9}
    result, _ = tuned("bf16-mixed", "channels-last", minutes=5)
    assert outcomes(result) == {"bf16-mixed": Outcome.FAILED, "channels-last": Outcome.NO_GAIN}
    assert result.trials[0].reason == "took longer than its share of the budget"


def test_nothing_kept(planted):
    result, _ = tuned("channels-last")
    assert result.kept == result.lines == ()
    assert result.combined is None
    assert not result.confirmed


def test_a_baseline_that_dies_in_a_trial_is_begun_anew(planted):
    planted.factors = {"workers-1": 0.5}
    planted.dies = 17
    result, _ = tuned("channels-last", "workers-1", "workers-2")
    (failed,) = (trial for trial in result.trials if trial.outcome is Outcome.FAILED)
    assert failed.reason == "the training that it was compared with failed: its process was killed by SIGKILL"
    assert result.kept == ("workers-1",)
    assert planted.alive == 0


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (TrialError("ValueError: no such file"), "the training fails as it is: ValueError: no such file"),
        (NoTrainingError("TRAINING a.b:c: there is no module a"), "^TRAINING a.b:c: there is no module a$"),
        (OutOfTimeError("late"), "takes longer than the 60 minutes of the budget: give more"),
    ],
)
def test_a_training_that_fails_as_it_is(planted, fault, said):
    planted.faults = {"scout": fault}
    with pytest.raises(TuneError, match=said):
        tuned()
    assert planted.alive == 0


def test_an_interrupt_before_anything_is_measured_leaves_nothing_behind(planted):
    planted.faults = {"bf16-mixed": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        tuned("bf16-mixed", "channels-last")
    assert planted.alive == 0


def test_an_interrupt_keeps_what_was_measured(planted):
    planted.factors = {"bf16-mixed": 0.5}
    planted.faults = {"channels-last": KeyboardInterrupt()}
    result, _ = tuned("bf16-mixed", "channels-last", "workers-1", "tf32")
    assert outcomes(result) == {
        "bf16-mixed": Outcome.KEPT,
        "channels-last": Outcome.NOT_TRIED,
        "workers-1": Outcome.NOT_TRIED,
        "tf32": Outcome.NOT_APPLICABLE,
    }
    assert result.interrupted
    assert result.lines == ("set bf16-mixed",)
    assert result.combined is None
    assert not result.confirmed
    assert planted.alive == 0


def test_an_interrupt_of_the_last_measurement_keeps_the_rows(planted):
    planted.factors = {"bf16-mixed": 0.5}
    settings = TuneSettings(levers=("bf16-mixed",), minutes=60, rounds=8, window_s=1.0)

    def on_progress(line):
        if line.startswith("Measuring what is kept"):
            planted.faults = {"bf16-mixed": KeyboardInterrupt()}

    result = run_campaign("any:thing", settings, on_progress)
    assert result.interrupted
    assert result.kept == ("bf16-mixed",)
    assert result.combined is None
    assert planted.alive == 0


def test_time_is_set_aside_for_what_starts_slowly(planted):
    planted.predictions = (Prediction("channels-last", 0.1, 0.5),)  # it comes first, but for memory
    planted.factors = {"channels-last": 0.5}
    planted.starts_s = {"channels-last": 60.0}
    result, _ = tuned(minutes=6)
    assert [trial.lever for trial in result.trials][:2] == ["keep-memory", "channels-last"]
    assert result.kept == ("channels-last",)
    assert Outcome.NOT_TRIED in outcomes(result).values()
    assert result.confirmed
    assert result.seconds <= result.budget_s


def test_a_training_whose_seeds_do_not_matter_says_how_it_is_guarded(planted):
    planted.spread = 0.0
    result, _ = tuned("channels-last")
    assert "Other seeds hardly change the loss" in result.notes[0]


def test_an_unknown_lever(planted):
    with pytest.raises(TuneError, match="warp-drive"):
        tuned("warp-drive")
    assert planted.orders == []
