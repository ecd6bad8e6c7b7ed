"""The trials: scout, baseline, noise, then lever by lever on top of the best so far, within the budget."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lightning_perf import __version__
from lightning_perf.compare.statistics.location import paired_ratio
from lightning_perf.compare.statistics.values import Estimate
from lightning_perf.environment import cpu_name
from lightning_perf.tune.catalogue import find_lever, find_levers
from lightning_perf.tune.errors import TrialError, TuneError
from lightning_perf.tune.guard import loss_of, moved
from lightning_perf.tune.lever import Lever
from lightning_perf.tune.messages import Order, Prediction, Scouted
from lightning_perf.tune.process import TrialProcess
from lightning_perf.tune.result import SCHEMA_VERSION, Outcome, Trial, TuneResult
from lightning_perf.tune.runner import Runner
from lightning_perf.tune.tuner import TuneSettings

__all__ = ["run_campaign"]

GIVE_UP_AFTER = 4
"""Rounds after which a lever whose whole interval is slower is not measured further."""


def run_campaign(source: str | bytes, settings: TuneSettings, say: Callable[[str], None]) -> TuneResult:
    """Try levers on a training.

    Args:
        source: ``package.module:name``, or what cloudpickle made of a `Training`.
        settings: How.
        say: Takes lines of progress.

    Raises:
        TuneError: The training fails as it is, or takes the whole budget.
    """
    levers = find_levers(settings.levers)
    with tempfile.TemporaryDirectory(prefix="lightning-perf-tune-") as folder:
        return _Campaign(source, settings, levers, folder, say).run()


class _Campaign:
    def __init__(
        self,
        source: str | bytes,
        settings: TuneSettings,
        levers: tuple[Lever, ...],
        folder: str,
        say: Callable[[str], None],
    ) -> None:
        self._source, self._settings, self._folder, self._say = source, settings, folder, say
        self._levers = levers
        self._began_s = time.monotonic()
        self._order = random.Random(settings.seed)
        self._steps = 0
        self._best: Runner | None = None
        self._base_losses: list[float] = []
        self._seed_losses: list[list[float]] = []
        self._longest_s = 0.0
        self._notes: list[str] = []

    def run(self) -> TuneResult:
        try:
            scouted = self._scout()
            baseline_ms, noise = self._baseline()
            trials = [self._try(lever, scouted) for lever in self._in_order(scouted)]
            trials.sort(key=lambda trial: trial.outcome is Outcome.NOT_APPLICABLE)
            kept = self._best.levers if self._best is not None else ()
            combined = self._combined() if kept else None
        finally:
            if self._best is not None:
                self._best.close()
        return TuneResult(
            schema_version=SCHEMA_VERSION,
            tool_version=__version__,
            machine=scouted.machine,
            device=_device_name(scouted.machine.device),
            baseline_ms=baseline_ms,
            noise=noise,
            trials=tuple(trials),
            kept=kept,
            combined=combined,
            lines=tuple(line for name in kept for line in find_lever(name).lines),
            seconds=time.monotonic() - self._began_s,
            budget_s=self._settings.minutes * 60,
            notes=tuple(self._notes),
        )

    def _scout(self) -> Scouted:
        self._say("Looking at the training, and profiling a few steps …")
        process = TrialProcess(self._order_for((), None, 0, scout=True))
        try:
            scouted = process.scouted(self._time_left_s())
        except TrialError as error:
            raise TuneError(f"the training fails as it is: {error}") from error
        finally:
            process.close()
        if scouted.note:
            self._notes.append(f"Nothing is predicted: {scouted.note}.")
        return scouted

    def _baseline(self) -> tuple[float, Estimate]:
        """The training as it is, against itself by another seed: the noise of times and of losses."""
        self._say("Measuring the training as it is, against itself …")
        try:
            self._best = Runner(self._order_for((), None, 0), self._time_left_s)
            self._steps = self._best.steps_for(self._settings.window_s)
            with self._runner((), None, seed=1) as twin:
                noise, times = self._measure(self._best, twin, by_sample=False, give_up=False)
                self._seed_losses.append(twin.losses)
            with self._runner((), None, seed=2) as third:
                third.window(max(1, self._settings.rounds * self._steps))
                self._seed_losses.append(third.losses)
        except TrialError as error:
            raise TuneError(f"the training fails as it is: {error}") from error
        self._base_losses = list(self._best.losses)
        median_ms = sorted(times)[len(times) // 2] * 1e3
        self._say(f"  a step takes {median_ms:.3g} ms; against itself {_words(noise)}")
        return median_ms, noise

    def _in_order(self, scouted: Scouted) -> list[Lever]:
        """Those with a prediction first, the most to win before others."""

        def saving(lever: Lever) -> float:
            found = _prediction(lever, scouted)
            return found.low + found.high if found else 0.0

        # Another training comes last: it is measured on top of all that is kept.
        return sorted(self._levers, key=lambda lever: (lever.changes_training, -saving(lever)))

    def _try(self, lever: Lever, scouted: Scouted) -> Trial:
        found = _prediction(lever, scouted)
        predicted = (1 - found.high, 1 - found.low) if found else None

        def trial(outcome: Outcome, reason: str | None = None, measured: Estimate | None = None) -> Trial:
            words = reason or (_words(measured) if measured else "")
            if outcome is not Outcome.NOT_APPLICABLE:
                self._say(f"{lever.name}: {outcome.value}{f', {words}' if words else ''}")
            return Trial(lever.name, outcome, reason, predicted, measured, lever.lines)

        if (missing := scouted.missing.get(lever.name)) is not None:
            return trial(Outcome.NOT_APPLICABLE, missing)
        # The last measurement, of all levers together, needs about as long as a trial.
        if self._time_left_s() < 2 * self._longest_s:
            return trial(Outcome.NOT_TRIED, "the budget is spent")
        assert self._best is not None
        others = tuple(name for name in self._best.levers if find_lever(name).family != lever.family)
        began = time.monotonic()
        candidate: Runner | None = None
        kept = False
        try:
            candidate = Runner(self._order_for((*others, lever.name), lever.name, 0), self._time_left_s)
            measured, _ = self._measure(self._best, candidate, by_sample=lever.changes_training, give_up=True)
            if lever.changes_training:
                return trial(Outcome.MEASURED, None, measured)
            harm = self._harm(candidate)
            if harm is not None:
                return trial(Outcome.REJECTED, harm, measured)
            kept = measured.high is not None and measured.high < 1
            slower = measured.low is not None and measured.low > 1
            outcome = Outcome.KEPT if kept else Outcome.SLOWER if slower else Outcome.NO_GAIN
            return trial(outcome, None, measured)
        except TrialError as error:
            return trial(Outcome.FAILED, str(error))
        finally:
            self._longest_s = max(self._longest_s, min(time.monotonic() - began, 2 * self._usual_trial_s()))
            if candidate is not None and kept:
                self._best.close()
                self._best = candidate
            elif candidate is not None:
                candidate.close()

    def _combined(self) -> Estimate | None:
        assert self._best is not None
        self._say("Measuring what is kept, all together, against the training as it was …")
        try:
            with self._runner((), None, seed=0) as base:
                ratio, _ = self._measure(base, self._best, by_sample=False, give_up=False)
        except TrialError as error:
            self._notes.append(f"The kept levers were not measured together: {error}.")
            return None
        self._say(f"  {_words(ratio)}")
        return ratio

    def _measure(
        self, base: Runner, candidate: Runner, *, by_sample: bool, give_up: bool
    ) -> tuple[Estimate, list[float]]:
        """Windows of both in turns, in random order; the ratio of times with its interval, and the base's times."""
        candidate.window(max(1, self._steps // 2))
        base.window(max(1, self._steps // 2))
        times: dict[Runner, list[float]] = {base: [], candidate: []}
        for number in range(1, self._settings.rounds + 1):
            for runner in self._order.sample([base, candidate], 2):
                times[runner].append(runner.time_a_sample_s(self._steps, by_sample=by_sample))
            ratio = paired_ratio(times[base], times[candidate])
            if give_up and number >= GIVE_UP_AFTER and ratio.low is not None and ratio.low > 1:
                break
        return ratio, times[base]

    def _harm(self, candidate: Runner) -> str | None:
        count = min(len(losses) for losses in (self._base_losses, candidate.losses, *self._seed_losses))
        if count == 0:
            return None  # a training that returns no loss
        base = loss_of(self._base_losses, count)
        seeds = [base, *(loss_of(losses, count) for losses in self._seed_losses)]
        return moved(loss_of(candidate.losses, count), base, seeds)

    @contextmanager
    def _runner(self, levers: tuple[str, ...], trying: str | None, *, seed: int) -> Iterator[Runner]:
        runner = Runner(self._order_for(levers, trying, seed), self._time_left_s)
        try:
            yield runner
        finally:
            runner.close()

    def _order_for(self, levers: tuple[str, ...], trying: str | None, seed: int, *, scout: bool = False) -> Order:
        return Order(self._source, levers, trying, self._settings.seed + seed, scout, self._folder)

    def _usual_trial_s(self) -> float:
        return 30.0 + 2 * self._settings.rounds * self._settings.window_s

    def _time_left_s(self) -> float:
        return self._settings.minutes * 60 - (time.monotonic() - self._began_s)


def _prediction(lever: Lever, scouted: Scouted) -> Prediction | None:
    fitting = [prediction for prediction in scouted.predictions if prediction.kind in lever.mends]
    return max(fitting, key=lambda prediction: prediction.high, default=None)


def _words(ratio: Estimate) -> str:
    if ratio.value is None:
        return "not measured"
    spread = (
        f" ({100 * (ratio.low - 1):+.1f} to {100 * (ratio.high - 1):+.1f} %)"
        if ratio.low is not None and ratio.high is not None
        else ""
    )
    return f"{100 * (ratio.value - 1):+.1f} % time{spread}"


def _device_name(kind: str) -> str:
    if kind == "cuda":
        import torch

        return torch.cuda.get_device_name()
    return cpu_name() or kind
