"""Every real trace against independent readings: windows, device time and communication, to the nanosecond.

Prints a Markdown table. The traces are those that ``LIGHTNING_PERF_CORPUS`` names (``docs/corpus.md`` says where they
come from); ``reference.json`` there holds the readings.

    LIGHTNING_PERF_CORPUS=… python benchmarks/corpus.py > benchmarks/results/corpus.md
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lightning_perf import __version__
from lightning_perf.analysis.arithmetic import arithmetic
from lightning_perf.analysis.breakdown import Breakdown, breakdown
from lightning_perf.analysis.efficiency import efficiency
from lightning_perf.analysis.intervals import merge
from lightning_perf.trace.columns import Trace
from lightning_perf.trace.reader import read_trace
from lightning_perf.units import format_duration, format_share

EXPLAINED = {
    ("hta/large_integer_trace", "windows"): "no step marks: the reference takes the host's part as the step, we the "
    "whole recording, with the one kernel that runs before the host's only operator",
    ("hta/large_integer_trace", "device"): "the same kernel, outside the reference's window",
    ("hta/amd_trace", "steps"): "the recording ends inside its second step: we list it as cut off and leave it out of "
    "averages, the reference drops it",
    ("tracelens/b200", "communication"): "`multimem_all_reduce_kernel` of PyTorch's symmetric memory is communication "
    "to us; the reference knows NCCL's kernels alone",
}
"""Differences that follow from our definitions, by file and column."""


def main() -> int:
    """Print the table; 1 when a difference is not explained."""
    folder = os.environ.get("LIGHTNING_PERF_CORPUS")
    if not folder:
        print("set LIGHTNING_PERF_CORPUS to the folder that holds traces/", file=sys.stderr)
        return 2
    traces = Path(folder) / "traces"
    rows, notes, failures = [], [], 0
    for reference in json.loads((traces / "reference.json").read_text()):
        file = reference["file"]
        trace = read_trace(traces / file)
        value = breakdown(trace)
        checks = compare(trace, value, reference)
        cells = []
        for column, agrees in checks.items():
            reason = next((r for (start, c), r in EXPLAINED.items() if file.startswith(start) and c == column), None)
            if agrees is not False:
                cells.append("–" if agrees is None else "equal")
            elif reason:
                notes.append(f"`{file}`, {column}: {reason}.")
                cells.append(f"differs [{len(notes)}]")
            else:
                failures += 1
                cells.append("**DIFFERS**")
        rows.append([f"`{'/'.join(Path(file).parts[:2])}`", *cells, *verdict(trace, value)])
    header = ["trace", "steps", "windows", "device", "memcpy", "memset", "sum", "communication"]
    header += ["mean step", "largest category", "compute", "arithmetic", "on Tensor Cores", "MFU"]
    print(f"# Real traces against independent readings\n\nlightning_perf {__version__}, {len(rows)} recordings.\n")
    print(table([header, *rows]))
    print(
        "\n*device*: device compute + communication of every step equals the exact sweep's Kernel; *memcpy*, *memset* "
        "likewise; *sum*: the categories of every step sum to its wall time; *communication*: busy time of collectives "
        "by kernel name. All to the nanosecond.\n"
    )
    print("\n".join(f"{n}. {note}" for n, note in enumerate(notes, 1)))
    return 1 if failures else 0


def compare(trace: Trace, value: Breakdown, reference: dict[str, Any]) -> dict[str, bool | None]:
    """Which rows agree, by column; ``None`` where the reference has none."""
    base, known = trace.metadata.base_time_ns, reference["exact"]["step_windows_ns"]
    expected = reference["exact"]["per_step_ns"]
    windows = [
        (start - base, end - base)
        for start, end in zip(trace.steps.start_ns.tolist(), trace.steps.end_ns.tolist(), strict=True)
    ]
    ours = [
        {row.name: row.per_step_ns[i] if row.per_step_ns else 0 for row in value.categories if row.parent is None}
        for i in range(len(value.steps))
    ]
    sets = reference["device_sets_ns"]
    collectives = merge(
        trace.device.start_ns[trace.device.is_collective], trace.device.end_ns[trace.device.is_collective]
    )
    pairs = list(zip(ours, expected, strict=False))
    return {
        "steps": len(windows) == len(known),
        "windows": windows[: len(known)] == [(start, end) for _, start, end in known],
        "device": all(a["device_compute"] + a["communication"] == b["Kernel"] for a, b in pairs),
        "memcpy": all(a["memcpy"] == b["Memcpy"] for a, b in pairs),
        "memset": all(a["memset"] == b["Memset"] for a, b in pairs),
        "sum": all(sum(a.values()) == step.wall_ns for a, step in zip(ours, value.steps, strict=True)),
        "communication": collectives.length_ns == sets["comm_ns"] if sets else None,
    }


def verdict(trace: Trace, value: Breakdown) -> list[str]:
    """What the analyses say of the recording, in a few cells."""
    largest = max((r for r in value.categories if r.parent is None and r.mean_ns), key=lambda r: r.mean_ns or 0.0)
    numbers, use = arithmetic(trace), efficiency(trace)
    main_row = max(numbers.rows, key=lambda r: r.time_ns)
    return [
        format_duration(value.wall.mean_ns),
        f"{largest.name} {format_share(largest.share)}",
        format_share(value.category("device_compute").share),
        f"{main_row.name} {format_share(main_row.share)}" if numbers.compute_ns else "–",
        format_share(numbers.tensor_core_share),
        format_share(use.mfu),
    ]


def table(rows: Iterable[list[str]]) -> str:
    """A Markdown table; the first row is the header."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * lines[0].count(" | ") + "---|", *lines[1:]])


if __name__ == "__main__":
    sys.exit(main())
