"""Rules about the step log of a run: steps that take longer at regular distances, or longer and longer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.steps.fit_time import FitPart, FitTime, StepGrowth
from lightning_perf.analysis.steps.step_times import PeriodicSteps, StepTimes
from lightning_perf.findings.conditions import is_busy
from lightning_perf.findings.finding import MIN_SHARE, SKIPPED_WORK, Finding, Problem, SavingRange, log_rule
from lightning_perf.findings.fit import slow_hooks
from lightning_perf.findings.savings import RECORD_STACKS, loader_of
from lightning_perf.run_files.fit.account import Group
from lightning_perf.trace.description import DataLoading
from lightning_perf.units import counted, format_count, format_duration, format_share

EXPLAINED = 0.5
"""Share of the extra time from which one kind of work is its cause."""


@log_rule("periodic-steps")
def periodic_steps(run: StepTimes, lead: RankAnalysis | None, fit: FitTime | None) -> Problem | None:
    """Find steps at regular distances that take longer, and the work that takes their time."""
    periodic = run.periodic
    if periodic is None:
        return None
    extra_ns, period = periodic.step_ns - periodic.others_ns, periodic.period
    reason = _long_step_reason(periodic, lead, fit)
    return Problem(
        f"Periodic steps: every {_ordinal(period)} step takes {format_duration(extra_ns)} longer{reason.suffix}",
        (
            (
                f"{format_count(periodic.steps)} steps at this distance take {format_duration(periodic.step_ns)}, the "
                f"others {format_duration(periodic.others_ns)}. That is "
                f"{format_share(periodic.per_step_ns / run.mean_ns)} of the mean step."
            ),
            *reason.evidence,
        ),
        reason.action,
        SavingRange((periodic.per_step_ns / 2, periodic.per_step_ns), "Half to all of the extra time goes away.")
        if reason.suffix
        else SavingRange((0.0, periodic.per_step_ns), "Nothing if the training needs this work, at most all of it."),
        changes=reason.changes,
        part=reason.part,
    )


class _Reason(NamedTuple):
    """Why some steps are long: the end of the title, and fields of a `Problem`."""

    suffix: str
    evidence: tuple[str, ...]
    action: str
    changes: str = ""
    part: str = ""


def _long_step_reason(periodic: PeriodicSteps, lead: RankAnalysis | None, fit: FitTime | None) -> _Reason:
    """Return the reason of long steps, by the work in them."""
    period = periodic.period
    loop = lead.metadata.loop if lead is not None else None
    if periodic.waits:
        return _Reason(" to get its batch", (_waits_text(periodic, lead),), _fix_of_waits(periodic, lead))
    if loop is not None and loop.log_every_n_steps == period and _may_log(periodic, loop.loggers, fit):
        loggers = " and ".join(loop.loggers)
        text = f"log_every_n_steps is {period}: Lightning calls {loggers or 'its loggers'} in these steps."
        action = (
            f"Log less often: Trainer(log_every_n_steps={10 * period}), or let the logger write in a background thread."
        )
        return _Reason(f", when {loggers} logs" if loggers else "", (text,), action, part="logging" if loggers else "")
    found = _part_of_long_steps(periodic, lead, fit)
    if found is not None:
        group, part = found
        text = f"In the whole fit, {part.name} takes {format_duration(part.time_ns)} in {counted(part.count, 'call')}."
        action = f"Make {part.name} cheaper, run it less often, or in a background thread."
        owner = part.name if group == "callbacks" else group
        return _Reason(f" for {part.name}", (text,), action, SKIPPED_WORK, owner)
    known: tuple[str, ...]
    if lead is not None and period == loader_of(lead).batches_per_epoch:
        text = "The period is the number of batches in an epoch: it starts or ends with these steps."
        action = "Look for work at the start and end of epochs: in hooks of your LightningModule, and in the loader."
        return _Reason("", (text,), action)
    if fit is not None:
        place = "in training_step"
        known = ("Waits for data, callbacks, loggers and checkpoints do not take that time.",)
    else:
        place, known = "e.g. in a callback", ()
    action = f"Find the code that runs every {period} steps, {place}, and run it less often if you can. {RECORD_STACKS}"
    return _Reason("", known, action, SKIPPED_WORK)


def _may_log(periodic: PeriodicSteps, loggers: Sequence[str], fit: FitTime | None) -> bool:
    """Return whether loggers have the time of the long steps, as far as that is known."""
    if fit is None:
        return True
    return bool(loggers) and fit.group("logging").time_ns >= EXPLAINED * _extra_ns(periodic, fit)


def _extra_ns(periodic: PeriodicSteps, fit: FitTime) -> float:
    """Return the extra time of all long steps of the fit."""
    return (periodic.step_ns - periodic.others_ns) * fit.steps / periodic.period


def _waits_text(periodic: PeriodicSteps, lead: RankAnalysis | None) -> str:
    waited = f"{format_duration(periodic.wait_ns)} of it is the wait for their batch"
    facts = loader_of(lead) if lead is not None else DataLoading()
    slow = lead.worker.slow if lead is not None and lead.worker is not None else None
    if facts.workers and periodic.period == facts.workers and slow is not None:
        return f"{waited}. The period is num_workers={facts.workers}: the batches of worker process {slow} come late."
    if facts.workers and periodic.period == facts.workers:
        return (
            f"{waited}. The period is num_workers={facts.workers}: worker processes deliver their batches together, "
            "and then all of them load the next ones."
        )
    if periodic.period == facts.batches_per_epoch:
        return f"{waited}. The period is the number of batches in an epoch: each epoch starts with it."
    return f"{waited}."


def _fix_of_waits(periodic: PeriodicSteps, lead: RankAnalysis | None) -> str:
    facts = loader_of(lead) if lead is not None else DataLoading()
    if periodic.period == facts.batches_per_epoch:
        if facts.workers and not facts.persistent_workers:
            return "Keep the workers alive between epochs: DataLoader(…, persistent_workers=True)."
        return "Look for work at the start of an epoch: in __iter__ of the data set, in the sampler, and in hooks."
    if facts.workers:
        return "Use more worker processes, or a larger prefetch_factor: lightning-perf data PKG:NAME shows how many."
    return (
        f"Look for work of the data set in every {_ordinal(periodic.period)} batch, such as opening the next file, and "
        "load in a worker process: DataLoader(…, num_workers=1, persistent_workers=True)."
    )


MOST_WAITS = 0.5
"""Share of all waits for data from which those of the first steps of epochs are their reason."""


def one_per_cause(
    findings: Sequence[Finding], run: StepTimes, lead: RankAnalysis | None, fit_findings: Sequence[Finding]
) -> list[Finding]:
    """Leave out findings about time that another finding explains: restarts of workers, or waits for data."""
    periodic = run.periodic
    if periodic is None or not periodic.waits:
        return list(findings)
    facts = loader_of(lead) if lead is not None else DataLoading()
    starts_epochs = periodic.period == facts.batches_per_epoch
    most = (periodic.wait_ns or 0) / periodic.period >= MOST_WAITS * run.data_wait_mean_ns
    if starts_epochs and any(finding.kind == "worker-restarts" for finding in fit_findings):
        same = ("input-bound",) if most else ()
        return [finding for finding in findings if finding.kind not in ("periodic-steps", *same)]
    named = any(finding.kind == "periodic-steps" for finding in findings)
    if named and most and (starts_epochs or not facts.workers):  # advice on the usual batch would save little
        return [finding for finding in findings if finding.kind != "input-bound"]
    if all(finding.kind != "input-bound" for finding in findings):
        return list(findings)
    extra = format_duration(periodic.step_ns - periodic.others_ns)
    waits = f"Every {_ordinal(periodic.period)} step takes {extra} longer, and {_waits_text(periodic, lead)}"
    return [
        replace(finding, evidence=(*finding.evidence, waits)) if finding.kind == "input-bound" else finding
        for finding in findings
        if finding.kind != "periodic-steps"
    ]


PAUSED_BY_COLLECTIONS = frozenset({"cpu-pauses", "growing-steps", "periodic-steps"})
"""Rules about long steps that full garbage collections can cause."""

SAME_TIME = 0.8
"""Share of a finding's time that garbage collections take if they are its cause."""


def without_collections(
    findings: Sequence[Finding], fit: FitTime | None, fit_findings: Sequence[Finding]
) -> list[Finding]:
    """Leave out findings about long steps if the pauses of the garbage collector explain them."""
    pauses = next((finding for finding in fit_findings if finding.kind == "gc-pauses"), None)
    if pauses is None or fit is None or not fit.steps:
        return list(findings)
    per_step_ms = (pauses.saving_high_ms or 0.0) / fit.steps
    return [
        finding
        for finding in findings
        if finding.kind not in PAUSED_BY_COLLECTIONS or per_step_ms < SAME_TIME * (finding.saving_high_ms or 0.0)
    ]


def without_parts_of_fit(
    findings: Sequence[Finding], fit: FitTime | None, fit_findings: Sequence[Finding]
) -> list[Finding]:
    """Leave out pauses and long steps of a hook, a logger or checkpoints if a finding about the fit has their time.

    Long steps in a hook stay: their distance says how often the hook works.
    """
    if fit is None or not fit.steps:
        return list(findings)
    kinds = {finding.kind for finding in fit_findings}
    return [
        finding
        for finding in findings
        if (part_ns := _part_of_fit_ns(finding, fit, kinds)) is None
        or part_ns / fit.steps < SAME_TIME * 1e6 * (finding.saving_high_ms or 0.0)
    ]


def _part_of_fit_ns(finding: Finding, fit: FitTime, kinds: Collection[str]) -> int | None:
    """Return the time in the fit of the hook, logger or checkpoints that this and another finding name, or None."""
    for group, rule in OF_GROUPS.items():
        if finding.part == group and rule in kinds:
            return fit.group(group).time_ns
    if finding.kind == "cpu-pauses" and "slow-callback" in kinds:
        return next((hook.time_ns for hook in slow_hooks(fit) if hook.name == finding.part), None)
    return None


OF_GROUPS: Mapping[Group, str] = {"logging": "slow-logger", "checkpoints": "slow-checkpoints"}
"""Groups of the account that a finding may name as a whole, each with the rule about it."""


def _part_of_long_steps(
    periodic: PeriodicSteps, lead: RankAnalysis | None, fit: FitTime | None
) -> tuple[str, FitPart] | None:
    """Return the hook, logger or checkpoint with the time of the long steps, after its group; None if none has it.

    A hook of each step may take the same time in all of them. The recorded steps, which are mostly short ones, tell: it
    counts with its time beyond theirs.
    """
    if fit is None:
        return None
    extra_ns = _extra_ns(periodic, fit)
    calls = fit.steps / periodic.period
    found = [
        (group, part)
        for group, part in _around_steps(fit)
        if EXPLAINED * extra_ns <= part.time_ns - (0.0 if part.count <= 1.5 * calls else _even_ns(part, lead))
        and part.count >= calls / 2
    ]
    return max(found, key=lambda pair: pair[1].time_ns, default=None)


def _around_steps(fit: FitTime) -> Iterator[tuple[Group, FitPart]]:
    """Yield hooks, calls of loggers, and parts of checkpoints, each with its group."""
    for group in AROUND_STEPS:
        for part in fit.group(group).parts:
            yield group, replace(part, name=f"{part.name} of checkpoints") if group == "checkpoints" else part


AROUND_STEPS: tuple[Group, ...] = ("callbacks", "logging", "checkpoints")


def _even_ns(part: FitPart, lead: RankAnalysis | None) -> float:
    """Return the time of a hook over the fit if all of its calls were as long as the recorded ones."""
    loop = lead.metadata.loop if lead is not None else None
    if loop is None or loop.hooks is None or not loop.steps:
        return float(part.time_ns)
    recorded_ns = next((hook.time_ns for hook in loop.hooks if hook.name == part.name), 0)
    return part.count * recorded_ns / loop.steps


def _ordinal(number: int) -> str:
    """Return a number as an ordinal.

    Example:
        >>> [_ordinal(number) for number in (2, 3, 10, 11, 21, 50)]
        ['2nd', '3rd', '10th', '11th', '21st', '50th']
    """
    last = 0 if 10 <= number % 100 < 20 else number % 10
    ending = {1: "st", 2: "nd", 3: "rd"}.get(last, "th")
    return f"{number}{ending}"


GROWING_PLACES = {
    "fetch": (
        "in the fetch of batches",
        "Look in the data set, the sampler and collate_fn for a list or cache that grows and is searched each time.",
    ),
    "transfer": ("in the move of batches", "Look in on_before_batch_transfer and on_after_batch_transfer."),
    "forward": (
        "in training_step",
        (
            "Look in training_step for work on all past steps, such as a metric that is computed in each step. Compute "
            'it once per epoch: self.log("name", self.metric, on_step=False, on_epoch=True).'
        ),
    ),
    "backward": (
        "in the backward",
        "The graph grows: detach values that you keep for the next step, e.g. self.hidden = hidden.detach().",
    ),
    "optimizer": (
        "in the optimizer's part",
        "Look in configure_optimizers and optimizer_step for parameter groups or hooks that are added again and again.",
    ),
}
"""The phase with most of the growth: its name in a title, and the fix."""


TRUNCATED = "gradients no longer flow into the steps before"


@log_rule("growing-steps")
def growing_steps(run: StepTimes, lead: RankAnalysis | None, fit: FitTime | None) -> Problem | None:
    """Find steps that take longer and longer, and the phase or hook that grows.

    On a busy machine the load may grow, and it slows all phases down alike. Only an account of the fit shows that.
    """
    growth = run.growth
    if growth is None or growth.excess_ns < MIN_SHARE * run.mean_ns:
        return None
    place, evidence, action = _place_of_growth(growth, fit)
    may_be_load = not place if fit is not None else is_busy(lead.metadata.processor if lead is not None else None)
    if may_be_load:
        return None
    return Problem(
        f"Growing steps: they take {format_share(growth.growth)} longer at the end of the run than at its start{place}",
        (
            (
                f"The step time grows from {format_duration(growth.first_ns)} to {format_duration(growth.last_ns)}, by "
                f"{format_duration(growth.slope_ns)} per step (95 % CI {format_duration(growth.slope_low_ns)} to "
                f"{format_duration(growth.slope_high_ns)}), in every quarter of the run."
            ),
            *evidence,
        ),
        action,
        SavingRange(
            (growth.excess_ns / 2, growth.excess_ns),
            "Steps stay as short as the first ones, or half the growth stays.",
        ),
        changes=TRUNCATED if "detach" in action else "",
        severity="high",
    )


def _place_of_growth(growth: StepGrowth, fit: FitTime | None) -> tuple[str, tuple[str, ...], str]:
    """Return the end of the title, the evidence and the fix, by the place with most of the growth."""
    halves, waits = _halves_ns(fit), growth.wait_share >= EXPLAINED
    name = "fetch" if waits else max(halves, key=lambda name: halves[name][1] - halves[name][0], default="")
    early_ns, later_ns = halves.get(name, (0.0, 0.0))
    rest_ns = tuple(sum(ns[half] for other, ns in halves.items() if other != name) for half in (0, 1))
    # A machine that slows down lengthens all phases alike.
    alike = rest_ns[1] * early_ns - rest_ns[0] * early_ns > EXPLAINED * (later_ns - early_ns) * rest_ns[0]
    if waits and not alike:
        place, action = GROWING_PLACES["fetch"]
        return f", {place}", (f"Waits for data have {format_share(growth.wait_share)} of the growth.",), action
    if later_ns - early_ns < EXPLAINED * (growth.last_ns - growth.first_ns) / 2 or alike or not name:
        return "", (), "Find the values of all past steps that each step works on again, e.g. a list or a metric."
    text = (
        f"It takes {format_duration(later_ns)} per step in the second half of the run, {format_duration(early_ns)} in "
        "the first."
    )
    if name in GROWING_PLACES:
        place, action = GROWING_PLACES[name]
        return f", {place}", (text,), action
    return f", in {name}", (text,), f"Look in {name} for values of all past steps that each call works on again."


def _halves_ns(fit: FitTime | None) -> dict[str, tuple[float, float]]:
    """Return the time per step of phases and hooks in the first half of the fit, and after it."""
    if fit is None or not fit.steps:
        return {}
    phases = [part for part in fit.group("training steps").parts if part.name in GROWING_PLACES]
    return {
        part.name: (part.early_ns * part.count / fit.steps, part.later_ns * part.count / fit.steps)
        for part in (*phases, *(part for _, part in _around_steps(fit)))
        if part.early_ns is not None and part.later_ns is not None
    }
