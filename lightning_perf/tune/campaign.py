"""The order of a tuning: scout, baseline with its noise, then lever by lever on top of the best, within the budget."""

from __future__ import annotations

import math
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path

from msgspec.structs import replace

from lightning_perf import __version__
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
from lightning_perf.tune.pairs import Pair, Pairs, least_pair_s, start_worker
from lightning_perf.tune.patches.patch import Patch, find_patch
from lightning_perf.tune.patches.project_copy import run_in_copy
from lightning_perf.tune.progress import Progress
from lightning_perf.tune.result import (
    BEFORE_INTERRUPT,
    NO_TIME,
    OVER_SHARE,
    SCHEMA_VERSION,
    SPENT,
    Losses,
    Outcome,
    Trial,
    TuneResult,
    describe_ratio,
    is_open,
)
from lightning_perf.tune.resume import check_machine, code_of, command_of, installed_versions
from lightning_perf.tune.settings import CONFIRMING_PAIRS, RESERVE_FACTOR, Budget, TuneSettings
from lightning_perf.units import describe_left, format_milliseconds
from lightning_perf.workers.script import Script

CHECK_SHARE = 0.08
"""Time for the check of a patch in a copy of the project, also if the budget is spent, as a share of it."""

NOT_CHECKED = "The budget left no time to check all places of the patch in a copy of the project: give more minutes."

CERTAIN_LOSS = 0.10
"""A lever with a probed loss of at least this share of the step, at both ends of its range, is not tried."""

LEAST_PAIRS = 3
"""Pairs of any tuning: two of the unchanged training, and one of a lever."""

NAMED_PREDICTIONS, LEAST_PREDICTION = 3, 0.01
"""The most predictions that progress names, and the least share of the step that they have to save."""


def run_campaign(
    source: TrainingSource,
    settings: TuneSettings,
    on_progress: Callable[[str], None],
    *,
    earlier: TuneResult | None = None,
    save: Callable[[TuneResult], None] = lambda _: None,
) -> TuneResult:
    """Try levers on a training.

    Args:
        earlier: The result of an unfinished tuning to resume.
        save: Called with the result so far after each lever.

    Raises:
        TuneError: The training does not exist, fails without any lever, or takes the whole budget.
        KeyboardInterrupt: Before any lever was measured. Later, the result holds the measurements so far.
    """
    budget = Budget(settings.minutes)
    with (
        tempfile.TemporaryDirectory(prefix="lightning-perf-tune-", ignore_cleanup_errors=True) as folder,
        Progress(on_progress, budget.left_s) as progress,
    ):
        return _Campaign(source, settings, folder, budget, progress, earlier, save).run()


class _Campaign:
    def __init__(
        self,
        source: TrainingSource,
        settings: TuneSettings,
        folder: str,
        budget: Budget,
        progress: Progress,
        earlier: TuneResult | None,
        save: Callable[[TuneResult], None],
    ) -> None:
        self._source, self._settings, self._folder = source, settings, folder
        self._levers = find_levers(settings.levers)
        self._budget, self._progress = budget, progress
        self._earlier, self._save = earlier, save
        self._name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:8]}"
        self._code = code_of(source)
        self._pairs = Pairs(self._order_for, settings, budget, progress)
        self._notes = self._pairs.notes
        self._kept: tuple[str, ...] = () if earlier is None else earlier.kept
        self._trials: list[Trial] = []
        self._noise: tuple[Estimate, ...] = ()
        self._guard = LossGuard(())
        self._interrupted = False
        self._alone: Pair | None = None
        self._losses: Losses | None = None
        if earlier is not None:
            self._name = earlier.tuning
            applicable = (trial for trial in earlier.trials if trial.outcome is not Outcome.NOT_APPLICABLE)
            self._trials = [trial for trial in applicable if not is_open(trial)]
            decided = ", ".join(trial.lever for trial in self._trials) or "no lever"
            self._notes.append(f"The tuning was resumed. Before that, it had decided on {decided}.")
            progress.say(f"Resuming after {decided}.")

    def run(self) -> TuneResult:
        try:
            try:
                scouted = self._scout()
                if self._earlier is not None:
                    check_machine(self._earlier.machine, scouted.machine)
                sites = {site.path for found in scouted.sites.values() for site in found if isinstance(site, Site)}
                sources = {path: Path(path).read_bytes() for path in sorted(sites.union(scouted.files))}
                levers = self._in_order(scouted)
                self._say_predictions(levers, scouted)
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
            result = partial(self._result, scouted, sources, baseline)
            self._try_all(levers, scouted, lambda: self._save(result(None, interrupted=True)))
        except KeyboardInterrupt:
            self._progress.say("Interrupted before a lever was measured, so there is no result.")
            raise
        finally:
            self._pairs.close()
        combined = self._combined() if self._kept else None
        if self._interrupted:
            self._notes.append("The tuning was interrupted before its end.")
        return result(combined, interrupted=self._interrupted)

    def _result(
        self,
        scouted: Scouted,
        sources: dict[str, bytes],
        baseline: Pair,
        combined: Estimate | None,
        *,
        interrupted: bool,
    ) -> TuneResult:
        settings = {lever.name: scouted.settings[lever.name] for lever in LEVERS if lever.name in self._kept}
        patch = self._patch(settings, scouted, sources, check=not interrupted)
        trials = [_with_successor(trial, self._kept) for trial in self._trials]
        before_s = 0.0 if self._earlier is None else self._earlier.seconds
        return TuneResult(
            schema_version=SCHEMA_VERSION,
            tool_version=__version__,
            machine=scouted.machine,
            baseline_ms=baseline.base_s * 1e3,
            noise=baseline.ratio,
            trials=tuple(sorted(trials, key=lambda trial: trial.outcome is Outcome.NOT_APPLICABLE)),
            kept=self._kept,
            combined=combined,
            confirmed=combined is not None and is_gain(combined, baseline.ratio),
            lines=tuple(str(setting) for each in settings.values() for setting in each),
            window_steps=self._pairs.steps,
            rounds=self._pairs.rounds,
            seconds=before_s + self._budget.spent_s(),
            budget_s=before_s + self._budget.total_s,
            interrupted=interrupted or self._interrupted,
            notes=tuple(self._notes),
            network=scouted.network,
            losses=self._losses,
            versions=installed_versions(),
            command=command_of(self._source, self._settings),
            code=self._code,
            places=patch.places,
            diff=patch.diff,
            tuning=self._name,
        )

    def _patch(
        self, settings: dict[str, tuple[Setting, ...]], scouted: Scouted, sources: dict[str, bytes], *, check: bool
    ) -> Patch:
        """Make the patch; `check` where it is uncertain, by a process in a copy of the project."""
        if not isinstance(self._source, Script):
            return Patch("", ())
        until_s = time.monotonic() + max(self._budget.left_s(), CHECK_SHARE * self._budget.total_s)

        def run(texts: Mapping[str, bytes]) -> Arguments | None:
            if not check or self._interrupted:
                return None
            self._progress.doing("checking the patch in a copy of the project")
            try:
                with trial_errors():
                    return run_in_copy(self._order_for((), 0), texts, max(0.0, until_s - time.monotonic()))
            except OutOfTimeError:
                if NOT_CHECKED not in self._notes:
                    self._notes.append(NOT_CHECKED)
            except KeyboardInterrupt:
                self._interrupted = True
                self._notes.append("The check of the patch in a copy of the project was interrupted.")
            except (TrialError, OSError):
                pass
            return None

        return find_patch(settings, scouted, sources, self._source.root, run)

    def _scout(self) -> Scouted:
        self._progress.say("Looking at the training, and profiling a few steps …", "profiling a few steps")
        order = self._order_for((), 0, scout=True)
        try:
            with trial_errors(), start_worker(order) as worker:
                scouted = worker.receive(Scouted, timeout_s=self._budget.left_s())
        except OutOfTimeError as error:
            hint = ", and check that the script trains" if isinstance(self._source, Script) else ""
            raise TuneError(
                f"the first steps take longer than the {self._settings.minutes:g} minutes of the "
                f"budget: give more{hint}"
            ) from error
        profile = scouted.profile
        if profile.step_ms is not None:
            self._progress.say(f"  a step takes about {format_milliseconds(profile.step_ms)} in the first steps")
            self._check_budget(profile.step_ms / 1e3)
        if scouted.refused:
            self._notes.append(
                f"{scouted.refused} exists, so LightningCLI stops your script before it trains, with the patch or "
                "without. Delete this file before each run, or give LightningCLI "
                'save_config_kwargs={"overwrite": True}.'
            )
        if profile.note:
            self._notes.append(f"Nothing is predicted: {profile.note}.")
        return scouted

    def _check_budget(self, step_s: float) -> None:
        """Raise an error if the budget has no time for a single lever after the unchanged training."""
        pair_s = RESERVE_FACTOR * least_pair_s(self._settings, step_s)
        if LEAST_PAIRS * pair_s <= self._budget.left_s():
            return
        total_s = self._budget.spent_s() + (LEAST_PAIRS + CONFIRMING_PAIRS) * pair_s
        raise TuneError(
            f"a step takes {format_milliseconds(1e3 * step_s)}, so {self._settings.minutes:g} minutes do not suffice "
            f"to measure any lever: give at least --minutes {math.ceil(total_s / 60)}, or make the steps shorter, e.g. "
            "by a smaller batch"
        )

    def _say_predictions(self, levers: Sequence[Lever], scouted: Scouted) -> None:
        """Name the families with the largest predicted savings, each by the lever that is tried first."""
        named: dict[str, str] = {}
        for lever in levers:
            found = scouted.profile.prediction(lever)
            if scouted.missing[lever.name] is None and found is not None and found.high >= LEAST_PREDICTION:
                named.setdefault(lever.family, f"{lever.name} (up to {100 * found.high:.0f} %)")
        if named:
            self._progress.say(
                f"  predicted to save most of a step: {', '.join([*named.values()][:NAMED_PREDICTIONS])}"
            )

    def _baseline(self) -> Pair:
        """Measure the unchanged training against itself, with other seeds: the noise of times and of losses."""
        self._progress.say("Measuring the unchanged training against itself …", "measuring the unchanged training")
        pairs = [self._pairs.measure((), (), seed=1), self._pairs.measure((), (), seed=2)]
        self._budget.start_s, self._budget.trial_s = pairs[1].start_s, pairs[1].start_s + pairs[1].took_s
        if self._kept:
            self._budget.kept_took(self._budget.trial_s)
        self._noise = tuple(pair.ratio for pair in pairs)
        self._guard = LossGuard(pairs[0].base_losses, *(pair.losses for pair in pairs))
        if (note := self._guard.note()) is not None:
            self._notes.append(note)
        noise = pairs[0]
        self._progress.say(
            f"  a step takes {format_milliseconds(noise.base_s * 1e3)}; against itself {describe_ratio(noise.ratio)}; "
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

        def rank(lever: Lever) -> tuple[bool, bool, float]:
            # Predicted page faults come first: they make processes of one training differ by more than most levers
            # gain. Levers that change the training come last, on top of everything that is kept.
            noisy = lever.family == "memory" and profile.prediction(lever) is not None
            return lever.changes_training, not noisy, -saving(lever)

        return sorted(levers, key=rank)

    def _try_all(self, levers: Sequence[Lever], scouted: Scouted, save: Callable[[], None]) -> None:
        decided = {trial.lever for trial in self._trials}
        levers = [lever for lever in levers if lever.name not in decided]
        self._say_what_fits([lever for lever in levers if scouted.missing[lever.name] is None])
        for lever in levers:
            try:
                self._trials.append(self._try(lever, scouted))
                if self._trials[-1].measured is not None:
                    save()
            except KeyboardInterrupt:  # noqa: PERF203
                if not any(trial.measured for trial in self._trials):
                    raise
                self._progress.say("Interrupted: the result holds the measurements so far.")
                self._interrupted = True
                if self._trials[-1].lever != lever.name:
                    self._trials.append(self._try(lever, scouted))
        spent = sum(trial.reason == SPENT for trial in self._trials)
        if spent and not self._interrupted:
            self._progress.say(f"The budget is spent. Levers that were not tried: {spent}.")

    def _say_what_fits(self, levers: Sequence[Lever]) -> None:
        """Name the levers that the budget has time for, if it does not suffice for all."""
        left_s = self._budget.unreserved_s()
        times_s = [*accumulate(lever.cost * self._budget.trial_s for lever in levers)]
        fitting = sum(time_s <= left_s for time_s in times_s)
        if fitting == len(levers):
            return
        names = ", ".join(lever.name for lever in levers[:fitting])
        fits = f"about {fitting} of {len(levers)} levers: {names}" if fitting else f"none of {len(levers)} levers"
        minutes = math.ceil((self._budget.total_s - left_s + times_s[-1]) / 60)
        note = f"The budget has time for {fits}. All of them need at least {minutes} minutes."
        self._notes.append(note)
        self._progress.say(f"  {note}")

    def _try(self, lever: Lever, scouted: Scouted) -> Trial:
        kept = self._kept
        outcome, reason, measured = self._tried(lever, scouted)
        lines = tuple(map(str, scouted.settings.get(lever.name, ())))
        if outcome is Outcome.NOT_APPLICABLE:
            return Trial(lever.name, outcome, reason, None, None, lines)
        if not self._interrupted and reason != SPENT:
            figure = f", {describe_ratio(measured)}" if measured else f", {reason}"
            self._progress.say(f"{lever.name}: {outcome.value}{figure}; {describe_left(self._budget.left_s())}")
        on_top_of, found = kept if measured is not None else (), scouted.profile.prediction(lever)
        if found is None:
            return Trial(lever.name, outcome, reason, None, measured, lines, on_top_of=on_top_of)
        predicted = 1 - found.high, 1 - found.low
        rule, source = found.kind or None, found.source
        return Trial(lever.name, outcome, reason, predicted, measured, lines, rule, source, on_top_of)

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
            return Outcome.FAILED, OVER_SHARE, None
        except TrialError as error:
            return Outcome.FAILED, str(error), None

    def _reason_not_to_try(self, lever: Lever, scouted: Scouted) -> str | None:
        """Return why a lever is not measured at all.

        A probe measured the operators of the unchanged training. With another lever in effect, a lever with a probed
        loss may be a gain, so it is tried. Memory settings are the exception, because they affect no operator of a
        probe. A lever that was asked for by its name is always tried.
        """
        if self._interrupted:
            return BEFORE_INTERRUPT
        low, high = scouted.profile.probed.get(lever.name, (0.0, 0.0))
        asked_for = lever.name in self._settings.levers
        if high <= -CERTAIN_LOSS and not asked_for and all(find_lever(name).family == "memory" for name in self._kept):
            losses = f"{-100 * high:.0f} to {-100 * low:.0f} %"
            return f"a probe of the recorded operators shows a loss of {losses} of the step"
        return None if self._budget.unreserved_s() >= self._budget.trial_s else SPENT

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
        alone = not self._kept
        if not self._budget.allows_proof(first.start_s + first.took_s, alone=alone):
            return Outcome.NOT_CONFIRMED, NO_TIME
        self._pairs.close()
        measured = [first]
        for number in range(1, CONFIRMING_PAIRS + 1):
            name = f"{tried[-1]}, confirming pair {number} of {CONFIRMING_PAIRS}"
            left_s = self._budget.left_s if alone else self._budget.unreserved_s
            try:
                measured.append(self._pairs.measure(self._kept, tried, fresh=True, left_s=left_s, name=name))
            except OutOfTimeError:
                return Outcome.NOT_CONFIRMED, NO_TIME
        pairs = [pair.ratio for pair in measured]
        if is_confirmed(pairs, self._noise, levers):
            self._alone = measured[-1] if alone else None
            return Outcome.KEPT, None
        seen = ", ".join(describe_ratio(pair, interval=False) for pair in pairs)
        return Outcome.NOT_CONFIRMED, f"processes differ by too much: {seen} in three pairs of processes"

    def _combined(self) -> Estimate | None:
        """Return the ratio of all kept levers together, in fresh processes, to the unchanged training."""
        pair = None
        if not self._interrupted and (self._alone is None or self._budget.unreserved_s() >= 0):
            self._progress.say(
                "Measuring all kept levers together, in fresh processes, against the unchanged training …",
                "measuring all kept levers together",
            )
            try:
                pair = self._pairs.measure((), self._kept, fresh=True, name="all kept levers together")
            except TrialError as error:
                self._notes.append(f"The kept levers were not measured all together: {error}.")
            except KeyboardInterrupt:
                self._interrupted = True
        if pair is None:
            if self._alone is None:
                return None
            pair = self._alone
            self._notes.append(f"The change of {self._kept[0]} is that of its last confirming pair.")
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
    versions = installed_versions()
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
