"""Damaged recordings end in a report or a `TraceError`: seeded mutations of a sound one."""

import io
import json
import random
from pathlib import Path
from typing import Any

import pytest

import lightning_perf
from lightning_perf import TraceError
from lightning_perf.report.document import PerfReport
from tests.findings.recordings import reducing, training

NAMES = ("ProfilerStep#3", "ncclAllReduce", "cudaLaunchKernel", "\x1b[31m", "Optimizer.step#Adam.step", "[memory]")
CATEGORIES = ("kernel", "cpu_op", "cuda_runtime", "gpu_memcpy", "gpu_memset", "user_annotation", "python_function")
ARGUMENTS: tuple[dict[str, Any], ...] = (
    {},
    {"correlation": 1},
    {"Input Dims": "x", "Input type": [["a"]]},
    {"Bytes": 10, "Addr": 1, "Device Id": 0, "Device Type": 1},
    {"stream": 0, "device": 9, "correlation": 2, "grid": [0, 0, 0], "block": [1, 2, 3]},
)


def mutate(events: list[dict[str, Any]], rng: random.Random) -> list[dict[str, Any]]:
    events = [dict(event) for event in rng.sample(events, rng.randrange(1, len(events)))]
    for _ in range(rng.randrange(15)):
        event = rng.choice(events)
        change: dict[str, Any] = rng.choice(
            [
                {"ts": rng.choice([0, -5, 1e18, "x", None])},
                {"dur": rng.choice([0, -1, 1e15, None, 1])},
                {"name": rng.choice(NAMES)},
                {"cat": rng.choice(CATEGORIES)},
                {"args": rng.choice(ARGUMENTS)},
                {"tid": rng.choice([1, "stream 7", None, -1])},
            ]
        )
        events.append({**event, **change})
        if rng.random() < 0.5:
            events.remove(event)
    return events


@pytest.mark.parametrize("seed", range(80))
def test_a_report_or_a_trace_error(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    document = rng.choice([training(fetch_us=900), reducing(250)]).document()
    path = tmp_path / "rank0.pt.trace.json"
    path.write_text(json.dumps({**document, "traceEvents": mutate(document["traceEvents"], rng)}))
    try:
        report = lightning_perf.analyze(path)
    except TraceError:
        return
    assert PerfReport.from_json(report.to_json()) == report
    report.print(file=io.StringIO(), width=80)
    for analysis in report.ranks:
        rows = [row.per_step_ns for row in analysis.breakdown.categories if row.parent is None and row.per_step_ns]
        for number, step in enumerate(analysis.breakdown.steps):
            assert sum(row[number] for row in rows) == step.wall_ns
