"""The trials' logic with planted processes, which answer at once with planted times, losses and faults."""

import math
import random
import time
from contextlib import nullcontext
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from lightning_perf.tune import campaign, pairs
from lightning_perf.tune.campaign import run_campaign
from lightning_perf.tune.errors import NotApplicableError, NoTrainingError, OutOfTimeError, TrialError, TuneError
from lightning_perf.tune.levers.lever import Machine, Setting
from lightning_perf.tune.levers.registry import LEVERS
from lightning_perf.tune.messages import Prediction, Profile, Ready, Scouted, Window
from lightning_perf.tune.patches.patch import Patch
from lightning_perf.tune.result import Outcome, TuneResult
from lightning_perf.tune.settings import TuneSettings
from lightning_perf.workers.process import WorkerExitError, WorkerFailureError, WorkerTimeoutError
from lightning_perf.workers.script import Script

STEP_S = 0.1


@dataclass
class Planted:
    """What trainings do, by lever: factors of the step time, additions to the loss, seconds to start, faults, sizes.

    The base ends in the window ``dies``. ``capacity`` is the number of trainings that the memory holds at a time. With
    ``bursts``, a lever's worker processes deliver so many batches at a time, after a wait.
    """

    factors: dict = field(default_factory=dict)
    losses: dict = field(default_factory=dict)
    spread: float = 0.01
    starts_s: dict = field(default_factory=dict)
    faults: dict = field(default_factory=dict)
    dies: int | None = None
    capacity: float = 100.0
    sizes: dict = field(default_factory=dict)
    free_bytes: int | None = None
    used: float = 0.0
    process_spread: float = 0.0
    bursts: dict = field(default_factory=dict)
    draws: random.Random = field(default_factory=lambda: random.Random(0))
    predictions: tuple = ()
    probed: dict = field(default_factory=dict)
    workers: int | None = None
    step_ms: float | None = None
    start_s: float = 2.0
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
        def __init__(self, target, order, path, environment=None):
            super().__init__(self)
            self.order = order
            self.speed = math.exp(plan.draws.gauss(0, plan.process_spread))
            self.size = 0.0
            self.windows = 0
            self.steps = self.done = 0
            plan.orders.append(order)
            plan.alive += 1
            plan.most = max(plan.most, plan.alive)
            plan.clock_s += plan.start_s

        def send(self, run):
            self.steps = run.steps

        def receive(self, kind, timeout_s):
            return {Scouted: self.scouted, Ready: self.ready, Window: self.trained}[kind](timeout_s)

        def scouted(self, timeout_s):
            if "scout" in plan.faults:
                raise failure(plan.faults["scout"])
            missing = {lever.name: "needs magic" if lever.name == "tf32" else None for lever in LEVERS}
            settings = {name: (Setting("", line=f"set {name}"),) for name, reason in missing.items() if reason is None}
            profile = Profile(plan.predictions, None, plan.step_ms, plan.probed, plan.workers)
            return Scouted(Machine("cpu", None, 2, "a CPU"), missing, settings, profile)

        def ready(self, timeout_s):
            for lever in self.order.levers:
                plan.clock_s += plan.starts_s.get(lever, 0)
                if lever in plan.faults:
                    raise failure(plan.faults[lever])
            self.size = max([1.0, *(plan.sizes.get(lever, 1.0) for lever in self.order.levers)])
            plan.used += self.size
            if plan.used > plan.capacity:
                raise failure(TrialError("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"))
            return Ready()

        def trained(self, timeout_s):
            self.windows += 1
            if plan.dies is not None and not self.order.levers and self.windows == plan.dies:
                plan.dies = None
                raise WorkerExitError("its process was killed by SIGKILL", -9)
            seconds = STEP_S * self.speed * self.steps * (1 + 0.001 * (self.windows % 3))
            samples, loss = 4 * self.steps, 1 + plan.spread * (self.order.seed % 3)
            burst = max(plan.bursts.get(lever, 1) for lever in ("", *self.order.levers))
            waits = (self.done + self.steps) // burst - self.done // burst
            seconds *= (1 + 1000 * burst * waits / self.steps) / 1001 if burst > 1 else 1
            self.done += self.steps
            for lever in self.order.levers:
                seconds *= plan.factors.get(lever, 1)
                loss += plan.losses.get(lever, 0)
                if lever.startswith("batch-size-x"):
                    samples *= int(lever[-1])
            if seconds > timeout_s:
                plan.clock_s += timeout_s
                raise WorkerTimeoutError("it was stopped")
            plan.clock_s += seconds
            peak = None if plan.free_bytes is None else 1000
            workers, longest_s = (burst, seconds / (waits or self.steps)) if burst > 1 else (0, seconds / self.steps)
            losses = (loss,) * self.steps
            return Window(seconds, self.steps, samples, losses, peak, plan.free_bytes, workers, longest_s)

        def close(self):
            plan.alive -= 1
            plan.used -= self.size

        def __exit__(self, *error):
            self.close()

    monkeypatch.setattr(pairs, "WorkerProcess", Worker)
    monkeypatch.setattr(time, "monotonic", lambda: plan.clock_s)
    monkeypatch.setattr(time, "perf_counter", lambda: plan.clock_s)
    return plan


def tuned(*levers, minutes=60.0, rounds=8, window_s=1.0):
    said = []
    settings = TuneSettings(levers=levers, minutes=minutes, rounds=rounds, window_s=window_s)
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
    assert any(line.startswith("cudnn-benchmark: no gain") and line.endswith("min left") for line in said)


@pytest.mark.parametrize("factor", [0.5, 1.1])
def test_batches_that_come_in_bursts_do_not_look_faster(planted, factor):
    planted.factors, planted.bursts = {"workers-8": factor}, {"workers-8": 8}
    result, _ = tuned("workers-8", window_s=0.3)
    (trial,) = result.trials
    assert trial.measured.value == pytest.approx(factor, rel=0.02)


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
    # The screening against the running best, two fresh pairs, and the last measurement of all together.
    assert tried.count(result.kept) == 4 + 1, "and once as the base of the larger batch"


def test_the_largest_predicted_saving_is_tried_first(planted):
    planted.predictions = (Prediction("input-bound", 0.1, 0.3), Prediction("channels-last", 0.2, 0.4, "probed"))
    planted.factors = {"channels-last": 0.7}
    result, _ = tuned("bf16-mixed", "channels-last", "workers-1", "batch-size-x2")
    assert [(trial.lever, trial.predicted, trial.rule, trial.source, trial.on_top_of) for trial in result.trials] == [
        ("channels-last", (0.6, 0.8), "channels-last", "probed", ()),
        ("workers-1", (0.7, 0.9), "input-bound", "general", ("channels-last",)),
        ("bf16-mixed", None, None, None, ("channels-last",)),
        ("batch-size-x2", None, None, None, ("channels-last",)),
    ]
    assert result.tuning


@pytest.mark.parametrize(
    ("workers", "order"),
    [
        (None, ["workers-1", "workers-2", "workers-4", "workers-4-prefetch-4", "workers-8"]),
        (3, ["workers-4", "workers-4-prefetch-4", "workers-2", "workers-8", "workers-1"]),
        (16, ["workers-8", "workers-4", "workers-4-prefetch-4", "workers-2", "workers-1"]),
    ],
)
def test_the_number_of_workers_that_keeps_up_is_tried_first(planted, workers, order):
    planted.workers = workers
    planted.predictions = (Prediction("input-bound", 0.1, 0.3),)
    result, _ = tuned("workers", "channels-last")
    assert [trial.lever for trial in result.trials] == [*order, "channels-last"]


def test_probed_savings_decide_the_order_and_certain_losses_are_not_tried(planted):
    planted.predictions = (Prediction("cpu-channels-last", 0.0, 0.9), Prediction("launch-bound", 0.2, 0.4))
    loss = (-0.4, -0.2)
    planted.probed = {
        "bf16-mixed": loss,
        "16-mixed": loss,
        "channels-last": (0.1, 0.12),
        "fused-optimizer": (0.2, 0.21),
    }
    result, _ = tuned("precision", "channels-last", "fused-optimizer", "compile")
    compiled = ["compile", "compile-reduce-overhead", "compile-max-autotune"]
    names = ["fused-optimizer", "channels-last", *compiled, "bf16-mixed", "16-mixed"]
    assert [trial.lever for trial in result.trials] == names, "by saving per time of a trial"
    found = {trial.lever: trial for trial in result.trials}
    assert found["channels-last"].predicted == pytest.approx((0.88, 0.9))
    assert (found["channels-last"].rule, found["channels-last"].source) == ("cpu-channels-last", "probed")
    assert found["fused-optimizer"].rule is None, "a probe without a finding"
    bf16 = found["bf16-mixed"]
    assert (bf16.outcome, bf16.measured) == (Outcome.NOT_TRIED, None)
    assert bf16.reason == "a probe of the recorded operators shows a loss of 20 to 40 % of the step"


def test_a_probed_loss_is_tried_on_top_of_another_lever(planted):
    planted.probed = {"bf16-mixed": (-0.4, -0.2), "16-mixed": (-0.3, -0.01), "channels-last": (0.2, 0.3)}
    planted.factors = {"channels-last": 0.7}
    result, _ = tuned("bf16-mixed", "16-mixed", "channels-last")
    assert outcomes(result)["channels-last"] is Outcome.KEPT
    assert outcomes(result)["bf16-mixed"] is Outcome.NO_GAIN, "with channels last it may have been a gain"
    planted.factors = {}
    result, _ = tuned("precision", "channels-last")
    assert outcomes(result)["16-mixed"] is Outcome.NO_GAIN, "its range ends close to no change"
    assert outcomes(result)["bf16-mixed"] is Outcome.NOT_TRIED
    result, _ = tuned("bf16-mixed", "channels-last")
    assert outcomes(result)["bf16-mixed"] is Outcome.NO_GAIN, "asked for by its name"


def test_the_budget_is_kept_and_leaves_time_for_the_last_measurement(planted):
    planted.factors = {"bf16-mixed": 0.5}
    result, said = tuned(minutes=2.5)
    found = outcomes(result)
    (note,) = (note for note in result.notes if note.startswith("The budget has time for about "))
    assert f"  {note}" in said
    fitting = "bf16-mixed, 16-mixed, channels-last, fused-optimizer, keep-memory"
    assert note == f"The budget has time for about 5 of 18 levers: {fitting}. All of them need at least 11 minutes."
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


def test_a_baseline_that_dies_in_a_trial_is_begun_anew(planted):
    planted.factors = {"workers-1": 0.5}
    planted.dies = 26
    result, _ = tuned("channels-last", "workers-1", "workers-2")
    (failed,) = (trial for trial in result.trials if trial.outcome is Outcome.FAILED)
    assert failed.reason == "the training that it was compared with failed: its process was killed by SIGKILL"
    assert result.kept == ("workers-1",)
    assert planted.alive == 0


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (TrialError("ValueError: no such file"), "the unchanged training fails: ValueError: no such file"),
        (NoTrainingError("TRAINING a.b:c: there is no module a"), "^TRAINING a.b:c: there is no module a$"),
        (OutOfTimeError("late"), "the first steps take longer than the 60 minutes of the budget: give more"),
    ],
)
def test_a_training_that_fails_as_it_is(planted, fault, said):
    planted.faults = {"scout": fault}
    with pytest.raises(TuneError, match=said):
        tuned()
    assert planted.alive == 0


def test_a_budget_that_suffices_for_no_lever_ends_after_the_first_steps(planted):
    planted.step_ms = 20_000
    tuned("channels-last")
    planted.clock_s, planted.step_ms = 0, 60_000
    with pytest.raises(TuneError, match=r"^a step takes 1 min 0 s, so 60 minutes do not .* at least --minutes 276, or"):
        tuned("channels-last")  # five pairs of 2 * (5 + 1 + 8 * 2) steps of a minute, and a quarter more
    assert planted.clock_s < 60


def test_a_training_that_fails_while_it_is_measured_gives_the_cause_once(planted):
    planted.dies = 3
    with pytest.raises(TuneError, match=r"^the unchanged training fails: its process was killed by SIGKILL"):
        tuned()
    assert planted.alive == 0


def test_two_trainings_that_leave_no_memory_run_one_after_the_other(planted):
    planted.free_bytes = 101
    result, _ = tuned("channels-last")
    assert not any("does not hold two trainings" in note for note in result.notes)
    planted.free_bytes = 99  # less than a tenth of the 1000 that a training holds
    result, _ = tuned("channels-last")
    assert any("does not hold two trainings" in note for note in result.notes)


def test_an_interrupt_before_anything_is_measured_leaves_nothing_behind(planted):
    planted.faults = {"bf16-mixed": KeyboardInterrupt()}
    lines = []
    with pytest.raises(KeyboardInterrupt):
        run_campaign("any:thing", TuneSettings(levers=("bf16-mixed", "channels-last"), minutes=60), lines.append)
    assert lines[-1] == "Interrupted before a lever was measured, so there is no result."
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
    assert result.combined.value == pytest.approx(0.5, rel=0.01), "the last confirming pair of the only one"
    assert result.confirmed
    assert result.open_levers == ("channels-last", "workers-1")
    assert planted.alive == 0


@pytest.mark.parametrize("budget_s", range(264, 420, 12))
def test_a_kept_lever_leaves_time_to_check_its_patch(planted, budget_s):
    planted.factors, planted.start_s = {"bf16-mixed": 0.5}, 20.0
    result, _ = tuned("bf16-mixed", "channels-last", "workers-1", minutes=budget_s / 60)
    assert not result.kept or budget_s - planted.clock_s > planted.start_s
    assert result.kept or budget_s < 288


def test_an_interrupt_leaves_several_kept_levers_unproven_together(planted):
    planted.factors = {"bf16-mixed": 0.5, "channels-last": 0.8}
    planted.faults = {"workers-1": KeyboardInterrupt()}
    result, _ = tuned("bf16-mixed", "channels-last", "workers-1")
    assert result.kept == ("bf16-mixed", "channels-last")
    assert result.combined is None
    assert not result.confirmed


def test_an_interrupt_of_the_last_measurement_keeps_the_rows(planted):
    planted.factors = {"bf16-mixed": 0.5}
    settings = TuneSettings(levers=("bf16-mixed",), minutes=60, rounds=8, window_s=1.0)

    def on_progress(line):
        if line.startswith("Measuring all kept levers"):
            planted.faults = {"bf16-mixed": KeyboardInterrupt()}

    result = run_campaign("any:thing", settings, on_progress)
    assert result.interrupted
    assert result.kept == ("bf16-mixed",)
    assert result.combined.value == pytest.approx(0.5, rel=0.01)
    assert "The change of bf16-mixed is that of its last confirming pair." in result.notes
    assert planted.alive == 0


def test_an_interrupt_of_the_check_of_a_patch_ends_it(planted, monkeypatch, tmp_path):
    planted.factors = {"bf16-mixed": 0.5}
    runs = []

    def run_in_copy(*_):
        runs.append(None)
        raise KeyboardInterrupt

    monkeypatch.setattr(campaign, "run_in_copy", run_in_copy)
    monkeypatch.setattr(campaign, "find_patch", lambda *given: [given[-1]({}) for _ in range(4)] and Patch("", ()))
    (tmp_path / "train.py").touch()
    settings = TuneSettings(levers=("bf16-mixed",), minutes=60, rounds=8, window_s=1.0)
    result = run_campaign(Script((str(tmp_path / "train.py"),)), settings, lambda _: None)
    assert result.kept == ("bf16-mixed",)
    assert result.interrupted
    assert len(runs) == 1


def test_a_resumed_tuning_tries_the_rest_on_top_of_what_was_kept(planted):
    planted.factors = {"bf16-mixed": 0.5, "workers-1": 0.8, "workers-2": 0.6}
    planted.faults = {"workers-1": KeyboardInterrupt()}
    names = ("bf16-mixed", "channels-last", "workers-1", "workers-2", "tf32")
    settings = TuneSettings(levers=names, minutes=60, rounds=8, window_s=1.0)
    saved = []
    first = run_campaign("any:thing", settings, lambda _: None, save=saved.append)
    assert [one.kept for one in saved] == [("bf16-mixed",)] * 2, "after each lever, for a process that is killed"
    assert saved[-1].interrupted
    assert saved[0].open_levers == (), "a result has the levers so far"
    planted.faults = {}
    planted.orders.clear()
    second = run_campaign("any:thing", settings, lambda _: None, earlier=TuneResult.from_json(first.to_json()))
    assert [trial.lever for trial in second.trials] == list(names)
    assert second.trials[:2] == first.trials[:2]
    assert outcomes(second)["workers-1"] is Outcome.REPLACED
    assert second.kept == ("bf16-mixed", "workers-2")
    assert second.combined.value == pytest.approx(0.5 * 0.6, rel=0.01)
    assert not second.interrupted
    assert not second.open_levers
    tried = {order.levers for order in planted.orders}
    assert ("bf16-mixed", "workers-1") in tried
    assert not any("channels-last" in levers for levers in tried)
    assert second.seconds == pytest.approx(planted.clock_s), "both parts"
    with pytest.raises(TuneError, match=r"measured on another machine \(cores: 64, now 2\)"):
        run_campaign(
            "any:thing", settings, lambda _: None, earlier=replace(first, machine=Machine("cpu", None, 64, "a CPU"))
        )


def test_more_time_decides_on_levers_that_had_none(planted):
    planted.factors = {"channels-last": 0.8}
    planted.starts_s = {"channels-last": 60.0}
    first, _ = tuned("channels-last", minutes=4.2)
    assert first.open_levers == ("channels-last",)
    settings = TuneSettings(levers=("channels-last",), minutes=60, rounds=8, window_s=1.0)
    assert run_campaign("any:thing", settings, lambda _: None, earlier=first).kept == ("channels-last",)


@pytest.mark.parametrize("minutes", [1.5, 2, 3, 5, 15])
def test_windows_fit_the_budget_so_that_it_ends_with_a_proof(planted, minutes):
    planted.factors = {"fused-optimizer": 0.66}
    result = run_campaign("any:thing", TuneSettings(minutes=minutes), lambda _: None)
    assert result.kept == ("fused-optimizer",)
    assert result.confirmed
    assert result.seconds <= 60 * minutes
    assert 8 <= result.rounds <= 12
    assert 2 <= result.window_steps <= 8, "a window of 0.75 s has 7 or 8 steps of 0.1 s"
    if minutes == 15:
        assert (result.rounds, result.window_steps) in ((12, 7), (12, 8))


def test_a_machine_that_becomes_slower_ends_a_pair_early_instead_of_the_budget_late(planted, monkeypatch):
    planted.factors = {"bf16-mixed": 0.5}

    def on_progress(line):
        if line.startswith("Measuring all kept levers"):
            monkeypatch.setitem(globals(), "STEP_S", 3 * STEP_S)

    result = run_campaign("any:thing", TuneSettings(minutes=3), on_progress)
    assert 6 <= result.combined.n < result.rounds
    assert result.combined.low is not None
    assert result.confirmed
    assert result.seconds <= result.budget_s


def test_all_kept_levers_are_confirmed_in_processes_of_their_own(planted):
    """Each lever is faster whenever it is chosen, but together, in the last pair, they are not."""
    planted.factors = {"bf16-mixed": 0.9, "channels-last": 0.9}
    settings = TuneSettings(levers=("bf16-mixed", "channels-last"), minutes=60, rounds=8, window_s=1.0)
    began = []

    def on_progress(line):
        if line.startswith("Measuring all kept levers"):
            began.append(len(planted.orders))
            planted.factors = {}

    result = run_campaign("any:thing", settings, on_progress)
    assert result.kept == ("bf16-mixed", "channels-last")
    assert [order.levers for order in planted.orders[began[0] :]] == [(), result.kept]
    assert result.combined.value == pytest.approx(1, abs=0.01)
    assert not result.confirmed
    assert "the gain is not certain" in result.to_markdown()


def test_time_is_set_aside_for_what_starts_slowly(planted):
    planted.predictions = (Prediction("channels-last", 0.1, 0.5),)  # it comes first
    planted.factors = {"channels-last": 0.5}
    planted.starts_s = {"channels-last": 60.0}
    result, _ = tuned(minutes=10)
    assert result.trials[0].lever == "channels-last"
    assert result.kept == ("channels-last",)
    assert Outcome.NOT_TRIED in outcomes(result).values()
    assert result.confirmed
    assert result.seconds <= result.budget_s


def test_a_training_whose_seeds_do_not_matter_says_how_it_is_guarded(planted):
    planted.spread = 0.0
    result, _ = tuned("channels-last")
    assert "Other seeds hardly change the loss" in result.notes[0]
    assert (result.kept, result.lines, result.combined, result.confirmed) == ((), (), None, False)


def test_a_gain_that_fresh_processes_do_not_show_is_not_kept(planted):
    planted.process_spread = 0.02
    for seed in range(40):
        planted.draws.seed(seed)
        result, _ = tuned("bf16-mixed", "channels-last", "fused-optimizer", "workers-1")
        unconfirmed = [trial for trial in result.trials if trial.outcome is Outcome.NOT_CONFIRMED]
        if unconfirmed:
            assert "in three pairs of processes" in unconfirmed[0].reason
            assert unconfirmed[0].lever not in result.kept
            return
    raise AssertionError("no lever looked faster by luck in 40 tunings")


@pytest.mark.parametrize(("spread", "power"), [(0.005, 1.0), (0.02, 0.75)])
def test_useless_levers_are_kept_in_five_per_cent_of_tunings_at_most(planted, spread, power):
    """Before: any of 8 in 16 % of tunings at 0.5 %, in 46 % at 2 %."""
    useless = ("bf16-mixed", "16-mixed", "channels-last", "fused-optimizer", "keep-memory", "cudnn-benchmark")
    planted.process_spread = spread
    kept = found = 0
    tunings = 60
    for seed in range(tunings):
        planted.draws.seed(seed)
        planted.factors = {}
        result, _ = tuned(*useless, "workers-1", "compile", minutes=1e6)
        assert result.family_error == 0.05
        kept += bool(result.kept)
        planted.factors = {"channels-last": 0.9}
        result, _ = tuned("channels-last", minutes=1e6)
        found += result.kept == ("channels-last",)
    assert kept <= 7  # 5 % of 60 is 3; more than 7 come in 1 of 100 such tests
    assert found / tunings >= power


def test_a_budget_without_time_for_fresh_processes_confirms_nothing(planted):
    planted.factors = {"channels-last": 0.8}
    planted.starts_s = {"channels-last": 60.0}
    result, _ = tuned("channels-last", minutes=4.6)
    assert outcomes(result) == {"channels-last": Outcome.NOT_CONFIRMED}
    assert "no time to confirm" in result.trials[0].reason
    assert "Nothing is proven. Faster in their first pair of processes: channels-last" in result.to_markdown()


@pytest.mark.parametrize("known", [True, False], ids=["the device tells", "the device does not tell"])
def test_a_training_over_half_of_the_memory_runs_one_after_the_other(planted, known):
    planted.capacity, planted.free_bytes = 1.5, 500 if known else None
    planted.factors = {"channels-last": 0.8}
    result, said = tuned("channels-last", "fused-optimizer")
    assert outcomes(result) == {"channels-last": Outcome.KEPT, "fused-optimizer": Outcome.NO_GAIN}
    assert sum("does not hold two trainings" in note for note in result.notes) == 1
    assert any("does not hold two trainings" in line for line in said)
    assert planted.alive == 0
    assert planted.used == 0


def test_a_larger_batch_that_fits_alone_is_measured_alone(planted):
    planted.capacity = 4.5
    planted.sizes = {"batch-size-x2": 2.0, "batch-size-x4": 4.0}
    result, _ = tuned("batch-size-x2", "batch-size-x4")
    assert outcomes(result) == {"batch-size-x2": Outcome.MEASURED, "batch-size-x4": Outcome.MEASURED}
    assert result.trials[1].measured.value == pytest.approx(0.25, rel=0.01)
    assert not any("does not hold two trainings" in note for note in result.notes)


def test_a_batch_that_does_not_fit_alone_fails_with_the_cause(planted):
    planted.capacity = 2.5
    planted.sizes = {"batch-size-x4": 4.0}
    result, _ = tuned("batch-size-x4")
    assert outcomes(result) == {"batch-size-x4": Outcome.FAILED}
    assert "out of memory" in result.trials[0].reason
    assert "with no other training in memory" in result.trials[0].reason
