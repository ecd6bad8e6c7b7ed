"""The order of a tuning: scout, baseline with its noise, then lever by lever on top of the best, within the budget."""

from __future__ import annotations

import math
import shlex
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from lightning_perf import __version__
from lightning_perf.machine.environment import version_facts
from lightning_perf.run_files.estimates import EstimateOutcome
from lightning_perf.statistics.values import Estimate
from lightning_perf.tune.errors import (
    NotApplicableError,
    NoTrainingError,
    OutOfTimeError,
    TrialError,
    TuneError,
    trial_errors,
)
from lightning_perf.tune.levers.lever import Lever, Setting
from lightning_perf.tune.levers.loader import Workers
from lightning_perf.tune.levers.registry import LEVERS, find_lever, find_levers
from lightning_perf.tune.measurement import LossGuard, is_confirmed, is_gain, is_loss, loss_of
from lightning_perf.tune.messages import Arguments, Order, Scouted, Site, TrainingSource
from lightning_perf.tune.pairs import Pair, Pairs, start_worker
from lightning_perf.tune.patch import Patch, find_patch
from lightning_perf.tune.progress import Progress
from lightning_perf.tune.project_copy import run_in_copy
from lightning_perf.tune.result import NO_TIME, SCHEMA_VERSION, Losses, Outcome, Trial, TuneResult, describe_ratio
from lightning_perf.tune.settings import Budget, TuneSettings
from lightning_perf.units import describe_left
from lightning_perf.workers.script import Script

CONFIRMING_PAIRS = 2
"""Pairs of fresh processes that a lever has to pass after its first one, before it is kept."""

LEAST_CHECK_S = 60.0
"""Time for the check of a patch in a copy of the project, also if the budget is spent."""

CERTAIN_LOSS = 0.10
"""A lever with a probed loss of at least this share of the step, at both ends of its range, is not tried."""


def run_campaign(source: TrainingSource, settings: TuneSettings, on_progress: Callable[[str], None]) -> TuneResult:
    """Try levers on a training.

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


class _Campaign:
    def __init__(
        self,
        source: TrainingSource,
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
        self._pairs = Pairs(self._order_for, settings, budget, progress)
        self._notes = self._pairs.notes
        self._kept: tuple[str, ...] = ()
        self._noise: tuple[Estimate, ...] = ()
        self._guard = LossGuard(())
        self._interrupted = False
        self._losses: Losses | None = None

    def run(self) -> TuneResult:
        try:
            try:
                scouted = self._scout()
                sources = _read(scouted)
                baseline = self._baseline()
            except OutOfTimeError as error:
                hint = ", and check that the script calls trainer.fit" if isinstance(self._source, Script) else ""
                raise TuneError(
                    f"the unchanged training takes longer than the {self._settings.minutes:g} minutes of the budget: "
                    f"give more{hint}"
                ) from error
            except NoTrainingError as error:
                raise TuneError(str(error)) from error
            except TrialError as error:
                raise TuneError(f"the unchanged training fails: {error}") from error
            trials = self._try_all(scouted)
        finally:
            self._pairs.close()
        combined = self._combined() if self._kept and not self._interrupted else None
        if self._interrupted:
            self._notes.append("The tuning was interrupted before its end.")
        trials.sort(key=lambda trial: trial.outcome is Outcome.NOT_APPLICABLE)
        patch = self._patch(scouted, sources)
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
            lines=tuple(str(setting) for settings in self._kept_settings(scouted).values() for setting in settings),
            window_steps=self._pairs.steps,
            rounds=self._settings.rounds,
            seconds=self._budget.spent_s(),
            budget_s=self._budget.total_s,
            interrupted=self._interrupted,
            notes=tuple(self._notes),
            network=scouted.network,
            losses=self._losses,
            versions=_versions(),
            command=_command(self._source, self._settings),
            places=patch.places,
            diff=patch.diff,
            tuning=f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:8]}",
        )

    def _kept_settings(self, scouted: Scouted) -> dict[str, tuple[Setting, ...]]:
        return {lever.name: scouted.settings[lever.name] for lever in LEVERS if lever.name in self._kept}

    def _patch(self, scouted: Scouted, sources: dict[str, bytes]) -> Patch:
        if not isinstance(self._source, Script):
            return Patch("", ())
        until_s = time.monotonic() + max(self._budget.left_s(), LEAST_CHECK_S)

        def run(texts: Mapping[str, bytes]) -> Arguments | None:
            left_s = until_s - time.monotonic()
            if self._interrupted or left_s <= 0:
                return None
            self._progress.doing("checking the patch in a copy of the project")
            try:
                with trial_errors():
                    return run_in_copy(self._order_for((), 0), texts, left_s)
            except (TrialError, OSError, KeyboardInterrupt):
                return None

        return find_patch(self._kept_settings(scouted), scouted, sources, self._source.root, run)

    def _scout(self) -> Scouted:
        self._progress.say("Looking at the training, and profiling a few steps …", "profiling a few steps")
        order = self._order_for((), 0, scout=True)
        with trial_errors(), start_worker(order) as worker:
            scouted = worker.receive(Scouted, timeout_s=self._budget.left_s())
        profile = scouted.profile
        if profile.step_ms is not None:
            self._progress.say(f"  a step takes about {profile.step_ms:.3g} ms in the first steps")
        if profile.note:
            self._notes.append(f"Nothing is predicted: {profile.note}.")
        return scouted

    def _baseline(self) -> Pair:
        """Measure the unchanged training against itself, with other seeds: the noise of times and of losses."""
        self._progress.say("Measuring the unchanged training against itself …", "measuring the unchanged training")
        start_s = self._pairs.calibrate()
        pairs = [self._pairs.measure((), (), seed=1), self._pairs.measure((), (), seed=2)]
        self._budget.baseline_took(start_s, pairs[0].start_s + pairs[0].took_s)
        self._noise = tuple(pair.ratio for pair in pairs)
        self._guard = LossGuard(pairs[0].base_losses, *(pair.losses for pair in pairs))
        if (note := self._guard.note()) is not None:
            self._notes.append(note)
        noise = pairs[0]
        self._progress.say(
            f"  a step takes {noise.base_s * 1e3:.3g} ms; against itself {describe_ratio(noise.ratio)}; "
            f"{describe_left(self._budget.left_s())}"
        )
        return noise

    def _in_order(self, scouted: Scouted) -> list[Lever]:
        """Return memory first, then the levers with the largest predicted savings per time of a trial."""
        profile = scouted.profile

        def saving(lever: Lever) -> float:
            found = profile.prediction(lever)
            # A loss is worth trying last: it may turn into a gain on top of another lever.
            return (found.low + found.high) / (lever.cost if profile.probed else 1) if found is not None else 0.0

        def distance(lever: Lever) -> float:
            count = lever.change.count if isinstance(lever.change, Workers) else 1
            return abs(math.log2(count / (profile.workers or 1)))

        # All numbers of workers have the same prediction, so the one that keeps up with the steps is tried first.
        workers = iter(sorted((lever for lever in self._levers if lever.family == "workers"), key=distance))
        levers = [next(workers) if lever.family == "workers" else lever for lever in self._levers]
        # Memory comes first: if glibc returns freed memory to the system, processes of one training differ by more than
        # most levers gain. Levers that change the training come last, on top of everything that is kept.
        return sorted(levers, key=lambda lever: (lever.changes_training, lever.family != "memory", -saving(lever)))

    def _try_all(self, scouted: Scouted) -> list[Trial]:
        trials: list[Trial] = []
        levers = self._in_order(scouted)
        self._say_what_fits([lever for lever in levers if scouted.missing[lever.name] is None])
        for lever in levers:
            try:
                trials.append(self._try(lever, scouted))
            except KeyboardInterrupt:  # noqa: PERF203
                if not any(trial.measured for trial in trials):
                    raise
                self._progress.say("Interrupted: the result holds the measurements so far.")
                self._interrupted = True
                trials.append(self._try(lever, scouted))
        return [_with_successor(trial, self._kept) for trial in trials]

    def _say_what_fits(self, levers: Sequence[Lever]) -> None:
        """Name the levers that the budget has time for, if it does not suffice for all."""
        costs = [lever.cost for lever in levers]
        fitting = self._budget.fitting(costs)
        if fitting == len(levers):
            return
        names = ", ".join(lever.name for lever in levers[:fitting])
        fits = f"about {fitting} of {len(levers)} levers: {names}" if fitting else f"none of {len(levers)} levers"
        minutes = math.ceil(self._budget.minutes_for(costs))
        note = f"The budget has time for {fits}. All of them need at least {minutes} minutes."
        self._notes.append(note)
        self._progress.say(f"  {note}")

    def _try(self, lever: Lever, scouted: Scouted) -> Trial:
        kept = self._kept
        outcome, reason, measured = self._tried(lever, scouted)
        lines = tuple(map(str, scouted.settings.get(lever.name, ())))
        if outcome is Outcome.NOT_APPLICABLE:
            return Trial(lever.name, outcome, reason, None, None, lines)
        if not self._interrupted:
            figure = f", {describe_ratio(measured)}" if measured else f", {reason}"
            self._progress.say(f"{lever.name}: {outcome.value}{figure}; {describe_left(self._budget.left_s())}")
        trial = Trial(
            lever.name, outcome, reason, None, measured, lines, on_top_of=kept if measured is not None else ()
        )
        found = scouted.profile.prediction(lever)
        if found is None:
            return trial
        return replace(trial, predicted=(1 - found.high, 1 - found.low), rule=found.kind or None, source=found.source)

    def _tried(self, lever: Lever, scouted: Scouted) -> tuple[Outcome, str | None, Estimate | None]:
        if (missing := scouted.missing[lever.name]) is not None:
            return Outcome.NOT_APPLICABLE, missing, None
        if (reason := self._reason_not_to_try(lever, scouted)) is not None:
            return Outcome.NOT_TRIED, reason, None
        levers = sum(scouted.missing[one.name] is None and not one.changes_training for one in self._levers)
        try:
            return self._measured(lever, levers)
        except NotApplicableError as error:
            return Outcome.NOT_APPLICABLE, str(error), None
        except OutOfTimeError:
            return Outcome.FAILED, "took longer than its share of the budget", None
        except TrialError as error:
            return Outcome.FAILED, str(error), None

    def _reason_not_to_try(self, lever: Lever, scouted: Scouted) -> str | None:
        """Return why a lever is not measured at all.

        A probe measured the operators of the unchanged training. With another lever in effect, a lever with a probed
        loss may be a gain, so it is tried. Memory settings are the exception, because they affect no operator of a
        probe.
        """
        if self._interrupted:
            return "interrupted before"
        low, high = scouted.profile.probed.get(lever.name, (0.0, 0.0))
        if high <= -CERTAIN_LOSS and all(find_lever(name).family == "memory" for name in self._kept):
            losses = f"{-100 * high:.0f} to {-100 * low:.0f} %"
            return f"a probe of the recorded operators shows a loss of {losses} of the step"
        return None if self._budget.allows_a_trial() else "the budget is spent"

    def _measured(self, lever: Lever, levers: int) -> tuple[Outcome, str | None, Estimate]:
        noise = self._noise[0]
        others = tuple(name for name in self._kept if find_lever(name).family != lever.family)
        tried = (*others, lever.name)
        until_s = time.monotonic() + self._budget.share_s()
        pair = self._pairs.measure(
            self._kept,
            tried,
            left_s=lambda: until_s - time.monotonic(),
            by_sample=lever.changes_training,
            may_give_up=True,
        )
        ratio = pair.ratio
        if lever.changes_training:
            return Outcome.MEASURED, ratio.reason, ratio
        harm = self._guard.harm(pair.losses)
        if harm is None and is_gain(ratio, noise):
            outcome, reason = self._confirm(tried, pair, levers)
            if outcome is Outcome.KEPT:
                self._budget.kept_took(pair.start_s + pair.took_s)
                self._kept = tried
            return outcome, reason, ratio
        if pair.given_up or is_loss(ratio, noise):
            return Outcome.SLOWER, ratio.reason, ratio
        if harm is not None:
            return Outcome.REJECTED, harm, ratio
        return Outcome.NO_GAIN, None, ratio

    def _confirm(self, tried: tuple[str, ...], first: Pair, levers: int) -> tuple[Outcome, str | None]:
        """Measure a lever that looked faster in fresh processes, since two processes of one training differ."""
        if not self._budget.allows_pairs(CONFIRMING_PAIRS, first.start_s + first.took_s):
            return Outcome.NOT_CONFIRMED, NO_TIME
        self._pairs.close()
        pairs = [first.ratio]
        for number in range(1, CONFIRMING_PAIRS + 1):
            name = f"{tried[-1]}, confirming pair {number} of {CONFIRMING_PAIRS}"
            pairs.append(self._pairs.measure(self._kept, tried, fresh=True, name=name).ratio)
        if is_confirmed(pairs, self._noise, levers):
            return Outcome.KEPT, None
        seen = ", ".join(describe_ratio(pair, interval=False) for pair in pairs)
        return Outcome.NOT_CONFIRMED, f"processes differ by too much: {seen} in three pairs of processes"

    def _combined(self) -> Estimate | None:
        self._progress.say(
            "Measuring all kept levers together, in fresh processes, against the unchanged training …",
            "measuring all kept levers together",
        )
        try:
            pair = self._pairs.measure((), self._kept, fresh=True, name="all kept levers together")
        except TrialError as error:
            self._notes.append(f"The kept levers were not measured all together: {error}.")
            return None
        except KeyboardInterrupt:
            self._interrupted = True
            return None
        self._progress.say(f"  {describe_ratio(pair.ratio)}")
        if count := min(map(len, (pair.base_losses, pair.losses))):
            means = [loss_of(losses, count) for losses in (pair.base_losses, pair.losses)]
            self._losses = Losses(count // 2 + 1, count, *means) if all(map(math.isfinite, means)) else None
        return pair.ratio

    def _order_for(self, levers: tuple[str, ...], seed: int, *, scout: bool = False) -> Order:
        source = self._source
        return Order(
            source if isinstance(source, str) else None,
            source if isinstance(source, Script) else None,
            source if isinstance(source, bytes) else None,
            levers,
            self._settings.seed + seed,
            scout,
            self._folder,
        )


def _read(scouted: Scouted) -> dict[str, bytes]:
    """Return the text of the files that may change, as the trials saw it."""
    sites = {site.path for found in scouted.sites.values() for site in found if isinstance(site, Site)}
    return {path: Path(path).read_bytes() for path in sorted(sites.union(scouted.files))}


def _versions() -> dict[str, str]:
    facts = version_facts().items()
    return {name.removeprefix("version."): str(value) for name, value in facts if value is not None}


def _command(source: TrainingSource, settings: TuneSettings) -> str:
    """Return the command that repeats a tuning; empty for a training from Python."""
    if isinstance(source, bytes):
        return ""
    words = [f"--minutes={settings.minutes:g}", f"--rounds={settings.rounds}", f"--window={settings.window_s:g}"]
    levers = [f"--levers={','.join(settings.levers)}"] if settings.levers else []
    training = source.arguments if isinstance(source, Script) else [source]
    return shlex.join(["lightning-perf", "tune", *levers, *words, f"--seed={settings.seed}", *training])


def _with_successor(trial: Trial, kept: tuple[str, ...]) -> Trial:
    """Mark a lever as replaced if a better one of its family was kept later."""
    if trial.outcome is not Outcome.KEPT or trial.lever in kept:
        return trial
    family = find_lever(trial.lever).family
    better = next(name for name in kept if find_lever(name).family == family)
    return replace(trial, outcome=Outcome.REPLACED, reason=f"{better} is faster still")


_OTHER_PRECISION = {("cpu-bf16", "16-mixed")}
"""Rules and levers that address the same loss of time, but the estimate is for another lever of the family."""


def checked_estimates(result: TuneResult) -> tuple[EstimateOutcome, ...]:
    """Return the predictions that a tuning measured.

    If several levers of a family address a finding, e.g. different numbers of workers, the fastest one counts.
    """
    fastest: dict[tuple[str, str], EstimateOutcome] = {}
    versions = _versions()
    for trial in result.trials:
        if trial.rule is None or trial.predicted is None or trial.measured is None or trial.measured.value is None:
            continue
        if (trial.rule, trial.lever) in _OTHER_PRECISION:
            continue
        low, high = sorted(trial.predicted)
        gain = trial.measured.map(lambda ratio: result.baseline_ms * (1 - ratio))
        outcome = EstimateOutcome(
            rule=trial.rule,
            setting=trial.lever,
            step_ms=result.baseline_ms,
            low_ms=result.baseline_ms * (1 - high),
            high_ms=result.baseline_ms * (1 - low),
            source=trial.source or "general",
            gain_ms=gain.value or 0.0,
            gain_low_ms=gain.low,
            gain_high_ms=gain.high,
            method="tune",
            measurement=result.tuning,
            on_top_of=trial.on_top_of,
            network=result.network,
            machine=result.machine.name,
            versions=versions,
            measured_unix_s=time.time(),
        )
        key = trial.rule, find_lever(trial.lever).family
        if key not in fastest or outcome.gain_ms > fastest[key].gain_ms:
            fastest[key] = outcome
    return tuple(fastest.values())
