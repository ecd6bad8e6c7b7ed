"""Learning-rate schedules that run ahead of the weights, because steps are skipped."""

from __future__ import annotations

from lightning_perf.run_files.numerics.precision import LossScaleHistory, PrecisionMistake

LEAST_STEPS = 3
LEAST_SHARE = 0.02
"""A few skipped steps at the start are normal. From both of these on, the schedule is reported."""


def schedule_ahead(history: LossScaleHistory, precision_line: str) -> PrecisionMistake | None:
    """Check how many steps the schedulers made while the optimizer's step was skipped.

    Args:
        precision_line: The callback with the first loss scale that skips nothing, as a line of code.
    """
    ahead = history.scheduler_steps_on_skips
    if ahead < LEAST_STEPS or ahead < LEAST_SHARE * history.attempts:
        return None
    first = next((event.step for event in history.events if event.kind == "overflow"), 0)
    return PrecisionMistake(
        "scheduler-on-skips",
        "moderate",
        f"The learning-rate schedule is {ahead} steps ahead of the weights",
        (
            (
                f"{history.skipped_steps} of {history.attempts} optimizer steps were skipped, and Lightning still "
                "stepped the schedulers."
            ),
        ),
        f"Avoid the skips: {precision_line}, or precision='bf16-mixed'. Or step the scheduler only after executed "
        "steps: set a flag in optimizer.register_step_post_hook and read it in lr_scheduler_step.",
        step=first,
    )
