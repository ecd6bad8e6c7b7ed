"""Worker processes that analyze the recordings of a run. They load only for a run with several large files."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from lightning_perf.report.recording import Recording, analyze_recording, decode_recording, encode_recording
from lightning_perf.workers.channel import Channel, Message
from lightning_perf.workers.process import WorkerError, WorkerExitError, WorkerProcess, wait_for_messages


class Analyze(Message, frozen=True):
    """Asks a worker to read the files of one process and to analyze them together."""

    paths: tuple[str, ...]
    by_shape: bool
    processes: int


class Analyzed(Message, frozen=True):
    """The result, as `encode_recording` writes it."""

    recording: bytes


def main(channel: Channel) -> None:
    """Analyze recordings until the supervisor asks to stop."""
    while True:
        task = channel.receive(Analyze)
        paths = [Path(path) for path in task.paths]
        recording = analyze_recording(paths, by_shape=task.by_shape, processes=task.processes)
        channel.send(Analyzed(encode_recording(recording)))


def analyze_in_workers(
    groups: Sequence[Sequence[Path]],
    order: Sequence[int],
    workers: int,
    *,
    by_shape: bool,
    processes: int,
    on_result: Callable[[int], None],
) -> list[Recording]:
    """Analyze recordings in so many worker processes, which take the recordings in the given order.

    Args:
        processes: Processes that each of them may use to decode.
        on_result: Called with the number of each recording when it is analyzed.
    """
    waiting = deque(order)
    results: dict[int, Recording] = {}
    running: dict[WorkerProcess, int] = {}
    idle: list[WorkerProcess | None] = [None] * workers  # None for one that is not yet started
    with ExitStack() as stack:
        while waiting or running:
            while waiting and idle:
                worker, number = idle.pop(), waiting.popleft()
                task = Analyze(tuple(map(str, groups[number])), by_shape, processes)
                try:
                    if worker is None:
                        worker = stack.enter_context(WorkerProcess(f"{__name__}:main", task))
                    else:
                        worker.send(task)
                    running[worker] = number
                except WorkerError as error:
                    results[number] = _analyze_here(groups[number], by_shape, error)
                    idle.append(None)
            for worker in wait_for_messages(running):
                number = running.pop(worker)
                try:
                    results[number] = decode_recording(worker.receive(Analyzed).recording)
                    idle.append(worker)
                except WorkerError as error:
                    results[number] = _analyze_here(groups[number], by_shape, error)
                    idle.append(None)
                on_result(number)
    return [results[number] for number in range(len(groups))]


def _analyze_here(paths: Sequence[Path], by_shape: bool, error: WorkerError) -> Recording:
    """Analyze a recording after its worker process failed. Here it either succeeds or raises the real error."""
    if isinstance(error, WorkerExitError) and error.code == -signal.SIGINT:
        raise KeyboardInterrupt from error
    return analyze_recording(paths, by_shape=by_shape)
