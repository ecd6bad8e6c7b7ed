"""A report that several tests print."""

from pathlib import Path

import lightning_perf
from lightning_perf.report.compared import Compared
from lightning_perf.report.document import PerfReport
from tests.support.shown import console_text
from tests.support.trace_builder import FETCH, TraceBuilder


def rendered(document: PerfReport | Compared, width: int = 120) -> str:
    """Return a document as its console output."""
    return console_text(document.blocks(), width)


def input_bound_report(folder: Path, name: str) -> PerfReport:
    """Return the report of three steps that wait for input; `name` is that of their operators and kernels."""
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", computeMajor=8)
    for start in builder.steps(3, 1000):
        builder.annotation(FETCH, start, 400)
        builder.op(name, start + 410, 80, types=["float"], dims=[[8, 8]])
        builder.launch(name, call_us=start + 420, call_duration_us=10, start_us=start + 440, duration_us=500)
    return lightning_perf.analyze(builder.write(folder / "rank0.pt.trace.json"))
