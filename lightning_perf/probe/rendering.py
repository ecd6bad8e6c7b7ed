"""Shows a probe on the console: the effect of each change, and the longest operators."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from lightning_perf.run_files.probe import Probe, ProbedCall, ProbedChange
from lightning_perf.units import format_duration, format_share

__all__ = ["probe_parts"]

CHANGE_NAMES = {
    "bf16": "bf16-mixed",
    "channels-last": "channels last",
    "fused-optimizer": "fused optimizer",
    "batch": "twice the batch",
}


def probe_parts(probe: Probe, top: int) -> Iterator[RenderableType]:
    """Yield the parts of a probe's text.

    Args:
        probe: The probe.
        top: Most operators to show.
    """
    covered = probe.covered_ns / probe.operator_ns if probe.operator_ns else 0.0
    yield Text(
        f"On {probe.device}: the measured operators take {format_share(covered)} of the operators' time, in a step of "
        f"{format_duration(probe.step_ns)}."
    )
    if not probe.same_device:
        yield Text("The recording was made on another device. The figures are the answer for this machine.", "yellow")
    if probe.changes:
        table = Table(box=None, pad_edge=False)
        table.add_column("change")
        table.add_column("saves per step", justify="right")
        table.add_column("share", justify="right")
        table.add_column("measured", justify="right")
        for change in sorted(probe.changes, key=lambda change: -change.saving_ns):
            table.add_row(*_change_row(change, probe))
        yield table
    else:
        yield Text("No other setting could be measured.", "yellow")
    if probe.launch_ns is not None:
        yield Text(f"Launching a kernel takes {format_duration(probe.launch_ns)} on this machine.")
    if probe.compile_s is not None:
        yield Text(f"Compiling the operators took {format_duration(1e9 * probe.compile_s)}.")
    if probe.calls:
        yield Text()
        yield _calls_table(probe.calls[:top], [change.name for change in probe.changes])
    for name, reason in list(probe.skipped.items())[:3]:
        yield Text(f"Not measured: {name}: {reason}", "dim")


def _change_row(change: ProbedChange, probe: Probe) -> tuple[str, str, str, str]:
    low, high = sorted((change.low_ns, change.high_ns))
    step = probe.step_ns or 1.0
    times = f"{_signed(low)} to {_signed(high)}"
    shares = f"{format_share_signed(low / step)} to {format_share_signed(high / step)}"
    return change.setting, times, shares, format_share(change.measured_ns / step)


def _signed(ns: float) -> str:
    return f"-{format_duration(-ns)}" if ns < 0 else format_duration(ns)


def format_share_signed(share: float) -> str:
    """Format a share that may be negative."""
    return f"-{format_share(-share)}" if share < 0 else format_share(share)


def _calls_table(calls: tuple[ProbedCall, ...], changes: list[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    names = [name for name in changes if any(name in call.changed_ns for call in calls)]
    for heading in ("operator", "calls", "recorded per step", "one call now"):
        table.add_column(heading, justify="left" if heading == "operator" else "right")
    for name in names:
        table.add_column(CHANGE_NAMES.get(name, name), justify="right")
    for call in calls:
        changed = [format_duration(call.changed_ns[name]) if name in call.changed_ns else "–" for name in names]
        table.add_row(
            call.name, f"{call.calls:g}", format_duration(call.recorded_ns), format_duration(call.current_ns), *changed
        )
    return table
