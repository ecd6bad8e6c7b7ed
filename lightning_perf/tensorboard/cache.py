"""The cache of finished documents and fetched files: its folders and keys, and the summaries of finished reports.

A document is kept in the folder ``.lightning_perf_cache`` next to its data. So it moves and is deleted with them, and
other users can read it. If that folder cannot be written, or the data are remote, the document goes to the user's
cache folder.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from lightning_perf import __version__
from lightning_perf.report.document import SCHEMA_VERSION, PerfReport
from lightning_perf.run_files.atomic import atomic_file
from lightning_perf.run_files.report import REPORT_NAME
from lightning_perf.run_files.user_cache import bound_folder, cache_root, file_status, is_own_folder, temporary_root
from lightning_perf.saved_json import decode_json
from lightning_perf.tensorboard.discovery import Run
from lightning_perf.tensorboard.queue import Task
from lightning_perf.tensorboard.storage import StorageError, StoredFile

BESIDE = ".lightning_perf_cache"
"""The folder next to the data. Its name must differ from that of the marker file of `PerfCallback`."""
LAYOUT_VERSION = 1
"""Increase it if cached documents change their meaning but the report's schema and the package's version do not."""

SETTLED_S = 300.0
GROWTH = 1.25
"""While a log is being written, a document is outdated after the log has grown by a quarter, not after every step."""

MOST_DOCUMENT_BYTES = 1 << 30
"""Maximum size of all documents in the user's cache folder. Documents next to the data have no limit."""

Document = Literal["report", "summary", "page", "study"]
"""``report`` is the whole report, ``page`` the data of its page, ``study`` a comparison."""


def key_of(run: Run, now_s: float | None = None) -> str:
    """Return the key of a run's documents. It changes with the run's files and with the version of this package.

    Args:
        now_s: The time, in seconds since 1970; by default the current time.
    """
    now_s = time.time() if now_s is None else now_s
    ended = any(file.name == REPORT_NAME for file in run.others)
    parts = (
        LAYOUT_VERSION,
        SCHEMA_VERSION,
        __version__,
        run.kind,
        [(file.path[len(run.folder) :].lstrip("/"), *_content(file, run, ended, now_s)) for file in run.files],
    )
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:24]


def _content(file: StoredFile, run: Run, ended: bool, now_s: float) -> tuple[int, str]:
    growing = file.name.endswith(".jsonl") and run.kind == "run" and not ended
    if growing and now_s - file.updated_s < SETTLED_S:
        return math.floor(math.log(file.size_bytes + 1, GROWTH)), "growing"
    return file.size_bytes, file.version


def places_of(run: Run) -> tuple[Path, ...]:
    """Return the folders that may keep a run's documents, the preferred one first."""
    name = hashlib.sha256(f"{run.storage.location}\n{run.folder}\n{run.kind}".encode()).hexdigest()[:24]
    places = [cache_root() / "documents" / name, temporary_root() / "documents" / name]
    with suppress(StorageError):
        if not run.storage.is_remote:
            places.insert(0, run.storage.local_path(run.folder) / BESIDE)
    return tuple(places)


def make_task(run: Run, key: str) -> Task:
    """Return the task that makes a run's document with a key."""
    return Task(run, key, tuple(map(str, places_of(run))), str(cache_root() / "fetched"))


def find(run: Run, key: str, document: Document) -> Path | None:
    """Return the path of a finished document, or None if no folder of the run has it."""
    paths = (place / f"{key}.{document}" for place in places_of(run) if _is_own_folder(place))
    return next((path for path in paths if file_status(path) is not None), None)


def read_intact(path: Path, document: Document) -> bytes | None:
    """Read a document; a damaged one is removed. A full disk or a crash of the machine can leave a part of one."""
    with suppress(OSError, msgspec.DecodeError):
        data = path.read_bytes()
        if decode_json(data, dict[str, msgspec.Raw] if document == "study" else _ReportHead):
            return data
    with suppress(OSError):
        path.unlink()
    return None


class _ReportHead(msgspec.Struct):
    schema_version: int
    ranks: list[msgspec.Raw]


def write(places: Sequence[Path], key: str, documents: Mapping[Document, bytes]) -> Path:
    """Write documents of a key atomically to the first folder that is writable, and remove outdated ones."""
    fault: OSError | None = None
    for place in places:
        if place.name == BESIDE and not _is_writable(place.parent):
            continue
        try:
            place.mkdir(mode=0o755 if place.name == BESIDE else 0o700, parents=place.name != BESIDE, exist_ok=True)
            if not _is_own_folder(place):
                continue
            for document, data in documents.items():
                with atomic_file(place / f"{key}.{document}", mode=0o644) as file:
                    file.write(data)
        except OSError as error:
            fault = error
            continue
        for old in place.iterdir():
            if old.suffix[1:] in documents and old.stem != key:
                old.unlink(missing_ok=True)
        if place.name != BESIDE:
            bound_folder(place.parent, MOST_DOCUMENT_BYTES)
        return place
    raise fault or OSError("no folder can be written")


def _is_writable(folder: Path) -> bool:
    """Whether anyone has write permission for a folder. Root does not ignore that a folder is read-only."""
    try:
        return bool(folder.stat().st_mode & 0o222)
    except OSError:
        return False


def _is_own_folder(path: Path) -> bool:
    """Whether documents in a folder can be trusted. The one next to the data belongs to anyone who can write there."""
    return is_own_folder(path) or (path.name == BESIDE and path.is_dir() and not path.is_symlink())


class Summary(msgspec.Struct, frozen=True):
    """A run in the list: its step time, and the title of its largest finding or its verdict."""

    step_ns: float | None = None
    verdict: str | None = None


def summarize(report: PerfReport) -> Summary:
    """Return the summary of a report."""
    verdict = report.findings[0].title if report.findings else report.verdict.where
    if report.lead is None:
        return Summary(None, verdict)
    lead = report.ranks[report.lead]
    usual = report.step_times.of_rank(lead.rank) if report.step_times is not None else None
    return Summary(usual.p50_ns if usual is not None else lead.breakdown.wall.mean_ns, verdict)


class RunSummaries:
    """Reads the summaries of finished reports, each version once. It makes no report."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, float], Summary] = {}

    def of(self, run: Run) -> Summary:
        """Return the summary of a run; an empty one if its report is not finished."""
        version = run.name, run.updated_s
        path = find(run, key_of(run), "summary") if version not in self._known else None
        if path is not None:
            try:
                self._known[version] = decode_json(path.read_bytes(), Summary)
            except (OSError, msgspec.DecodeError):
                self._known[version] = Summary()
        return self._known.get(version, Summary())
