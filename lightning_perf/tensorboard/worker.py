"""The worker process that makes documents. It reads runs, reports progress, and writes the cache."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from lightning_perf.tensorboard.cache import Document, write
from lightning_perf.tensorboard.excerpt import excerpt_report
from lightning_perf.tensorboard.fetch import fetch
from lightning_perf.tensorboard.storage import StorageError
from lightning_perf.tensorboard.task import Answer, Done, Failed, SourceFile, Task, Working
from lightning_perf.workers.channel import Channel
from lightning_perf.workers.memory_limit import limit_memory

__all__ = [
    "ReadingProgress",
    "main",
    "work",
]


class ReadingProgress:
    """Follows how far this process and its children have read files. It needs ``/proc``.

    Args:
        sizes: The files' sizes in bytes, by path.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        self._read = dict.fromkeys(sizes, 0)

    def look(self) -> float:
        """Return the share of the bytes that has been read, from 0 to 1. It never shrinks."""
        for process in _with_children(os.getpid()):
            for path, position in _positions(process):
                if path in self._read:
                    self._read[path] = max(self._read[path], min(position, self._sizes[path]))
        total = sum(self._sizes.values())
        return sum(self._read.values()) / total if total else 1.0


def _with_children(process: int) -> Iterable[int]:
    yield process
    try:
        tasks = list(Path(f"/proc/{process}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return
    for child in children:
        yield from _with_children(child)


def _positions(process: int) -> Iterable[tuple[str, int]]:
    try:
        descriptors = os.listdir(f"/proc/{process}/fd")  # noqa: PTH208
    except OSError:
        return
    for descriptor in descriptors:
        try:
            path = os.readlink(f"/proc/{process}/fd/{descriptor}")  # noqa: PTH115  (Path is slow, and this runs often)
            if not path.startswith("/"):
                continue
            information = Path(f"/proc/{process}/fdinfo/{descriptor}").read_text()
        except OSError:
            continue  # closed in the meantime
        yield path, int(information.partition("pos:")[2].split()[0])


NICENESS = 10
LOOK_S = 0.2

FETCH_SHARE = 0.5
READ_SHARE = 0.9
"""Progress at the end of fetching remote files, and at the end of reading."""


def main(channel: Channel) -> None:
    """Make the document of one task at low priority and with limited memory, and send the answer."""
    os.nice(NICENESS)
    task = channel.receive(Task)
    limit = limit_memory()
    try:
        answer = work(task, channel.send)
    except MemoryError:
        answer = Failed(
            f"The analysis needs more than {limit / 1e9:.1f} GB, three quarters of the memory that was free. "
            "Free some memory, or run `lightning-perf analyze PATH` on a machine with more.",
            lasting=False,
        )
    channel.send(answer)


def work(task: Task, on_progress: Callable[[Answer], None]) -> Answer:
    """Make the document of a task and write it to the cache.

    Args:
        task: The task.
        on_progress: Called with the progress.

    Returns:
        The outcome.
    """
    from lightning_perf.lazy_imports import MissingExtraError

    try:
        documents = _study(task, on_progress) if task.kind == "study" else _report(task, on_progress)
    except (StorageError, MissingExtraError) as error:
        return Failed(str(error), lasting=False)
    except _UnusableError as error:
        return Failed(str(error))
    try:
        write([Path(place) for place in task.places], task.key, documents)
    except OSError as error:
        return Failed(
            f"Cannot write the result to any of {', '.join(task.places)} ({error.strerror or error}). "
            "Make one of them writable, or set LIGHTNING_PERF_CACHE to another folder.",
            lasting=False,
        )
    return Done()


class _UnusableError(Exception):
    """No document can be made from the files. The message names their original locations."""


def _report(task: Task, on_progress: Callable[[Answer], None]) -> list[tuple[Document, bytes]]:
    from lightning_perf.errors import TraceError
    from lightning_perf.report.document import ReportError
    from lightning_perf.tensorboard.make_report import make_report

    begin = FETCH_SHARE if task.url is not None else 0.0
    paths = fetch(task, lambda done, message: on_progress(Working(done * begin, message)))
    sizes = {str(path): file.size_bytes for path, file in zip(paths, task.files, strict=True)}
    with _staged(task, paths) as folder, _watched(sizes, lambda done: on_progress(_reading(begin, done))):
        traces = [folder / _below(task, file) for file in task.files[: task.traces]]
        try:
            data = make_report(folder, traces, _place(task)).to_json(indent=None).encode()
        except (TraceError, ReportError) as error:
            raise _UnusableError(str(error).replace(str(folder), _place(task))) from error
    # The excerpt is written last: if it exists, both files do.
    return [("report", data), ("page", excerpt_report(data))]


def _study(task: Task, on_progress: Callable[[Answer], None]) -> list[tuple[Document, bytes]]:
    from lightning_perf.compare.errors import CompareError
    from lightning_perf.tensorboard.make_report import make_study

    begin = FETCH_SHARE if task.url is not None else 0.0
    paths = fetch(task, lambda done, message: on_progress(Working(done * begin, message)))
    on_progress(Working(begin, "comparing"))
    with _staged(task, paths) as folder:
        try:
            return [("study", msgspec.json.encode(make_study(folder)))]
        except CompareError as error:
            raise _UnusableError(str(error).replace(str(folder), _place(task))) from error


@contextmanager
def _staged(task: Task, paths: Sequence[Path]) -> Iterator[Path]:
    """Provide a folder with links to the files of a task, and no others."""
    with tempfile.TemporaryDirectory(prefix="lightning_perf-") as name:
        for path, file in zip(paths, task.files, strict=True):
            link = Path(name) / _below(task, file)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
        yield Path(name)


def _below(task: Task, file: SourceFile) -> str:
    """Return the path of a file from the run's folder."""
    return file.path[len(task.folder) :].lstrip("/")


def _place(task: Task) -> str:
    return f"{task.location}/{task.folder}".rstrip("/")


def _reading(begin: float, done: float) -> Working:
    return Working(begin + (READ_SHARE - begin) * done, "reading traces" if done < 1 else "analyzing")


@contextmanager
def _watched(sizes: dict[str, int], tell: Callable[[float], None]) -> Iterator[None]:
    """Report the share of the files that has been read, whenever it changes."""
    over = threading.Event()
    progress = ReadingProgress(sizes)

    def watch() -> None:
        reported = -1.0
        while not over.wait(LOOK_S):
            done = progress.look()
            if done != reported:
                tell(done)
                reported = done

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
