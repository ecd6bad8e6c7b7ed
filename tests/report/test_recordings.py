"""Several recordings at once: the same as one after another, whatever becomes of the processes."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.report import recording_worker, recordings
from lightning_perf.report.recording import Recording, analyze_recording
from lightning_perf.report.recording_worker import RecordingWorker
from lightning_perf.report.recordings import analyze_recordings
from tests.support.trace_builder import TraceBuilder

RANKS = 5


@pytest.fixture
def groups(tmp_path: Path) -> list[list[Path]]:
    """The files of five ranks: each with work of its own, of another size, and one of them damaged."""
    paths = []
    for rank in range(RANKS):
        builder = TraceBuilder().rank(rank, RANKS)
        for step in range(1 + rank % 3):
            builder.step(step, 100 * step, 100).op("aten::mm", 100 * step + 5, 30 + rank)
        paths.append(tmp_path / f"rank{rank}.pt.trace.json")
        builder.write(paths[-1])
    paths[3].write_bytes(b"not json")
    return [[path] for path in paths]


def same(one: list[Recording], other: list[Recording]) -> bool:
    """Whether two results agree; errors are compared by what they say."""
    faults = [[[str(fault) for fault in each.faults] for each in results] for results in (one, other)]
    rest = [[(each.analyses, each.times) for each in results] for results in (one, other)]
    return faults[0] == faults[1] and rest[0] == rest[1]


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Two workers whatever the machine and the files, and the processes that they start."""
    monkeypatch.setattr(recordings, "LARGE_BYTES", 1)
    monkeypatch.setattr(recordings, "_cores", lambda: 2)
    started: list[Any] = []
    start = recording_worker._start

    def noted() -> Any:
        started.append(start())
        return started[-1]

    monkeypatch.setattr(recording_worker, "_start", noted)
    return started


def test_two_processes_share_the_work(
    groups: list[list[Path]], processes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = [analyze_recording(group) for group in groups]
    monkeypatch.setattr(recording_worker, "analyze_recording", lambda *_, **__: pytest.fail("a process should answer"))
    together = analyze_recordings(groups)
    assert same(together, alone)
    assert [each.analyses[0].rank for each in together if each.analyses] == [0, 1, 2, 4]
    assert "rank3.pt.trace.json" in str(together[3].faults[0])
    assert [process.returncode for process in processes] == [0, 0]


def test_without_an_interpreter(
    groups: list[list[Path]], processes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = [analyze_recording(group) for group in groups]
    monkeypatch.setattr(recording_worker.sys, "executable", "/bin/false")
    assert same(analyze_recordings(groups), alone)
    assert {process.returncode for process in processes} == {1}


def test_small_recordings_start_no_process(groups: list[list[Path]], processes: list[Any]) -> None:
    recordings.LARGE_BYTES = 1 << 20  # put back by the fixture
    assert len(analyze_recordings(groups)) == RANKS
    assert processes == []


def test_a_process_that_is_killed_costs_no_recording(groups: list[list[Path]], processes: list[Any]) -> None:
    with RecordingWorker(by_shape=False) as worker:
        first = worker.analyze(groups[0])
        processes[0].kill()
        processes[0].wait()
        second, third = worker.analyze(groups[1]), worker.analyze(groups[2])
    assert same([first, second, third], [analyze_recording(group) for group in groups[:3]])
    assert [process.returncode for process in processes] == [-9, 0]


def test_ctrl_c_is_passed_on(groups: list[list[Path]], processes: list[Any]) -> None:
    with RecordingWorker(by_shape=False) as worker:
        worker.analyze(groups[0])
        processes[0].send_signal(signal.SIGINT)
        processes[0].wait()
        with pytest.raises(KeyboardInterrupt):
            worker.analyze(groups[1])
