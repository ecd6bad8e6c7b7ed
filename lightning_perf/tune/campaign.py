"""The trials: scout, baseline, noise, then lever by lever on top of the best so far, within the budget."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from lightning_perf import __version__
from lightning_perf.statistics.values import Estimate
from lightning_perf.tune.errors import (
    NotApplicableError,
    NoTrainingError,
    OutOfTimeError,
    TrialError,
    TuneError,
    trial_errors,
)
from lightning_perf.tune.levers.lever import Lever
from lightning_perf.tune.levers.registry import find_lever, find_levers
from lightning_perf.tune.measurement import LossGuard, Measurement, is_gain, is_loss, measure
from lightning_perf.tune.messages import Order, Prediction, Scouted
from lightning_perf.tune.rendering import describe_ratio
from lightning_perf.tune.result import SCHEMA_VERSION, Outcome, Trial, TuneResult
from lightning_perf.tune.runner import WORKER, Runner
from lightning_perf.tune.settings import Budget, TuneSettings
from lightning_perf.workers.process import WorkerProcess

__all__ = ["run_campaign"]


def run_campaign(source: str | bytes, settings: TuneSettings, on_progress: Callable[[str], None]) -> TuneResult:
    """Try levers on a training.

    Args:
        source: ``package.module:name``, or what cloudpickle made of torch's flags and a `Training`.
        settings: How.
        on_progress: Called with each line of progress.

    Raises:
        TuneError: There is no such training, it fails as it is, or takes the whole budget.
        KeyboardInterrupt: Before a lever had its turn; after that, what was measured so far is the result.
    """
    levers = find_levers(settings.levers)
    with tempfile.TemporaryDirectory(prefix="lightning-perf-tune-", ignore_cleanup_errors=True) as folder:
        return _Campaign(source, settings, levers, folder, on_progress).run()


class _Campaign:
    def __init__(
        self,
        source: str | bytes,
        settings: TuneSettings,
        levers: tuple[Lever, ...],
        folder: str,
        on_progress: Callable[[str], None],
    ) -> None:
        self._source, self._settings, self._folder, self._on_progress = source, settings, folder, on_progress
        self._levers = levers
        self._budget = Budget(settings.minutes)
        self._order = random.Random(settings.seed)
        self._steps = 0
        self._best: Runner | None = None
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
                    f"the training as it is takes longer than the {self._settings.minutes:g} minutes of the budget: "
                    "give more"
                ) from error
            except NoTrainingError as error:
                raise TuneError(str(error)) from error
            except TrialError as error:
                raise TuneError(f"the training fails as it is: {error}") from error
            trials = self._try_all(scouted, baseline.ratio)
            kept = self._best.levers if self._best is not None else ()
        finally:
            if self._best is not None:
                self._best.close()
        combined = self._combined(kept) if kept and not self._interrupted else None
        if self._interrupted:
            self._notes.append("It was interrupted before its end.")
        trials.sort(key=lambda trial: trial.outcome is Outcome.NOT_APPLICABLE)
        return TuneResult(
            schema_version=SCHEMA_VERSION,
            tool_version=__version__,
            machine=scouted.machine,
            baseline_ms=baseline.base_s * 1e3,
            noise=baseline.ratio,
            trials=tuple(trials),
            kept=kept,
            combined=combined,
            confirmed=combined is not None and is_gain(combined, baseline.ratio),
            lines=tuple(line for trial in trials if trial.lever in kept for line in trial.lines),
            window_steps=self._steps,
            rounds=self._settings.rounds,
            seconds=self._budget.spent_s(),
            budget_s=self._budget.total_s,
            interrupted=self._interrupted,
            notes=tuple(self._notes),
        )

    def _scout(self) -> Scouted:
        self._on_progress("Looking at the training, and profiling a few steps …")
        order = self._order_for((), 0, scout=True)
        with trial_errors(), WorkerProcess(WORKER, order, path=sys.path) as worker:
            scouted = worker.receive(Scouted, timeout_s=self._budget.left_s())
        if scouted.note:
            self._notes.append(f"Nothing is predicted: {scouted.note}.")
        return scouted

    def _baseline(self) -> Measurement:
        """The training as it is, against itself by another seed: the noise of times and of losses."""
        self._on_progress("Measuring the training as it is, against itself …")
        began = time.monotonic()
        self._best = Runner(self._order_for((), 0), self._budget.left_s)
        start_s = time.monotonic() - began
        self._steps = self._best.steps_for(self._settings.window_s)
        began = time.monotonic()
        with self._runner((), seed=1) as twin:
            noise = self._measure(self._best, twin)
        self._budget.baseline_took(start_s, time.monotonic() - began)
        with self._runner((), seed=2) as third:
            third.window(max(1, self._settings.rounds * self._steps))
        self._guard = LossGuard(self._best.losses, twin.losses, third.losses)
        if (note := self._guard.note()) is not None:
            self._notes.append(note)
        self._on_progress(f"  a step takes {noise.base_s * 1e3:.3g} ms; against itself {describe_ratio(noise.ratio)}")
        return noise

    def _in_order(self, scouted: Scouted) -> list[Lever]:
        """Memory, then those with a prediction, the most to win before others."""

        def saving(lever: Lever) -> float:
            found = _prediction(lever, scouted)
            return found.low + found.high if found else 0.0

        # Memory comes first: where glibc gives it back, processes of one training differ by how much. Another training
        # comes last: it is measured on top of all that is kept.
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
                self._on_progress("Interrupted: this is what was measured so far.")
                self._interrupted = True
                trials.append(self._try(lever, scouted, noise))
        kept = self._best.levers if self._best is not None else ()
        return [_with_successor(trial, kept) for trial in trials]

    def _try(self, lever: Lever, scouted: Scouted, noise: Estimate) -> Trial:
        found = _prediction(lever, scouted)
        reason: str | None = None
        measured: Estimate | None = None
        if (missing := scouted.missing[lever.name]) is not None:
            outcome, reason = Outcome.NOT_APPLICABLE, missing
        elif self._interrupted:
            outcome, reason = Outcome.NOT_TRIED, "interrupted before"
        elif not self._budget.allows_a_trial():
            outcome, reason = Outcome.NOT_TRIED, "the budget is spent"
        else:
            try:
                outcome, reason, measured = self._measured(lever, noise)
            except NotApplicableError as error:
                outcome, reason = Outcome.NOT_APPLICABLE, str(error)
            except OutOfTimeError:
                outcome, reason = Outcome.FAILED, "took longer than its share of the budget"
            except TrialError as error:
                outcome, reason = Outcome.FAILED, str(error)
        if outcome is not Outcome.NOT_APPLICABLE and not self._interrupted:
            self._on_progress(
                f"{lever.name}: {outcome.value}{f', {describe_ratio(measured)}' if measured else f', {reason}'}"
            )
        return Trial(
            lever=lever.name,
            outcome=outcome,
            reason=reason,
            predicted=(1 - found.high, 1 - found.low) if found and outcome is not Outcome.NOT_APPLICABLE else None,
            measured=measured,
            lines=scouted.lines.get(lever.name, ()),
        )

    def _measured(self, lever: Lever, noise: Estimate) -> tuple[Outcome, str | None, Estimate]:
        best = self._living_best()
        others = tuple(name for name in best.levers if find_lever(name).family != lever.family)
        began = time.monotonic()
        until_s = began + self._budget.share_s()
        candidate = Runner(self._order_for((*others, lever.name), 0), lambda: until_s - time.monotonic())
        keep = False
        try:
            ratio = self._measure(best, candidate, by_sample=lever.changes_training, may_give_up=True)
            if lever.changes_training:
                return Outcome.MEASURED, ratio.ratio.reason, ratio.ratio
            harm = self._guard.harm(candidate.losses)
            keep = harm is None and is_gain(ratio.ratio, noise)
            if keep:
                return Outcome.KEPT, None, ratio.ratio
            if ratio.given_up or is_loss(ratio.ratio, noise):
                return Outcome.SLOWER, ratio.ratio.reason, ratio.ratio
            if harm is not None:
                return Outcome.REJECTED, harm, ratio.ratio
            return Outcome.NO_GAIN, None, ratio.ratio
        except TrialError as error:
            if best.failed:
                raise TrialError(f"the training that it was compared with failed: {error}") from error
            raise
        finally:
            if keep:
                candidate.allow(self._budget.left_s)
                self._budget.kept_took(time.monotonic() - began)
                self._best = candidate
                best.close()
            else:
                candidate.close()

    def _living_best(self) -> Runner:
        """The best setting so far; begun anew where it has failed in the midst of another's trial."""
        assert self._best is not None
        if self._best.failed:
            self._best.close()
            self._best = Runner(self._order_for(self._best.levers, 0), self._budget.left_s)
        return self._best

    def _combined(self, kept: tuple[str, ...]) -> Estimate | None:
        self._on_progress("Measuring what is kept, all together and anew, against the training as it was …")
        try:
            with self._runner((), seed=0) as base, self._runner(kept, seed=0) as candidate:
                ratio = self._measure(base, candidate).ratio
        except TrialError as error:
            self._notes.append(f"What is kept was not measured all together: {error}.")
            return None
        except KeyboardInterrupt:
            self._interrupted = True
            return None
        self._on_progress(f"  {describe_ratio(ratio)}")
        return ratio

    def _measure(
        self, base: Runner, candidate: Runner, *, by_sample: bool = False, may_give_up: bool = False
    ) -> Measurement:
        return measure(
            base,
            candidate,
            steps=self._steps,
            rounds=self._settings.rounds,
            order=self._order,
            by_sample=by_sample,
            may_give_up=may_give_up,
        )

    @contextmanager
    def _runner(self, levers: tuple[str, ...], *, seed: int) -> Iterator[Runner]:
        runner = Runner(self._order_for(levers, seed), self._budget.left_s)
        try:
            yield runner
        finally:
            runner.close()

    def _order_for(self, levers: tuple[str, ...], seed: int, *, scout: bool = False) -> Order:
        source, pickled = (self._source, None) if isinstance(self._source, str) else (None, self._source)
        return Order(source, pickled, levers, self._settings.seed + seed, scout, self._folder)


def _with_successor(trial: Trial, kept: tuple[str, ...]) -> Trial:
    """What was kept until a better one of its family came says so."""
    if trial.outcome is not Outcome.KEPT or trial.lever in kept:
        return trial
    family = find_lever(trial.lever).family
    better = next(name for name in kept if find_lever(name).family == family)
    return replace(trial, outcome=Outcome.REPLACED, reason=f"{better} is faster still")


def _prediction(lever: Lever, scouted: Scouted) -> Prediction | None:
    fitting = [prediction for prediction in scouted.predictions if prediction.kind in lever.addresses]
    return max(fitting, key=lambda prediction: prediction.high, default=None)
