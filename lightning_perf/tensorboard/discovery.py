"""Find the runs, traces, studies and trade-offs in the log directories, in the background."""

from __future__ import annotations

import itertools
import re
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Literal, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from lightning_perf.run_files.captures import is_capture_name
from lightning_perf.run_files.journal import STUDY_NAME
from lightning_perf.run_files.numerics.precision import PRECISION_NAME
from lightning_perf.run_files.report import REPORT_NAME
from lightning_perf.run_files.run_record import RECORD_NAME
from lightning_perf.run_files.traces import PROFILER_SUFFIXES
from lightning_perf.tensorboard.storage import URL, Storage, StorageError, StoredFile, storage_at

Root: TypeAlias = tuple[str, Storage]
"""The name of a group of runs, or an empty one, and their folder."""


def read_roots(logdir: str | None, logdir_spec: str | None) -> tuple[Root, ...]:
    """Read TensorBoard's ``--logdir``, and ``--logdir_spec`` with several folders and optional names."""
    if logdir:
        return (("", storage_at(logdir)),)
    roots = []
    for part in (logdir_spec or "").split(","):
        group, colon, path = part.partition(":")
        if not colon or part.startswith("/") or URL.match(part):
            group, path = "", part
        if path:
            roots.append((group, storage_at(path)))
    return tuple(roots)


def roots_of(context: Any) -> tuple[Root, ...]:
    """Return the folders of a TensorBoard context. Any of its fields may be missing."""
    flags = context.flags
    return read_roots(context.logdir or getattr(flags, "logdir", None), getattr(flags, "logdir_spec", None))


Kind = Literal["run", "trace", "study", "inference"]

TRADEOFF = "tradeoff.json"

_LOG = re.compile(r"[a-z_]+\.rank\d+\.jsonl")
_JOURNAL = re.compile(r"block\d+\.jsonl")

SNIFFED_BYTES = 1 << 16
MOST_SNIFFED = 2000
"""Maximum number of files that one scan opens, because other tools write thousands of JSON files."""


class Run(Struct, frozen=True):
    """A run, trace, study or trade-off that the tab can show.

    Attributes:
        name: Unique name: the path of its folder from the root, after the name of the root's group.
        kind: ``"run"`` was recorded by `PerfCallback`, and ``"trace"`` by another tool. A ``"study"`` compares runs,
            and ``"inference"`` is a trade-off table.
        storage: The storage of its files.
        folder: Its folder in that storage.
        traces: Its traces, sorted by name.
        others: Its other files. For a study they include the files of its runs.
        study: Name of the study that the run belongs to, or None.
    """

    name: str
    kind: Kind
    storage: Storage
    folder: str
    traces: tuple[StoredFile, ...]
    others: tuple[StoredFile, ...]
    study: str | None = None

    @property
    def title(self) -> str:
        """Its name, or the name of the log directory for a run right inside it, which is called ``.``."""
        name, space, rest = self.name.partition(" ")
        if name.rpartition("/")[2] != ".":
            return self.name
        folder = PurePath(self.storage.location).name or self.storage.location
        return f"{name[:-1]}{folder}{space}{rest}"

    @property
    def files(self) -> tuple[StoredFile, ...]:
        """All files of the run."""
        return (*self.traces, *self.others)

    @property
    def updated_s(self) -> float:
        """The time of the last change of its files, in seconds since 1970."""
        return max((file.updated_s for file in self.files), default=0.0)


class Table(Struct, frozen=True):
    """All runs by name, sorted, and notes about the folders for the reader."""

    runs: Mapping[str, Run] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Sniffer:
    """Detects the contents of files from their first bytes. It reads each version of a file once."""

    def __init__(self, most_files: int = MOST_SNIFFED) -> None:
        self._most_files = most_files
        self._known: dict[tuple[str, str], tuple[str, bytes]] = {}  # by location and path: version, and the marks in it
        self._left = most_files

    def begin_scan(self) -> None:
        """Reset the number of files that may be opened."""
        self._left = self._most_files

    def holds(self, storage: Storage, file: StoredFile, *marks: bytes) -> bool:
        """Whether the first bytes of a file contain one of the marks."""
        place = (storage.location, file.path)
        version, found = self._known.get(place, (None, b""))
        if version != file.version:
            if not self._left:
                return False
            self._left -= 1
            beginning = _beginning(storage, file)
            found = b" ".join(mark for mark in _MARKS if mark in beginning)
            self._known[place] = (file.version, found)
        return any(mark in found for mark in marks)


_TRACE_MARKS = (b'"traceEvents"', b'"schemaVersion"')
_DOCUMENT_MARK = b'"schema_version"'
_STUDY_MARK = b'"arms"'
_MARKS = (*_TRACE_MARKS, _DOCUMENT_MARK, _STUDY_MARK)


def discover(roots: Sequence[Root], sniffer: Sniffer) -> Table:
    """Find the runs below some folders.

    A folder with ``*.pt.trace.json[.gz]`` files of any tool is one run, and its files are ranks and windows. A folder
    without such files is a run if `PerfCallback` left step times or a report there, or if other JSON files in it start
    like traces. A folder that cannot be listed becomes a note.
    """
    sniffer.begin_scan()
    runs: dict[str, Run] = {}
    notes: list[str] = []
    for group, storage in roots:
        try:
            files, remarks = storage.list_files()
        except StorageError as error:
            notes.append(str(error))
            continue
        notes += remarks
        found = []
        for run in _runs_of(storage, files, sniffer):
            plain = "/".join(filter(None, (group, run.name)))
            numbers = (f" ({run.kind} {number})" for number in itertools.count(2))
            endings = itertools.chain(("", f" ({run.kind})"), numbers)
            name = next(unused for ending in endings if (unused := plain + ending) not in runs)
            runs[name] = replace(run, name=name)
            found.append(name)
        studies = {run.folder: name for name in found if (run := runs[name]).kind == "study"}
        runs |= {name: replace(runs[name], study=_study_of(runs[name], studies)) for name in found if studies}
    return Table(dict(sorted(runs.items())), tuple(notes))


def _runs_of(storage: Storage, files: Sequence[StoredFile], sniffer: Sniffer) -> Iterable[Run]:
    folders: dict[str, list[StoredFile]] = {}
    for file in files:
        folders.setdefault(file.folder, []).append(file)
    members = _study_members(storage, files, sniffer)
    captures: dict[str, list[StoredFile]] = {}  # files of captures, in folders below the run's
    for at, inside in folders.items():
        above, _, last = at.rpartition("/")
        if is_capture_name(last):
            captures.setdefault(above, []).extend(inside)
    for folder, here in folders.items():
        name = folder or "."
        by_name = {file.name: file for file in here}
        traces = tuple(file for file in here if file.name.endswith(PROFILER_SUFFIXES))
        own = tuple(file for file in here if _is_own(storage, file, sniffer))
        if own:
            own += tuple(captures.get(folder, ()))
        if not traces and not storage.is_remote:
            traces = tuple(
                file
                for file in here
                if file.name.endswith((".json", ".json.gz"))
                and file.name not in (STUDY_NAME, TRADEOFF, REPORT_NAME, PRECISION_NAME)
                and sniffer.holds(storage, file, *_TRACE_MARKS)
            )
        if traces or own:
            yield Run(name, "run" if own else "trace", storage, folder, traces, own)
        if folder in members:
            yield Run(name, "study", storage, folder, (), (by_name[STUDY_NAME], *members[folder]))
        if TRADEOFF in by_name and sniffer.holds(storage, by_name[TRADEOFF], _DOCUMENT_MARK):
            yield Run(name, "inference", storage, folder, (), (by_name[TRADEOFF],))


def _study_members(storage: Storage, files: Sequence[StoredFile], sniffer: Sniffer) -> dict[str, list[StoredFile]]:
    """Return the files in or below the folder of each study."""
    members: dict[str, list[StoredFile]] = {
        file.folder: [] for file in files if file.name == STUDY_NAME and sniffer.holds(storage, file, _STUDY_MARK)
    }
    for file in files:
        if file.name != RECORD_NAME and not any(pattern.fullmatch(file.name) for pattern in (_LOG, _JOURNAL)):
            continue
        for folder in filter(members.__contains__, _upwards(file.folder)):
            members[folder].append(file)
    return members


def _is_own(storage: Storage, file: StoredFile, sniffer: Sniffer) -> bool:
    if file.name == REPORT_NAME:
        return sniffer.holds(storage, file, _DOCUMENT_MARK)
    return file.name in (PRECISION_NAME, RECORD_NAME) or _LOG.fullmatch(file.name) is not None


def _study_of(run: Run, studies: Mapping[str, str]) -> str | None:
    """Return the name of the innermost study around a run. `studies` maps folders to names."""
    if run.kind == "study":
        return None
    return next((studies[folder] for folder in _upwards(run.folder) if folder in studies), None)


def _upwards(folder: str) -> Iterator[str]:
    """Yield a folder and its parents, up to the root with its empty path."""
    while folder:
        yield folder
        folder = folder.rpartition("/")[0]
    yield ""


def _beginning(storage: Storage, file: StoredFile) -> bytes:
    try:
        with storage.open(file.path) as stream:
            data = stream.read(SNIFFED_BYTES)
    except (StorageError, OSError):
        return b""
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(data, SNIFFED_BYTES)
    except zlib.error:
        return b""


class Scanner:
    """Keeps the table of runs. A request that finds it outdated updates it in the background.

    Args:
        fresh_s: How long a table is fresh at least.
        patience_s: How long a request waits for a fresh table if there is an older one.
    """

    def __init__(
        self,
        roots: Sequence[Root],
        fresh_s: float = 2.0,
        fresh_looks: float = 10.0,
        patience_s: float = 0.3,
        find: Callable[[Sequence[Root], Sniffer], Table] = discover,
    ) -> None:
        self._roots = roots
        self._fresh_s = fresh_s
        self._fresh_looks = fresh_looks
        self._patience_s = patience_s
        self._find = find
        self._sniffer = Sniffer()
        self._lock = threading.Lock()
        self._scanned = threading.Event()
        self._scanned.set()
        self._table: Table | None = None
        self._stale_s = 0.0

    def table(self, wait_s: float) -> Table | None:
        """Return the latest table, or None if the first scan takes longer than `wait_s`."""
        with self._lock:
            if time.monotonic() >= self._stale_s and self._scanned.is_set():
                self._scanned.clear()
                threading.Thread(target=self._scan, name="lightning_perf runs", daemon=True).start()
        self._scanned.wait(wait_s if self._table is None else min(wait_s, self._patience_s))
        return self._table

    def _scan(self) -> None:
        begin = time.monotonic()
        try:
            table = self._find(self._roots, self._sniffer)
        except Exception as error:  # any storage may raise anything, and the reader must see it
            known = self._table or Table()
            table = Table(known.runs, (f"The runs cannot be listed ({type(error).__name__}: {error}).",))
        end = time.monotonic()
        self._table = table
        self._stale_s = end + max(self._fresh_s, self._fresh_looks * (end - begin))
        self._scanned.set()
