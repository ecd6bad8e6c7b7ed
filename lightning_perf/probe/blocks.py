"""The blocks of a probe: the effect of each change, and the longest operators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lightning_perf.run_files.probe import Probe, ProbedCall, ProbedChange
from lightning_perf.show.blocks import Block, Cell, Line, Table, TableRow, table
from lightning_perf.units import format_duration, format_share

CHANGE_NAMES = {
    "bf16": "bf16-mixed",
    "channels-last": "channels last",
    "fused-optimizer": "fused optimizer",
    "batch": "twice the batch",
}


def probe_blocks(probe: Probe, top: int) -> Iterator[Block]:
    """Yield the blocks of a probe, with the longest operators."""
    covered = probe.covered_ns / probe.operator_ns if probe.operator_ns else 0.0
    yield Line(
        f"On {probe.device}: the measured operators take {format_share(covered)} of the operators' time, in a step of "
        f"{format_duration(probe.step_ns)}."
    )
    if not probe.same_device:
        yield Line("The recording was made on another device. The figures are the answer for this machine.", "warning")
    changes = sorted(probe.changes, key=lambda change: -change.saving_ns)
    rows = (_change_row(change, probe.step_ns or 1.0) for change in changes)
    yield table(("change", "saves per step", "share", "measured"), rows, kinds="name figure figure share")
    if not changes:
        yield Line("No other setting could be measured.", "warning")
    if probe.launch_ns is not None:
        yield Line(f"Launching a kernel takes {format_duration(probe.launch_ns)} on this machine.")
    if probe.compile_s is not None:
        yield Line(f"Compiling the operators took {format_duration(1e9 * probe.compile_s)}.")
    if probe.calls:
        yield Line()
        yield _calls_table(probe.calls[:top], [change.name for change in probe.changes])
    for name, reason in list(probe.skipped.items())[:3]:
        yield Line(f"Not measured: {name}: {reason}", "quiet")


def _change_row(change: ProbedChange, step_ns: float) -> TableRow:
    low, high = sorted((change.low_ns, change.high_ns))
    return (
        change.setting,
        Cell(f"{format_duration(low)} to {format_duration(high)}", change.saving_ns),
        Cell(f"{format_share(low / step_ns)} to {format_share(high / step_ns)}", change.saving_ns / step_ns),
        change.measured_ns / step_ns,
    )


def _calls_table(calls: Sequence[ProbedCall], changes: Sequence[str]) -> Table:
    names = [name for name in changes if any(name in call.changed_ns for call in calls)]
    return table(
        ("operator", "calls", "recorded per step", "one call now", *(CHANGE_NAMES.get(name, name) for name in names)),
        (
            (
                call.name,
                Cell(f"{call.calls:g}", call.calls),
                call.recorded_ns,
                call.current_ns,
                *(call.changed_ns.get(n) for n in names),
            )
            for call in calls
        ),
        kinds="name figure duration duration" + " duration" * len(names),
    )
