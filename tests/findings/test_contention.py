"""Recordings of busy and oversubscribed machines: hand-made traces with known facts of the processor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lightning_perf
from lightning_perf.findings.contention import contention
from lightning_perf.report.document import PerfReport
from lightning_perf.trace.description import LOADER_KEY, PROCESSOR_KEY, Processor
from tests.findings.host_recordings import convolving
from tests.findings.test_whole_run import FETCH, printed
from tests.support.trace_builder import TraceBuilder

QUIET = Processor(cores=2, threads=2, cpus=2, machine_cpus=2, load=2.0, core_wait=0.01, trains=True)


BUSY = "The machine was busy during the recording: "
LOADED = f"{BUSY}a load of 6.2 on 2 processors, and torch uses 2 threads."


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, ""),
        ({"load": 2.9}, ""),
        ({"load": 6.2}, LOADED),
        ({"load": 6.2, "cpus": None, "machine_cpus": None, "core_wait": None}, LOADED),
        ({"load": 6.2, "machine_cpus": 64}, ""),  # the rest of a large machine may be at work
        (
            {"load": 60.0, "machine_cpus": 64, "core_wait": 0.4},
            f"{BUSY}the training thread waited for a core for 40.0 % of the time.",
        ),
        ({"threads": 16}, "Oversubscribed: torch computes on 16 threads, and the process may use 2 processors."),
        ({"threads": 8, "cpus": None, "cores": 4}, ""),  # perhaps eight threads of four cores
        ({"load": None, "core_wait": None}, ""),
    ],
    ids=str,
)
def test_what_contends(changes: dict[str, Any], sentence: str) -> None:
    assert contention(replace(QUIET, **changes)) == sentence


def test_nothing_is_known_of_recordings_by_others() -> None:
    assert contention(None) == ""
    assert contention(Processor()) == ""


def report(path: Path, *, fetch: bool = False, top: dict[str, Any] | None = None, **facts: Any) -> PerfReport:
    """A training on two cores that bf16 and channels last would speed up."""
    known = {"name": "A CPU", "cores": 2, "threads": 2, "cpus": 2, "machine_cpus": 2, "trains": True, "load": 2.0}
    builder = convolving(TraceBuilder(**{PROCESSOR_KEY: {**known, "bf16": ["avx512_bf16"], **facts}, **(top or {})}))
    if fetch:
        for step in range(3):
            builder.annotation(FETCH, step * 10_000 + 100, 4000)
    return lightning_perf.analyze(builder.write(path / "trace.json"))


def test_estimates_of_a_busy_machine_are_held_back_and_that_is_said_first(tmp_path: Path) -> None:
    # Measured: on 2 threads under load bf16 was to save 6 to 43 % and made the training 36 % slower.
    quiet = report(tmp_path)
    assert {"cpu-bf16", "cpu-channels-last"} <= {finding.kind for finding in quiet.findings}
    assert not quiet.held_back
    busy = report(tmp_path, load=6.2)
    assert not busy.findings
    assert {held.finding.kind for held in busy.held_back} == {finding.kind for finding in quiet.findings}
    assert busy.verdict.where.startswith("The machine was busy during the recording: a load of 6.2 on 2 processors")
    assert "Record again on a quiet machine, or with fewer threads: torch.set_num_threads(1)." in busy.verdict.next
    assert "Estimated saving" not in printed(busy)


def test_oversubscribed_cores(tmp_path: Path) -> None:
    over = report(tmp_path, threads=16)
    assert over.verdict.where.startswith("Oversubscribed: torch computes on 16 threads")
    assert not over.findings
    assert over.held_back
    assert "Use fewer threads: torch.set_num_threads(2)." in over.verdict.next


def test_workers_on_busy_cores_may_win_nothing(tmp_path: Path) -> None:
    (finding,) = report(tmp_path, fetch=True, core_wait=0.3).findings
    assert finding.kind == "input-bound"
    assert finding.saving_low_ms == 0
    assert "compete for them and may make the training slower" in finding.evidence[-1]


def test_advice_without_workers_is_not_warned_of_them(tmp_path: Path) -> None:
    facts = {LOADER_KEY: {"kind": "map", "workers": 0, "batch_size": 8, "in_memory": True, "batched": False}}
    (finding,) = report(tmp_path, fetch=True, core_wait=0.3, top=facts).findings
    assert finding.action.startswith("Fetch whole batches")
    assert not any("compete" in line for line in finding.evidence)
    assert finding.saving_low_ms is not None
    assert finding.saving_low_ms > 0
