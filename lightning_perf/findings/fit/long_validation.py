"""The rule for validation that takes a large part of the fit."""

from __future__ import annotations

from lightning_perf.analysis.steps.fit_time import FitTime
from lightning_perf.findings.finding import Finding
from lightning_perf.findings.fit.fit_finding import fit_finding, is_worth_it, of_fit, times
from lightning_perf.units import format_count, format_duration, format_share

__all__ = ["long_validation"]

LEAST_SHARE = 0.10
"""Share of the fit from which validation is worth a look."""

WAITING_SHARE = 0.5
"""From this share of fetches on, the validation loader is the reason."""


def long_validation(fit: FitTime) -> Finding | None:
    """Find fits with a large part of validation.

    Model: validating half as often, or on half the batches, saves half of it.
    """
    validation = fit.group("validation")
    runs = fit.validations
    if not runs or validation.share < LEAST_SHARE:
        return None
    saved_ns = validation.time_ns * ((runs // 2) / runs if runs > 1 else 0.5)
    if not is_worth_it(saved_ns, fit):
        return None
    batches = validation.part("compute").count / runs
    fetch_ns = validation.part("fetch").time_ns
    parts = ", ".join(
        f"{format_share(part.time_ns / validation.time_ns)} {part.name}" for part in validation.parts if part.time_ns
    )
    evidence = [
        (
            f"{times(runs, 'validation run')} of {format_count(round(batches))} batches take "
            f"{format_duration(validation.time_ns / runs)} each: {parts}."
        ),
        f"The training steps take {of_fit(fit.group('training steps').time_ns, fit)}.",
    ]
    action = _less_often(fit, runs)
    if fetch_ns >= WAITING_SHARE * validation.time_ns:
        evidence.append("Validation mostly waits for its batches.")
        action = f"Load the validation set in worker processes: DataLoader(…, num_workers=4). {action}"
    return fit_finding(
        "long-validation",
        f"Long validation: it takes {of_fit(validation.time_ns, fit)}",
        evidence,
        action,
        saving_ns=(0.8 * saved_ns, saved_ns),
        fit=fit,
        model="Half of the validation goes away, or nearly so.",
    )


def _less_often(fit: FitTime, runs: int) -> str:
    facts = fit.facts
    if runs < 2:
        return "Validate on a part of the set: Trainer(limit_val_batches=0.5)."
    interval, every = facts.val_check_interval, facts.check_val_every_n_epoch
    if interval is not None and interval > 1:
        setting = f"val_check_interval={2 * round(interval)}"
    elif interval is not None and interval <= 0.5:
        setting = f"val_check_interval={2 * interval:g}"
    else:
        setting = f"check_val_every_n_epoch={2 * (every or 1)}"
    return f"Validate less often: Trainer({setting}), or on a part of the set: Trainer(limit_val_batches=0.5)."
