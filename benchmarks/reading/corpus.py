"""Print the report of each real trace, and check whether its figures agree with independent readings.

    python -m benchmarks.reading.corpus /path/to/corpus

The corpus is a folder with ``traces/`` and a ``reference.json``. Differences are printed in nanoseconds; only those in
`EXPECTED` are expected. If the corpus has the recording of eight ranks (docs/corpus.md), the output also shows which
rank waits for which. The script writes ``benchmarks/results/corpus.md``. It exits with 1 if it found an unexpected
difference.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import lightning_perf
from benchmarks.options import make_parser, markdown_table, write_page
from lightning_perf.analysis.steps.breakdown import breakdown
from lightning_perf.trace.columns import DeviceKind
from lightning_perf.units import format_duration

RESULTS = Path(__file__).parents[1] / "results" / "corpus.md"
EXPECTED = {
    "rank-70.Mar_25_20_48_12.2861.pt.trace.409ef99.json.gz": (
        "without step marks the recording begins at its first operator or device work; the reference begins at the "
        "first operator, which here comes after the only kernel"
    ),
    "eager_trace.e443f32.json.gz": (
        "`multimem_all_reduce_kernel` is communication here; the reference knows NCCL's names only (its time is in "
        "compute there)"
    ),
}
RANKS = Path("param", "dlrm_kineto")
COPIES = ("h2d", "d2h", "d2d", "p2p", "copy", "memcpy")


def differences(path: Path, row: dict[str, Any]) -> list[str]:
    """Each figure of a trace that differs from the reference, in words."""
    trace = lightning_perf.read_trace(path)
    steps, base = trace.steps, trace.metadata.base_time_ns
    complete = np.flatnonzero(steps.complete)
    found = []
    windows = [[str(steps.number[i]), int(steps.start_ns[i]) - base, int(steps.end_ns[i]) - base] for i in complete]
    exact = row["exact"]
    if windows != exact["step_windows_ns"]:
        found.append(f"windows {windows[:2]} for {exact['step_windows_ns'][:2]}")
    ours: dict[str, list[int]] = {"Kernel": [], "Memcpy": [], "Memset": [], "Total": []}
    rows = {category.name: category.per_step_ns for category in breakdown(trace).categories}
    kernel = [rows.get(name) for name in ("device_compute", "communication")]
    ours["Kernel"] = _sum(kernel, len(complete))
    ours["Memcpy"] = _sum([rows.get(name) for name in rows if name in COPIES], len(complete))
    ours["Memset"] = _sum([rows.get("memset")], len(complete))
    ours["Total"] = (steps.end_ns - steps.start_ns)[complete].tolist()
    for name, values in ours.items():
        theirs = [int(step[name]) for step in exact["per_step_ns"]]
        if values != theirs:
            found.append(f"{name} {sum(values) - sum(theirs):+,d} ns")
    found += _set_differences(trace, row["device_sets_ns"])
    return found


def _sum(columns: list[Any], steps: int) -> list[int]:
    """Per-step sums over the categories that the trace has."""
    present = [column for column in columns if column is not None]
    return [int(sum(column[step] for column in present)) for step in range(steps)]


def _set_differences(trace: Any, sets: dict[str, int] | None) -> list[str]:
    if not sets:
        return []
    kernels = trace.device.kind <= DeviceKind.COLLECTIVE
    ours = {
        "kernels": int(kernels.sum()),
        "comm_kernels": int((trace.device.kind == DeviceKind.COLLECTIVE).sum()),
        "kernel_time_sum_ns": int(trace.device.duration_ns[kernels].sum()),
        "comm_ns": _covered_ns(trace, np.flatnonzero(trace.device.kind == DeviceKind.COLLECTIVE)),
        "compute_ns": _covered_ns(trace, np.flatnonzero(trace.device.kind == DeviceKind.COMPUTE)),
    }
    return [f"{name} {value - sets[name]:+,d}" for name, value in ours.items() if value != sets[name]]


def _covered_ns(trace: Any, rows: Any) -> int:
    """The length of a union of intervals, one interval at a time."""
    covered, reached = 0, None
    for start, end in zip(trace.device.start_ns[rows].tolist(), trace.device.end_ns[rows].tolist(), strict=True):
        begin = start if reached is None else max(start, reached)
        covered += max(end - begin, 0)
        reached = end if reached is None else max(reached, end)
    return covered


def ranks_table(folder: Path) -> list[str]:
    """The ranks of one recorded run side by side, in Markdown; nothing where the corpus lacks it."""
    if not folder.is_dir():
        print(f"no {folder}: see docs/corpus.md")
        return []
    report = lightning_perf.analyze(folder)
    compared = report.distributed
    if compared is None:
        return []
    rows = [
        (f"{share.rank}", *map(format_duration, times), f"{share.last_arrivals}")
        for share in compared.ranks
        for times in [(share.step_ns, share.work_ns, share.wait_ns, share.awaited_ns, share.late_ns)]
    ]
    return [
        "",
        f"## Ranks of {'/'.join(RANKS.parts)}",
        "",
        " ".join(report.who_waits),
        "",
        markdown_table(
            ("rank", "step", "own work", "waits", "others wait for it", "began late", "arrived last"), rows, 7
        ),
    ]


def main() -> int:
    """Print and write the table."""
    parser = make_parser(__doc__, RESULTS)
    parser.add_argument("corpus", type=Path)
    options = parser.parse_args()
    traces: Path = options.corpus / "traces"
    rows, unexpected = [], 0
    for row in json.loads((traces / "reference.json").read_text()):
        path = traces / row["file"]
        begin = time.process_time()
        report = lightning_perf.analyze(path)
        took = time.process_time() - begin
        found = differences(path, row)
        agreement = "to the ns"
        if found:
            why = EXPECTED.get(path.name)
            unexpected += why is None
            agreement = "; ".join(found) + (f": {why}" if why else " **unexpected**")
        finding = report.findings[0].kind if report.findings else "none"
        cells = (row["file"], report.verdict.where, finding, agreement, f"{took:.2f}")
        rows.append([cell.replace("|", "\\|") for cell in cells])
        print(*rows[-1], sep=" | ", flush=True)
    lines = [
        "# Real traces",
        "",
        (
            f"lightning_perf {lightning_perf.__version__}, written by `python -m benchmarks.reading.corpus`. Agreement "
            "is with the exact rows (step windows, kernels = compute + communication, copies, memsets, total) and the "
            "device sets of the corpus's `reference.json`, to the nanosecond."
        ),
        "",
        markdown_table(("file", "verdict", "top finding", "agreement", "CPU s"), rows, 1),
        *ranks_table(traces / RANKS),
    ]
    write_page(options.results, "\n".join(lines) + "\n")
    print(f"{unexpected} unexpected differences")
    return int(unexpected > 0)


if __name__ == "__main__":
    sys.exit(main())
