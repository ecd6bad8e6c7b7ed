"""Several recordings at once: the same as one after another, whatever becomes of the processes."""

import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from lightning_perf.report import recordings
from lightning_perf.report import workers as worker_pool
from lightning_perf.report.recording import Recording, analyze_recording
from lightning_perf.report.recordings import analyze_recordings
from lightning_perf.workers import limits
from lightning_perf.workers.process import WorkerProcess
from tests.support.trace_builder import TraceBuilder
from tests.support.watched_workers import Watched, watch

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
    faults = [[[str(fault) for fault in each.errors] for each in results] for results in (one, other)]
    rest = [[(each.analyses, each.times) for each in results] for results in (one, other)]
    return faults[0] == faults[1] and rest[0] == rest[1]


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> type[Watched]:
    """Two worker processes whatever the machine and the files."""
    monkeypatch.setattr(recordings, "LARGE_BYTES", 1)
    monkeypatch.setattr(limits, "usable_cpus", lambda: 2)
    return watch(monkeypatch, worker_pool)


def codes(workers: type[Watched]) -> list[int | None]:
    return [worker.exit_code for worker in workers.started]


def test_two_processes_share_the_work(
    groups: list[list[Path]], workers: type[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = [analyze_recording(group) for group in groups]
    monkeypatch.setattr(worker_pool, "analyze_recording", lambda *_, **__: pytest.fail("a process should answer"))
    together = analyze_recordings(groups)
    assert same(together, alone)
    assert [each.analyses[0].rank for each in together if each.analyses] == [0, 1, 2, 4]
    assert "rank3.pt.trace.json" in str(together[3].errors[0])
    assert codes(workers) == [0, 0]


@pytest.mark.parametrize("executable", ["/bin/false", "/no/such/python"])
def test_without_an_interpreter(
    executable: str, groups: list[list[Path]], workers: type[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = [analyze_recording(group) for group in groups]
    monkeypatch.setattr(sys, "executable", executable)
    assert same(analyze_recordings(groups), alone)
    assert set(codes(workers)) <= {1}


def test_small_recordings_start_no_process(groups: list[list[Path]], workers: type[Watched]) -> None:
    recordings.LARGE_BYTES = 1 << 20  # put back by the fixture
    assert len(analyze_recordings(groups)) == RANKS
    assert workers.started == []


def test_a_process_that_is_killed_costs_no_recording(groups: list[list[Path]], workers: type[Watched]) -> None:
    workers.blow = signal.SIGKILL
    assert same(analyze_recordings(groups), [analyze_recording(group) for group in groups])
    assert Counter(codes(workers)) == {-9: 1, 0: 2}  # another one takes its place


def test_ctrl_c_is_passed_on(groups: list[list[Path]], workers: type[Watched]) -> None:
    workers.blow = signal.SIGINT
    with pytest.raises(KeyboardInterrupt):
        analyze_recordings(groups)
    assert None not in codes(workers)


def test_jobs_and_short_memory_lower_the_number_of_processes(
    groups: list[list[Path]], workers: type[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = [analyze_recording(group) for group in groups]
    assert same(analyze_recordings(groups, jobs=1), alone)
    monkeypatch.setattr(limits, "free_bytes", lambda: int(1.5 * recordings.WORKER_BYTES / recordings.FREE_SHARE))
    assert same(analyze_recordings(groups, jobs=3), alone)
    assert workers.started == []
    monkeypatch.setattr(limits, "free_bytes", lambda: int(2.5 * recordings.WORKER_BYTES / recordings.FREE_SHARE))
    assert same(analyze_recordings(groups, jobs=3), alone)
    assert len(workers.started) == 2
    monkeypatch.setattr(limits, "free_bytes", lambda: 0)  # unknown
    assert same(analyze_recordings(groups, jobs=3), alone)
    assert len(workers.started) == 5


def test_processes_that_no_recording_needs_decode(
    groups: list[list[Path]], workers: type[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = []
    monkeypatch.setattr(Watched, "send", lambda self, task: (tasks.append(task), WorkerProcess.send(self, task))[1])
    analyze_recordings(groups[:2], jobs=5)
    assert [task.processes for task in tasks] == [2, 2]


@pytest.mark.parametrize("jobs", [1, 2])
def test_progress_has_the_time_left(
    jobs: int, groups: list[list[Path]], workers: type[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "PROGRESS_S", 0.0)
    lines: list[str] = []
    analyze_recordings(groups, jobs=jobs, on_progress=lines.append)
    assert len(workers.started) == (jobs if jobs > 1 else 0)
    assert [line.partition(" analyzed, ")[0] for line in lines] == [f"{n} of 5 recordings" for n in (1, 2, 3, 4)]
    assert all(line.endswith(" left") for line in lines)
    lines.clear()
    monkeypatch.setattr(recordings, "PROGRESS_S", 60.0)
    analyze_recordings(groups, on_progress=lines.append)
    assert lines == []
