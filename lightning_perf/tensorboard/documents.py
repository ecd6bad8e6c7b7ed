"""The worker process: it makes reports of runs and comparisons of studies, and compares finished reports.

A report can take a second to read and a gigabyte of memory. In TensorBoard's own process that would block all tabs.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from lightning_perf import __version__
from lightning_perf.compare.folders import compare_runs
from lightning_perf.compare.verdicts.comparison import Comparison, Unfair, UnfairError
from lightning_perf.documents import page_json
from lightning_perf.errors import CompareError, ReportError, TraceError
from lightning_perf.lazy_imports import MissingExtraError
from lightning_perf.report.build import analyze
from lightning_perf.report.document import PerfReport
from lightning_perf.run_files.atomic import atomic_file
from lightning_perf.run_files.report import REPORT_NAME
from lightning_perf.run_files.steps import STEPS
from lightning_perf.run_files.user_cache import SPARE_BYTES, bound_folder
from lightning_perf.tensorboard.cache import Document, read_intact, summarize, write
from lightning_perf.tensorboard.discovery import Run
from lightning_perf.tensorboard.queue import Answer, DiffQuery, Done, Failed, Job, Task, Working
from lightning_perf.tensorboard.storage import Storage, StorageError, StoredFile
from lightning_perf.workers.channel import Channel
from lightning_perf.workers.limits import limit_memory

ANALYSIS_NICENESS, QUERY_NICENESS = 10, 5
"""Both are lower than the priority of training. A reader waits for a comparison."""

LARGEST_REPORT_BYTES = 256 << 20

FETCH_SHARE = 0.5
"""Progress at the end of fetching remote files."""


def main(channel: Channel) -> None:
    """Do a job at low priority and with limited memory."""
    job: Job = channel.receive(Task, DiffQuery)
    os.nice(ANALYSIS_NICENESS if isinstance(job, Task) else QUERY_NICENESS)
    limit = limit_memory()
    try:
        answer = work(job, channel.send)
    except MemoryError:
        noun, command = ("analysis", "analyze PATH") if isinstance(job, Task) else ("comparison", "diff A B")
        need = f"The {noun} needs more than {limit / 1e9:.1f} GB, three quarters of the memory that was free."
        answer = Failed(f"{need} Free some memory, or run `lightning-perf {command}` on a larger machine.", 500)
    channel.send(answer)


def work(job: Job, on_progress: Callable[[Working], None]) -> Answer:
    """Do a job."""
    return make_document(job, on_progress) if isinstance(job, Task) else _answer_diff(job)


def _answer_diff(query: DiffQuery) -> Answer:
    reports = []
    for path in (query.before, query.after):
        data = read_intact(Path(path), "report")
        if data is None:
            return Failed("A cached report was damaged, and is made again. Compare the runs again.", 500)
        try:
            reports.append(PerfReport.from_json(data))
        except (ReportError, ValueError) as error:
            return Failed(str(error))
    before, after = reports
    try:
        return Done(page_json(before.diff(after)))
    except (TraceError, ReportError, ValueError) as error:
        return Failed(str(error))


def make_document(task: Task, on_progress: Callable[[Working], None]) -> Done | Failed:
    """Make the document of a task and write it to the cache."""
    run = task.run
    begin = FETCH_SHARE if run.storage.is_remote else 0.0
    place = f"{run.storage.location}/{run.folder}".rstrip("/")
    try:
        paths = fetch(run, Path(task.fetched), lambda done, message: on_progress(Working(done * begin, message)))
    except StorageError as error:
        return Failed(str(error), 500 if run.storage.is_remote else 422)
    documents: dict[Document, bytes]
    with _staged(run, paths) as folder:
        try:
            if run.kind == "study":
                on_progress(Working(begin, "comparing"))
                documents = {"study": page_json(make_study(folder))}
            else:
                on_progress(Working(begin, "analyzing"))
                report = make_report(folder, [folder / _below(run, file) for file in run.traces], place)
                # The page is written last: if it exists, all files do.
                summary = msgspec.json.encode(summarize(report))
                documents = {"report": msgspec.json.encode(report), "summary": summary, "page": page_json(report)}
        except MissingExtraError as error:
            return Failed(str(error), 500)
        except (TraceError, ReportError, CompareError) as error:
            return Failed(str(error).replace(str(folder), place))
    try:
        write([Path(place) for place in task.places], task.key, documents)
    except OSError as error:
        reason = f"Cannot write the result to any of {', '.join(task.places)} ({error.strerror or error})"
        return Failed(f"{reason}. Make one of them writable, or set LIGHTNING_PERF_CACHE to another folder.", 500)
    return Done()


def make_report(folder: Path, traces: Sequence[Path], place: str) -> PerfReport:
    """Return the report of a run: that of `PerfCallback` if it covers these traces, or else a new one.

    Raises:
        ReportError: The folder has only a report, and it cannot be read.
    """
    others = traces or STEPS.paths(folder)
    if (folder / REPORT_NAME).exists():
        try:
            finished = _read_report(folder / REPORT_NAME)
        except ReportError:
            if not others:
                raise
        else:
            if not others or _covers(finished, traces):
                return finished
    return _placed(analyze(folder), str(folder), place)


def _read_report(path: Path) -> PerfReport:
    if path.stat().st_size > LARGEST_REPORT_BYTES:
        raise ReportError(f"the report is larger than {LARGEST_REPORT_BYTES >> 20} MB. Analyze its traces again")
    return PerfReport.from_json(path.read_bytes())


def _covers(report: PerfReport, traces: Sequence[Path]) -> bool:
    """Whether this version made a report from all these traces, so that a new one would be equal."""
    sources = {Path(source).name for source in report.sources}
    notes = "\n".join(report.notes)
    known = all(trace.name in sources or trace.name in notes for trace in traces)
    return known and (report.tool_version == __version__ or not traces)


def _placed(report: PerfReport, folder: str, place: str) -> PerfReport:
    """Return the report with the original locations of its files instead of the temporary ones."""

    def rename(texts: Iterable[str]) -> tuple[str, ...]:
        return tuple(text.replace(folder, place) for text in texts)

    return replace(
        report,
        sources=rename(report.sources),
        notes=rename(report.notes),
        ranks=tuple(replace(rank, sources=rename(rank.sources)) for rank in report.ranks),
    )


def make_study(folder: Path) -> Comparison | Unfair:
    """Compare the arms of a study, with the treatment that the study declared."""
    try:
        return compare_runs(folder)
    except UnfairError as error:
        return error.refusal


@contextmanager
def _staged(run: Run, paths: Sequence[Path]) -> Iterator[Path]:
    """Provide a folder with links to the files of a run, and no others."""
    with tempfile.TemporaryDirectory(prefix="lightning_perf-") as name:
        for path, file in zip(paths, run.files, strict=True):
            link = Path(name) / _below(run, file)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
        yield Path(name)


def _below(run: Run, file: StoredFile) -> str:
    """Return the path of a file from the run's folder."""
    return file.path[len(run.folder) :].lstrip("/")


MOST_FETCHED_BYTES = 16 << 30
"""Maximum size of all fetched files. Beyond it, the least recently used ones are removed."""

CHUNK_BYTES = 4 << 20


def fetch(
    run: Run, folder: Path, on_progress: Callable[[float, str], None], most_bytes: int = MOST_FETCHED_BYTES
) -> list[Path]:
    """Make sure that all files of a run are on this machine, and return their paths.

    A fetched file keeps its name, which identifies rank and window.

    Raises:
        StorageError: A file cannot be fetched, or the disk has no room for it.
    """
    if not run.storage.is_remote:
        return [run.storage.local_path(file.path) for file in run.files]
    paths = {file: _place(folder, run.storage, file) for file in run.files}
    missing = {file: path for file, path in paths.items() if not path.exists()}
    for file in paths.keys() - missing.keys():
        os.utime(paths[file])
    total = sum(file.size_bytes for file in missing)
    _make_room(folder, total, sum(file.size_bytes for file in paths), most_bytes)
    done = 0
    for number, (file, path) in enumerate(missing.items(), 1):
        message = f"fetching file {number} of {len(missing)}, {total / 1e6:,.0f} MB in total"
        for size in _copy(run.storage, file, path):
            done += size
            on_progress(done / total if total else 1.0, message)
    return list(paths.values())


def _place(folder: Path, storage: Storage, file: StoredFile) -> Path:
    identity = f"{storage.url}\n{file.path}\n{file.size_bytes}\n{file.version}"
    return folder / hashlib.sha256(identity.encode()).hexdigest()[:32] / file.name


def _make_room(folder: Path, wanted_bytes: int, run_bytes: int, most_bytes: int) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        bound_folder(folder, max(0, most_bytes - wanted_bytes))
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        raise StorageError(
            f"Cannot fetch files to {folder} ({error.strerror}). Set LIGHTNING_PERF_CACHE to another folder."
        ) from error
    if run_bytes > most_bytes or wanted_bytes > free_bytes - SPARE_BYTES:
        room = min(most_bytes, max(free_bytes - SPARE_BYTES, 0))
        raise StorageError(
            f"The run's files take {run_bytes / 1e9:.1f} GB, but {folder} has room for {room / 1e9:.1f} GB only. "
            "Free some space, set LIGHTNING_PERF_CACHE to another folder, or copy the run to a local folder."
        )


def _copy(storage: Storage, file: StoredFile, path: Path) -> Iterator[int]:
    """Copy a file atomically, and yield the size of each part."""
    size = 0
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with storage.open(file.path) as source, atomic_file(path) as target:
            while chunk := source.read(CHUNK_BYTES):
                target.write(chunk)
                size += len(chunk)
                yield len(chunk)
            if size != file.size_bytes:
                raise StorageError(f"{file.path} changed while it was fetched. Open the run again.")
    except StorageError:
        raise
    except Exception as error:  # each file system has its own exceptions
        raise StorageError(f"{file.path} cannot be fetched ({type(error).__name__}: {error}).") from error
