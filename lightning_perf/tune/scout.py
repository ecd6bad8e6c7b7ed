"""A short profiled fit: what its findings predict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lightning_perf.tune.messages import Prediction

__all__ = ["profile"]

SKIPPED_STEPS = 5
WARM_UP_STEPS = 2


def profile(fit: Callable[..., None], folder: str, steps: int) -> tuple[tuple[Prediction, ...], str | None]:
    """Profile a few steps.

    Args:
        fit: Trains; takes the Trainer's arguments.
        folder: Where the trace goes.
        steps: Steps to record.

    Returns:
        The findings' predicted savings as shares of the step, and why there are none, or None.
    """
    from lightning_perf.callbacks.perf import PerfCallback
    from lightning_perf.errors import TraceError
    from lightning_perf.report.build import analyze

    callback = PerfCallback(
        skip_first=SKIPPED_STEPS, warmup=WARM_UP_STEPS, active=steps, repeat=1, dirpath=folder, print_report=False
    )
    fit(callbacks=[callback], max_steps=SKIPPED_STEPS + WARM_UP_STEPS + steps + 1)
    traces = sorted(Path(folder).rglob("*.pt.trace.json.gz"))
    if not traces:
        return (), "the profile of the training holds no steps"
    try:
        report = analyze(traces[0].parent)
    except TraceError as error:
        return (), f"the profile of the training cannot be read: {error}"
    lead = None if report.lead is None else report.ranks[report.lead].breakdown
    if lead is None or not lead.wall.mean_ns:
        return (), "the profile of the training holds no steps"
    return tuple(
        Prediction(finding.kind, finding.saving_low_ms / finding.step_ms, finding.saving_high_ms / finding.step_ms)
        for finding in report.findings
        if finding.saving_low_ms is not None and finding.saving_high_ms is not None and finding.step_ms
    ), None
