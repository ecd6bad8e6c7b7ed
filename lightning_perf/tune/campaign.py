"""The order of a tuning: scout, baseline with its noise, then lever by lever on top of the best, within the budget."""

from __future__ import annotations

import random
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from lightning_perf import __version__
from lightning_perf.statistics.values import Estimate
from lightning_perf.tune.errors import (
    NotApplicableError,
    NoTrainingError,
    OutOfTimeError,
    TrialError,
    TuneError,
    is_out_of_memory,
    trial_errors,
)
from lightning_perf.tune.levers.lever import Lever
from lightning_perf.tune.levers.registry import find_lever, find_levers
from lightning_perf.tune.measurement import (
    LossGuard,
    Measurement,
    is_confirmed,
    is_gain,
    is_loss,
    measure,
    measure_in_turn,
)
from lightning_perf.tune.messages import Order, Prediction, Scouted
from lightning_perf.tune.progress import Progress, describe_left
from lightning_perf.tune.rendering import describe_ratio
from lightning_perf.tune.result import SCHEMA_VERSION, Outcome, Trial, TuneResult
from lightning_perf.tune.runner import WORKER, Runner
from lightning_perf.tune.settings import Budget, TuneSettings
from lightning_perf.workers.process import WorkerProcess

__all__ = ["run_campaign"]

CONFIRMING_PAIRS = 2
"""Pairs of fresh processes that a lever has to pass after its first one, before it is kept."""

CERTAIN_LOSS = 0.10
"""A lever with a probed loss of at least this share of the step, at both ends of its range, is not tried."""

MEMORY_MARGIN = 1.1
"""Free device memory over a training's own, from which on a second one fits next to it."""


def run_campaign(source: str | bytes, settings: TuneSettings, on_progress: Callable[[str], None]) -> TuneResult:
    """Try levers on a training.

    Args:
        source: ``package.module:name``, or torch's flags and a `Training`, pickled by cloudpickle.
        settings: Budget, levers and the size of trials.
        on_progress: Called with each line of progress.

    Raises:
        TuneError: The training does not exist, fails without any lever, or takes the whole budget.
        KeyboardInterrupt: Before any lever was measured. Later, the result holds the measurements so far.
    """
    levers = find_levers(settings.levers)
    budget = Budget(settings.minutes)
    with (
        tempfile.TemporaryDirectory(prefix="lightning-perf-tune-", ignore_cleanup_errors=True) as folder,
        Progress(on_progress, budget.left_s) as progress,
    ):
        return _Campaign(source, settings, levers, folder, budget, progress).run()


@dataclass(frozen=True)
class _Pair:
    """Two trainings that were measured against each other.

    Attributes:
        measurement: Their ratio.
        base_losses: Losses of the base.
        losses: Losses of the candidate.
        start_s: Time that the candidate's process took to start.
        took_s: Time of the measurement without that start.
    """

    measurement: Measurement
    base_losses: tuple[float, ...]
    losses: tuple[float, ...]
    start_s: float
    took_s: float


class _Campaign:
    def __init__(
        self,
        source: str | bytes,
        settings: TuneSettings,
        levers: tuple[Lever, ...],
        folder: str,
        budget: Budget,
        progress: Progress,
    ) -> None:
        self._source, self._settings, self._folder = source, settings, folder
        self._levers = levers
        self._budget = budget
        self._progress = progress
        self._order = random.Random(settings.seed)
        self._steps = 0
        self._kept: tuple[str, ...] = ()
        self._best: Runner | None = None
        self._one_at_a_time = False
        self._noise: tuple[Estimate, ...] = ()
        self._guard = LossGuard(())
        self._notes: list[str] = []
        self._interrupted = False

    def run(self) -> TuneResult:
        try:
            try:
                scouted = self._scout()
                baseline = self._baseline()
            except OutOfTimeError as error:
                raise TuneError(
                    f"the unchanged training takes longer than the {self._settings.minutes:g} minutes of the budget: "
                    "give more"
                ) from error
            except NoTrainingError as error:
                raise TuneError(str(error)) from error
            except TrialError as error:
                raise TuneError(f"the unchanged training fails: {error}") from error
            trials = self._try_all(scouted, baseline.ratio)
        finally:
            self._close_best()
        combined = self._combined() if self._kept and not self._interrupted else None
        if self._interrupted:
            self._notes.append("The tuning was interrupted before its end.")
        trials.sort(key=lambda trial: trial.outcome is Outcome.NOT_APPLICABLE)
        return TuneResult(
            schema_version=SCHEMA_VERSION,
            tool_version=__version__,
            machine=scouted.machine,
            baseline_ms=baseline.base_s * 1e3,
            noise=baseline.ratio,
            trials=tuple(trials),
            kept=self._kept,
            combined=combined,
            confirmed=combined is not None and is_gain(combined, baseline.ratio),
            lines=tuple(line for trial in trials if trial.lever in self._kept for line in trial.lines),
            window_steps=self._steps,
            rounds=self._settings.rounds,
            seconds=self._budget.spent_s(),
            budget_s=self._budget.total_s,
            interrupted=self._interrupted,
            notes=tuple(self._notes),
            network=scouted.network,
            tuning=f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:8]}",
        )

    def _scout(self) -> Scouted:
        self._progress.say("Looking at the training, and profiling a few steps …", "profiling a few steps")
        order = self._order_for((), 0, scout=True)
        with trial_errors(), WorkerProcess(WORKER, order, path=sys.path) as worker:
            scouted = worker.receive(Scouted, timeout_s=self._budget.left_s())
        if scouted.step_ms is not None:
            self._progress.say(f"  a step takes about {scouted.step_ms:.3g} ms in the first steps")
        if scouted.note:
            self._notes.append(f"Nothing is predicted: {scouted.note}.")
        return scouted

    def _baseline(self) -> Measurement:
        """Measure the unchanged training against itself, with other seeds: the noise of times and of losses."""
        self._progress.say("Measuring the unchanged training against itself …", "measuring the unchanged training")
        began = time.monotonic()
        best = self._living_best()
        start_s = time.monotonic() - began
        self._steps = best.steps_for(self._settings.window_s)
        self._check_memory(best)
        pairs = [self._pair((), (), seed=1), self._pair((), (), seed=2)]
        self._budget.baseline_took(start_s, pairs[0].start_s + pairs[0].took_s)
        self._noise = tuple(pair.measurement.ratio for pair in pairs)
        self._guard = LossGuard(pairs[0].base_losses, *(pair.losses for pair in pairs))
        if (note := self._guard.note()) is not None:
            self._notes.append(note)
        noise = pairs[0].measurement
        self._progress.say(
            f"  a step takes {noise.base_s * 1e3:.3g} ms; against itself {describe_ratio(noise.ratio)}; "
            f"{describe_left(self._budget.left_s())}"
        )
        return noise

    def _check_memory(self, best: Runner) -> None:
        """Decide whether the device has room for a second training next to the first."""
        window = best.last
        if window is None or window.peak_bytes is None or window.free_bytes is None:
            return
        if window.free_bytes < MEMORY_MARGIN * window.peak_bytes:
            self._take_turns()

    def _take_turns(self) -> None:
        self._one_at_a_time = True
        note = (
            "The device's memory does not hold two trainings at a time, so they ran one after the other. Changes in "
            "the machine's speed disturb such figures more."
        )
        self._notes.append(note)
        self._progress.say(f"  {note}")

    def _in_order(self, scouted: Scouted) -> list[Lever]:
        """Return memory first, then the levers with the largest predicted savings per time of a trial."""

        def saving(lever: Lever) -> float:
            found = _prediction(lever, scouted)
            if found is None:
                return 0.0
            # A loss is worth trying last: it may turn into a gain on top of another lever.
            return (found.low + found.high) / lever.cost if scouted.probed else found.low + found.high

        # Memory comes first: if glibc returns freed memory to the system, processes of one training differ by more than
        # most levers gain. Levers that change the training come last, on top of everything that is kept.
        return sorted(
            self._levers, key=lambda lever: (lever.changes_training, lever.family != "memory", -saving(lever))
        )

    def _try_all(self, scouted: Scouted, noise: Estimate) -> list[Trial]:
        trials: list[Trial] = []
        for lever in self._in_order(scouted):
            try:
                trials.append(self._try(lever, scouted, noise))
            except KeyboardInterrupt:  # noqa: PERF203
                if not any(trial.measured for trial in trials):
                    raise
                self._progress.say("Interrupted: the result holds the measurements so far.")
                self._interrupted = True
                trials.append(self._try(lever, scouted, noise))
        return [_with_successor(trial, self._kept) for trial in trials]

    def _try(self, lever: Lever, scouted: Scouted, noise: Estimate) -> Trial:
        found = _prediction(lever, scouted)
        on_top_of = self._kept
        reason: str | None = None
        measured: Estimate | None = None
        if (missing := scouted.missing[lever.name]) is not None:
            outcome, reason = Outcome.NOT_APPLICABLE, missing
        elif self._interrupted:
            outcome, reason = Outcome.NOT_TRIED, "interrupted before"
        elif (loss := self._certain_loss(lever, scouted)) is not None:
            outcome, reason = Outcome.NOT_TRIED, loss
        elif not self._budget.allows_a_trial():
            outcome, reason = Outcome.NOT_TRIED, "the budget is spent"
        else:
            levers = sum(scouted.missing[one.name] is None and not one.changes_training for one in self._levers)
            try:
                outcome, reason, measured = self._measured(lever, noise, levers)
            except NotApplicableError as error:
                outcome, reason = Outcome.NOT_APPLICABLE, str(error)
            except OutOfTimeError:
                outcome, reason = Outcome.FAILED, "took longer than its share of the budget"
            except TrialError as error:
                outcome, reason = Outcome.FAILED, str(error)
        if outcome is not Outcome.NOT_APPLICABLE and not self._interrupted:
            figure = f", {describe_ratio(measured)}" if measured else f", {reason}"
            self._progress.say(f"{lever.name}: {outcome.value}{figure}; {describe_left(self._budget.left_s())}")
        return Trial(
            lever=lever.name,
            outcome=outcome,
            reason=reason,
            predicted=(1 - found.high, 1 - found.low) if found and outcome is not Outcome.NOT_APPLICABLE else None,
            measured=measured,
            lines=scouted.lines.get(lever.name, ()),
            rule=(found.kind or None) if found and outcome is not Outcome.NOT_APPLICABLE else None,
            source=found.source if found and outcome is not Outcome.NOT_APPLICABLE else None,
            on_top_of=on_top_of if measured is not None else (),
        )

    def _certain_loss(self, lever: Lever, scouted: Scouted) -> str | None:
        """Return the loss that a probe shows for a lever, if the lever need not be tried.

        The probe measured the operators of the unchanged training. With another lever in effect, the same lever may be
        a gain, so it is tried. Memory settings are the exception, because they affect no operator of a probe.
        """
        low, high = scouted.probed.get(lever.name, (0.0, 0.0))
        if high > -CERTAIN_LOSS or any(find_lever(name).family != "memory" for name in self._kept):
            return None
        return f"a probe of the recorded operators shows a loss of {-high:.0%} to {-low:.0%} of the step"

    def _measured(self, lever: Lever, noise: Estimate, levers: int) -> tuple[Outcome, str | None, Estimate]:
        others = tuple(name for name in self._kept if find_lever(name).family != lever.family)
        tried = (*others, lever.name)
        began = time.monotonic()
        until_s = began + self._budget.share_s()
        pair = self._pair(
            self._kept,
            tried,
            left_s=lambda: until_s - time.monotonic(),
            by_sample=lever.changes_training,
            may_give_up=True,
        )
        ratio = pair.measurement.ratio
        if lever.changes_training:
            return Outcome.MEASURED, ratio.reason, ratio
        harm = self._guard.harm(pair.losses)
        if harm is None and is_gain(ratio, noise):
            outcome, reason = self._confirm(tried, pair, levers)
            if outcome is Outcome.KEPT:
                self._budget.kept_took(pair.start_s + pair.took_s)
                self._kept = tried
            return outcome, reason, ratio
        if pair.measurement.given_up or is_loss(ratio, noise):
            return Outcome.SLOWER, ratio.reason, ratio
        if harm is not None:
            return Outcome.REJECTED, harm, ratio
        return Outcome.NO_GAIN, None, ratio

    def _confirm(self, tried: tuple[str, ...], first: _Pair, levers: int) -> tuple[Outcome, str | None]:
        """Measure a lever that looked faster in fresh processes, since two processes of one training differ."""
        if not self._budget.allows_pairs(CONFIRMING_PAIRS, first.start_s + first.took_s):
            return Outcome.NOT_CONFIRMED, "the budget leaves no time to confirm it in fresh processes"
        self._close_best()
        pairs = [first.measurement.ratio]
        for number in range(1, CONFIRMING_PAIRS + 1):
            name = f"{tried[-1]}, confirming pair {number} of {CONFIRMING_PAIRS}"
            pairs.append(self._pair(self._kept, tried, fresh=True, name=name).measurement.ratio)
        if is_confirmed(pairs, self._noise, levers):
            return Outcome.KEPT, None
        seen = ", ".join(describe_ratio(pair, interval=False) for pair in pairs)
        return Outcome.NOT_CONFIRMED, f"processes differ by too much: {seen} in three pairs of processes"

    def _living_best(self) -> Runner:
        """Return the running process of the best setting; start a new one if it does not run or has failed."""
        if self._best is not None and self._best.failed:
            self._close_best()
        if self._best is None:
            self._best = Runner(self._order_for(self._kept, 0), self._budget.left_s)
        return self._best

    def _close_best(self) -> None:
        best, self._best = self._best, None
        if best is not None:
            best.close()

    def _combined(self) -> Estimate | None:
        self._progress.say(
            "Measuring all kept levers together, in fresh processes, against the unchanged training …",
            "measuring all kept levers together",
        )
        try:
            ratio = self._pair((), self._kept, fresh=True, name="all kept levers together").measurement.ratio
        except TrialError as error:
            self._notes.append(f"The kept levers were not measured all together: {error}.")
            return None
        except KeyboardInterrupt:
            self._interrupted = True
            return None
        self._progress.say(f"  {describe_ratio(ratio)}")
        return ratio

    def _pair(
        self,
        base: tuple[str, ...],
        candidate: tuple[str, ...],
        *,
        seed: int = 0,
        fresh: bool = False,
        left_s: Callable[[], float] | None = None,
        by_sample: bool = False,
        may_give_up: bool = False,
        name: str | None = None,
    ) -> _Pair:
        """Measure one setting against another, side by side if the memory holds both.

        Args:
            base: Levers of the setting to compare with.
            candidate: Levers of the setting to measure.
            seed: Seed of the candidate, added to that of the tuning.
            fresh: Whether the base starts in a fresh process too; otherwise the running best is the base.
            left_s: Seconds that the candidate may still take.
            by_sample: Whether to compare times per sample.
            may_give_up: Whether to end early when the candidate is far slower.
            name: Name of the pair in progress; by default that of the last lever.

        Raises:
            TrialError: One of them fails.
        """
        started: list[tuple[Runner, float]] = []

        def start_base() -> Runner:
            return Runner(self._order_for(base, 0), self._budget.left_s)

        def start_candidate() -> Runner:
            began = time.monotonic()
            runner = Runner(self._order_for(candidate, seed), left_s or self._budget.left_s)
            started.append((runner, time.monotonic() - began))
            return runner

        def on_round(number: int) -> None:
            self._progress.doing(f"{name}: round {number} of {self._settings.rounds}")

        name = name or (candidate[-1] if candidate else "unchanged training")
        self._progress.doing(f"{name}: starting")
        began = time.monotonic()
        if not self._one_at_a_time:
            one = start_base() if fresh else self._living_best()
            try:
                other = start_candidate()
                try:
                    measurement = measure(
                        one,
                        other,
                        steps=self._steps,
                        rounds=self._settings.rounds,
                        order=self._order,
                        by_sample=by_sample,
                        may_give_up=may_give_up,
                        on_round=on_round,
                    )
                finally:
                    other.close()
                return _Pair(
                    measurement,
                    tuple(one.losses),
                    tuple(other.losses),
                    started[0][1],
                    time.monotonic() - began - started[0][1],
                )
            except TrialError as error:
                if not is_out_of_memory(error):
                    if one.failed:
                        raise TrialError(f"the training that it was compared with failed: {error}") from error
                    raise
            finally:
                if fresh:
                    one.close()
        self._close_best()  # from here on only one of them is in memory
        started.clear()
        bases: list[Runner] = []

        def start_base_alone() -> Runner:
            bases.append(start_base())
            return bases[-1]

        try:
            measurement = measure_in_turn(
                start_base_alone,
                start_candidate,
                steps=self._steps,
                rounds=self._settings.rounds,
                by_sample=by_sample,
                on_round=on_round,
            )
        except TrialError as error:
            if is_out_of_memory(error):
                raise TrialError(f"{error} (with no other training in memory)") from error
            raise
        ((runner, start_s),) = started
        took_s = time.monotonic() - began - start_s
        if not candidate and not self._one_at_a_time:
            self._take_turns()  # the unchanged training does not fit next to itself
        return _Pair(measurement, tuple(bases[0].losses), tuple(runner.losses), start_s, took_s)

    def _order_for(self, levers: tuple[str, ...], seed: int, *, scout: bool = False) -> Order:
        source, pickled = (self._source, None) if isinstance(self._source, str) else (None, self._source)
        return Order(source, pickled, levers, self._settings.seed + seed, scout, self._folder)


def _with_successor(trial: Trial, kept: tuple[str, ...]) -> Trial:
    """Mark a lever as replaced if a better one of its family was kept later."""
    if trial.outcome is not Outcome.KEPT or trial.lever in kept:
        return trial
    family = find_lever(trial.lever).family
    better = next(name for name in kept if find_lever(name).family == family)
    return replace(trial, outcome=Outcome.REPLACED, reason=f"{better} is faster still")


def _prediction(lever: Lever, scouted: Scouted) -> Prediction | None:
    """Return the predicted saving of a lever: the probed one, or that of a finding. Its kind is empty without one."""
    fitting = [prediction for prediction in scouted.predictions if prediction.kind in lever.addresses]
    found = max(fitting, key=lambda prediction: prediction.high, default=None)
    if lever.name not in scouted.probed:
        return found
    low, high = scouted.probed[lever.name]
    return Prediction(found.kind if found is not None else "", low, high, "probed")
