"""What the always-on timer measured."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from lightning_perf.analysis.step_times import StepTimes
from lightning_perf.report.console.summary import table
from lightning_perf.report.labels import count_of
from lightning_perf.units import format_duration, format_rate, format_share

__all__ = ["step_times_section"]

NOTABLE_CHANGE = 0.05


def step_times_section(times: StepTimes) -> RenderableType:
    """Percentiles of the step time, the wait for data, throughput, and what changed over the run."""
    grid = table("", "mean", "p50", "p90", "p99")
    grid.add_row("step", *(format_duration(t) for t in (times.mean_ns, times.p50_ns, times.p90_ns, times.p99_ns)))
    grid.add_row("data wait", format_duration(times.data_wait_mean_ns), "", format_duration(times.data_wait_p90_ns), "")
    if times.device_mean_ns is not None:
        grid.add_row("device", format_duration(times.device_mean_ns), "", "", "")
    facts = [f"{count_of(times.steps, 'step')}", f"{format_share(times.data_wait_share)} waiting for data"]
    if times.samples_per_second is not None:
        facts.append(format_rate(times.samples_per_second, "samples"))
    left_out = [f"{times.warmup_steps} to warm up"] if times.warmup_steps else []
    left_out += [f"{times.profiled_steps} profiled"] if times.profiled_steps else []
    if left_out:
        facts.append(f"left out: {', '.join(left_out)}")
    lines = [Text(" · ".join(facts))]
    if times.only_profiled:
        said = "Every step after the warm-up was profiled: these times include the profiler's own cost."
        lines.append(Text(said, style="yellow"))
    for change, what in (
        (times.drift, "The last quarter of the run was {} than the first."),
        (times.after_profiling, "Steps after the profiled ones were {} than those before."),
    ):
        if change is not None and abs(change) >= NOTABLE_CHANGE:
            amount = f"{format_share(abs(change))} {'slower' if change > 0 else 'faster'}"
            lines.append(Text(what.format(amount), style="yellow"))
    if times.outlier_steps:
        longest = times.outliers[0]
        lines.append(
            Text(
                f"{count_of(times.outlier_steps, 'step')} stood out, {format_duration(times.outlier_excess_ns)} over "
                f"the median together; the longest was step {longest.step} with {format_duration(longest.step_ns)}."
            )
        )
    return Group(grid, *lines)
