"""The rule for trainings on a processor that pause: Python, sleeping or I/O outside operators."""

from __future__ import annotations

from lightning_perf.analysis.host.pauses import PhasePause
from lightning_perf.analysis.host.user_code import function_text
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.contention import is_busy
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import RECORD_STACKS, share_of_step, step_ns
from lightning_perf.units import format_duration

__all__ = ["cpu_pauses"]

MIN_SHARE = 0.05
"""Share of the step from which the pauses of a phase are reported."""

PLACES = {
    "transfer": "while a batch is moved",
    "forward": "in forward",
    "backward": "in backward",
    "optimizer": "in the optimizer step",
    "validation": "in validation",
    "checkpoint": "while a checkpoint is saved",
    "other": "between batches",
}
"""Where the training thread is. Pauses while a batch is fetched belong to `input-bound`."""

HOOKS = {
    "transfer": ("transfer_batch_to_device", "on_before_batch_transfer", "on_after_batch_transfer"),
    "forward": ("training_step",),
    "backward": ("backward", "on_before_backward", "on_after_backward"),
    "optimizer": ("optimizer_step", "on_before_optimizer_step", "on_before_zero_grad", "configure_gradient_clipping"),
}
"""Hooks that run in a phase. Other hooks run between batches."""

NAMED_SHARE = 0.5
"""Share of a pause from which a hook is its cause."""

WITH_RANKS = ("transfer", "forward", "validation", "checkpoint")
"""Phases that are judged in runs of several ranks. In the others a rank may wait for another one."""


def cpu_pauses(analysis: RankAnalysis) -> Finding | None:
    """Find long stretches of the step in which the training thread runs no operators.

    The median recorded step decides. On a busy machine the step with the shortest pauses decides, since the training
    thread may lose its core in some steps. Model: half to all of the pauses go away.
    """
    found = _longest(analysis)
    if found is None:
        return None
    pause, time_ns = found
    cause, evidence = _cause(analysis, pause, time_ns)
    place = PLACES["optimizer" if pause.phase == "other" and "optimizer_step" in cause else pause.phase]
    named = f", in {cause}" if cause else ""
    return finding(
        "cpu-pauses",
        f"Pauses: {format_duration(time_ns)} per step outside operators {place}{named}",
        (
            (
                f"The training thread runs no operator for {share_of_step(time_ns, analysis)} of the step, in "
                "stretches of at least 1 ms. Python code, sleeping and I/O look like this."
            ),
            *evidence,
        ),
        _action(analysis, pause, cause),
        saving_ns=(time_ns / 2, time_ns),
        step_ns=step_ns(analysis),
        model="Half to all of the pauses go away.",
        rank=analysis.rank,
    )


def _longest(analysis: RankAnalysis) -> tuple[PhasePause, float] | None:
    """Return the phase with the longest pauses and their time per step, if it is worth reporting."""
    if analysis.host_compute is None or analysis.pauses is None or not analysis.breakdown.marked:
        return None
    if analysis.phases.source != "own":
        return None
    busy = is_busy(analysis.metadata.processor)
    alone = (analysis.metadata.world_size or 1) <= 1
    times = [
        (pause, float(pause.least_ns if busy else pause.median_ns))
        for pause in analysis.pauses.phases
        if pause.phase in PLACES and (alone or pause.phase in WITH_RANKS)
    ]
    if not times:
        return None
    pause, time_ns = max(times, key=lambda pair: pair[1])
    return (pause, time_ns) if time_ns >= MIN_SHARE * step_ns(analysis) > 0 else None


def _cause(analysis: RankAnalysis, pause: PhasePause, time_ns: float) -> tuple[str, list[str]]:
    """Return the code that pauses, as far as the recording names it, and the evidence for it."""
    if pause.function is not None:
        return function_text(pause.function), []
    loop = analysis.metadata.loop
    if loop is None or loop.hooks is None or not loop.steps:
        return "", []
    inside = HOOKS.get(pause.phase)
    # `optimizer_step` also runs around the optimizer and its closure, outside of any phase.
    elsewhere = {hook for hooks in HOOKS.values() for hook in hooks} - {"optimizer_step"}
    hooks = [
        hook
        for hook in loop.hooks
        if (hook.name.split(".")[-1] in inside if inside else hook.name.split(".")[-1] not in elsewhere)
    ]
    slowest = max(hooks, key=lambda hook: hook.time_ns, default=None)
    if slowest is not None and slowest.time_ns / loop.steps >= NAMED_SHARE * time_ns:
        return slowest.name, [f"{slowest.name} takes {format_duration(slowest.time_ns / loop.steps)} per step."]
    if pause.phase == "other" and loop.loggers and loop.log_every_n_steps == 1:
        spent_ns = sum(hook.time_ns for hook in hooks) / loop.steps
        loggers = " and ".join(loop.loggers)
        text = f"Hooks of callbacks take {format_duration(spent_ns)} of it. Lightning calls {loggers} in the rest."
        return f"the logger {loggers}" if len(loop.loggers) == 1 else f"the loggers {loggers}", [text]
    return "", []


def _place(pause: PhasePause) -> str:
    """Return the operators around a pause as the end of a sentence; empty if the recording shows none."""
    after = f"after {pause.after}" if pause.after is not None else ""
    before = f"before {pause.before}" if pause.before is not None else ""
    place = " and ".join(part for part in (after, before) if part)
    return f": most of the time is {place}" if place else ""


def _action(analysis: RankAnalysis, pause: PhasePause, cause: str) -> str:
    hooks, place = HOOKS.get(pause.phase), _place(pause)
    if cause.startswith("the logger"):
        return "Log less often: Trainer(log_every_n_steps=50), or let the logger write in a background thread."
    if cause:
        advice = f"Move slow work out of {cause}: into the dataset, into a thread, or to every n-th batch."
    elif hooks is None:
        advice = f"Look at on_train_batch_start and on_train_batch_end of your callbacks and at your loggers{place}."
    else:
        advice = f"Look at {' and '.join(hooks[:2])} of your LightningModule and callbacks{place}."
    return advice if pause.function or analysis.metadata.with_stack else f"{advice} {RECORD_STACKS}"
