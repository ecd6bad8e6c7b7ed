"""The places that hold a history, and adding runs to it: a folder, or any address that fsspec opens.

Both are append-only. A folder has the file ``history.jsonl`` with one line per entry. A remote store has one object per
entry, because objects cannot be appended to. A folder may hold both kinds, such as a copy of a remote store.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Struct

from lightning_perf.compare.records.metrics import Quality, find_quality, run_values
from lightning_perf.compare.records.record import RunRecord, find_records
from lightning_perf.compare.study.definition import study_arms
from lightning_perf.compare.verdicts.facts import find_left_out
from lightning_perf.errors import UserError
from lightning_perf.lazy_imports import import_extra
from lightning_perf.run_files.journal import STUDY_NAME
from lightning_perf.run_files.jsonl import append
from lightning_perf.run_files.run_record import FactValue
from lightning_perf.saved_json import decode_json, decoder
from lightning_perf.workers.revision import commit_info

VERSION = 1
"""Version of the entries. A reader skips entries of a newer version, and reports them."""


class HistoryError(UserError):
    """A history cannot be read or written. The message says where, why, and how to fix it."""


Moment = Annotated[float, msgspec.Meta(ge=-6e10, le=2.5e11)]
"""Seconds since 1970 in the years 69 to 9892, which have a date."""


class StoredRun(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """The parts of a run that a history keeps.

    Attributes:
        commit_unix_s: Time of the commit; None if git did not know it when the run was added.
        subject: First line of the commit's message, or None.
        facts: The fingerprint, without the revision.
        quality: Name of the logged metric behind ``accuracy``, ``loss`` or ``score``, or None.
        left_out: Why the run does not count, e.g. ``warm-up``; None if it does.
    """

    run_id: str
    started_unix_s: Moment
    added_unix_s: Moment
    commit: str | None
    facts: Mapping[str, FactValue]
    values: Mapping[str, float | None]
    commit_unix_s: Moment | None = None
    subject: str | None = None
    quality: str | None = None
    left_out: str | None = None
    study: str | None = None
    arm: str | None = None
    version: int = VERSION


class StoredBaseline(msgspec.Struct, frozen=True, kw_only=True, tag="baseline"):
    """A name for a commit. The last entry of a name counts."""

    name: str
    commit: str
    added_unix_s: Moment
    version: int = VERSION


Entry: TypeAlias = StoredRun | StoredBaseline


class _Head(msgspec.Struct):
    version: int


def decode_entry(line: bytes) -> Entry | str:
    """Decode an entry, or return the problem: ``damaged`` or ``newer``."""
    try:
        return _DECODE(line)
    except msgspec.DecodeError:
        pass
    try:
        return "newer" if decode_json(line, _Head).version > VERSION else "damaged"
    except msgspec.DecodeError:
        return "damaged"


_DECODE: Callable[[bytes], Entry] = decoder(Entry)


def object_name(entry: Entry) -> str:
    """Return a file name for an entry: its time, and a hash that other entries do not have.

    A run has the same name whenever it is added. Names from elsewhere cannot lead out of the folder.
    """
    if isinstance(entry, StoredRun):
        begun, name = entry.started_unix_s, entry.run_id
    else:
        begun, name = entry.added_unix_s, f"{entry.name}\0{entry.commit}\0{entry.added_unix_s}"
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(min(max(begun, 0.0), 2.5e11)))
    return f"{stamp}-{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"


HISTORY_NAME = "history.jsonl"
ENTRIES_FOLDER = "entries"

NAMED = 3
"""Maximum number of damaged places in a note. The others are counted."""


class Contents(Struct, frozen=True):
    """The readable entries of a store.

    Attributes:
        runs: The runs in order of their start, each once.
        baselines: The last entry of each named baseline.
    """

    runs: tuple[StoredRun, ...]
    baselines: tuple[StoredBaseline, ...]
    notes: tuple[str, ...]


def open_store(location: str | Path) -> FolderStore | RemoteStore:
    """Return the store at a folder or an address such as ``s3://bucket/history``. It need not exist yet."""
    text = str(location)
    if "://" in text:
        return RemoteStore(text)
    path = Path(text).expanduser()
    if path.suffix.lower() == ".zip":
        raise HistoryError(
            f"{path}: a history is a folder, not a ZIP archive. Unpack it, and give the folder: "
            f"unzip {path} -d {path.with_suffix('')}"
        )
    return FolderStore(path)


def read_store(store: FolderStore | RemoteStore) -> Contents:
    """Read all entries. Damaged entries and those of a newer version are skipped and noted."""
    if not store.exists():
        raise HistoryError(
            f"{store.location}: no history there. "
            f"Add runs with: lightning-perf history add RUN --store {store.location}"
        )
    runs: dict[str, StoredRun] = {}
    baselines: dict[str, StoredBaseline] = {}
    skipped: dict[str, list[str]] = {"damaged": [], "newer": []}
    for place, line in store.pieces():
        entry = decode_entry(line)
        if isinstance(entry, str):
            skipped[entry].append(place)
        elif isinstance(entry, StoredRun):
            runs.setdefault(entry.run_id, entry)
        elif entry.name not in baselines or baselines[entry.name].added_unix_s <= entry.added_unix_s:
            baselines[entry.name] = entry
    notes = []
    if skipped["damaged"]:
        notes.append(f"Skipped {_count(skipped['damaged'])} that cannot be read: {_named(skipped['damaged'])}.")
    if skipped["newer"]:
        notes.append(
            f"Skipped {_count(skipped['newer'])} that a newer lightning-perf wrote: {_named(skipped['newer'])}. "
            "Upgrade lightning-perf to read them."
        )
    in_order = sorted(runs.values(), key=lambda run: (run.started_unix_s, run.run_id))
    return Contents(tuple(in_order), tuple(baselines.values()), tuple(notes))


def _count(places: list[str]) -> str:
    return f"{len(places)} {'entry' if len(places) == 1 else 'entries'}"


def _named(places: list[str]) -> str:
    more = f" and {len(places) - NAMED} more" if len(places) > NAMED else ""
    return ", ".join(places[:NAMED]) + more


def _lines(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            yield f"{name}, line {number}", line


class FolderStore:
    """A folder with the entries of a history."""

    def __init__(self, path: Path) -> None:
        self.location = str(path)
        self._path = path

    def exists(self) -> bool:
        """Return whether the store has been written to."""
        return (self._path / HISTORY_NAME).exists() or (self._path / ENTRIES_FOLDER).is_dir()

    def pieces(self) -> Iterator[tuple[str, bytes]]:
        """Yield each piece of JSON with its place, for messages."""
        files = [self._path / HISTORY_NAME, *sorted((self._path / ENTRIES_FOLDER).glob("*.json"))]
        for file in files:
            if not file.exists():
                continue
            try:
                content = file.read_bytes()
            except OSError as error:
                raise HistoryError(f"{file}: cannot be read ({error.strerror}). Check its permissions.") from error
            name = file.relative_to(self._path).as_posix()
            yield from _lines(name, content) if file.name == HISTORY_NAME else ((name, content),)

    def append(self, entries: Iterable[Entry]) -> None:
        """Add entries. Other processes may add to the store at the same time."""
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            # One write at the end of the file, so that writers do not mix their lines. Each line starts with a newline,
            # so that a line that a killed writer left incomplete damages no other.
            lines = b"".join(b"\n" + msgspec.json.encode(entry) + b"\n" for entry in entries)
            append(self._path / HISTORY_NAME, lines, durable=True)
        except OSError as error:
            raise HistoryError(
                f"{self._path / HISTORY_NAME}: cannot be written ({error.strerror}). Give another folder with --store."
            ) from error


class RemoteStore:
    """An address with the entries of a history, one object each."""

    def __init__(self, location: str) -> None:
        self.location = location
        fsspec = import_extra("fsspec", "view")
        try:
            self._system, path = fsspec.core.url_to_fs(location)
        except Exception as error:  # each protocol has its own errors, and so has a missing driver
            raise HistoryError(f"{location}: cannot be opened ({error}). Check the address and its driver.") from error
        self._folder = f"{path.rstrip('/')}/{ENTRIES_FOLDER}"
        self._file = f"{path.rstrip('/')}/{HISTORY_NAME}"

    def exists(self) -> bool:
        """Return whether the store has been written to."""
        return bool(self._names())

    def pieces(self) -> Iterator[tuple[str, bytes]]:
        """Yield each piece of JSON with its place, for messages."""
        names = self._names()
        contents: Any = self._call("read", lambda: self._system.cat(names, on_error="return") if names else {})
        for name in names:
            content = contents[name]
            if isinstance(content, Exception):
                raise HistoryError(f"{self.location}: {name} cannot be read ({content}). Try again.") from content
            short = name.rpartition("/")[2]
            yield from _lines(short, content) if short == HISTORY_NAME else ((short, content),)

    def append(self, entries: Iterable[Entry]) -> None:
        """Add entries. Other processes may add to the store at the same time."""
        self._call("write", lambda: self._system.makedirs(self._folder, exist_ok=True))
        for entry in entries:
            path, content = f"{self._folder}/{object_name(entry)}", msgspec.json.encode(entry)
            self._call("write", lambda path=path, content=content: self._system.pipe_file(path, content))

    def _names(self) -> list[str]:
        # A store that another process writes to gets new objects while it is listed.
        self._system.invalidate_cache()

        def listed() -> list[str]:
            found = [self._file] if self._system.exists(self._file) else []
            if self._system.exists(self._folder):
                found += [name for name in self._system.find(self._folder) if name.endswith(".json")]
            return sorted(found)

        names: list[str] = self._call("read", listed)
        return names

    def _call(self, action: str, call: Any) -> Any:
        try:
            return call()
        except Exception as error:  # each protocol has its own errors
            raise HistoryError(
                f"{self.location}: cannot {action} the history ({type(error).__name__}: {error}). "
                "Check the address and your credentials."
            ) from error


REVISION = "code.revision"

MOST_ARCHIVE_BYTES = 2**30
"""An archive of runs may unpack to this size. It bounds the memory that a hostile archive takes."""


class Added(Struct, frozen=True):
    """The outcome of `add_runs`.

    Attributes:
        store: The history.
        added: Number of runs that were added.
        known: Number of runs that the history already had.
        commits: Revisions of the added runs, in order of the runs.
        left_out: Number of added runs that do not count, by reason. They are kept, but are in no row.
    """

    store: str
    added: int
    known: int
    commits: tuple[str, ...]
    left_out: Mapping[str, int]


def add_runs(
    store: str | Path, runs: Sequence[str | Path], *, arms: Collection[str] = (), repository: str | Path = "."
) -> Added:
    """Add the figures, the fingerprint and the commit of runs to a history. Runs that it has are skipped.

    Args:
        store: A folder or an address that fsspec opens, such as ``s3://bucket/history``. It is created if needed.
        runs: Folders with runs, folders of studies, or ZIP archives of either.
        arms: Arms of the studies to add; all arms without it.
        repository: Folder of the git repository, for the time and the message of each commit.

    Returns:
        The numbers of runs that were added and skipped.

    Raises:
        HistoryError: A path holds no archive, the arm does not exist, or the history cannot be read or written.
        CompareError: A folder holds no runs, or a record cannot be read.
        MissingExtraError: The store is an address, and fsspec is not installed.
    """
    place = open_store(store)
    known = {run.run_id for run in read_store(place).runs} if place.exists() else set()
    found = {run.run_id: run for path in runs for run in read_runs(path, arms=arms, repository=repository)}
    new = [run for run in found.values() if run.run_id not in known]
    place.append(new)
    return Added(
        store=str(store),
        added=len(new),
        known=len(found) - len(new),
        commits=tuple(dict.fromkeys(run.commit for run in new if run.commit is not None)),
        left_out=Counter(run.left_out for run in new if run.left_out is not None),
    )


def read_runs(path: str | Path, *, arms: Collection[str] = (), repository: str | Path = ".") -> tuple[StoredRun, ...]:
    """Read a folder with runs, the folder of a study, or a ZIP archive of either as the entries of a history."""
    with _unpacked(Path(path)) as folder:
        records = _records(folder, path, arms)
    left_out = find_left_out(records)
    runs = [(run, left_out[arm].get(run.path)) for arm, of_arm in records.items() for run in of_arm]
    quality = find_quality([run for run, reason in runs if reason is None])
    revisions = {str(run.facts[REVISION]) for run, _ in runs if run.facts.get(REVISION) is not None}
    commits = {revision: commit_info(revision, Path(repository)) for revision in revisions}
    return tuple(_stored(run, reason, quality, commits) for run, reason in runs)


def _records(folder: Path, path: str | Path, arms: Collection[str]) -> Mapping[str, Sequence[RunRecord]]:
    """Return the runs of each of the arms, or all runs of a folder that is no study."""
    if not (folder / STUDY_NAME).exists():
        if arms:
            raise HistoryError(f'--arm {", ".join(arms)}: "{path}" is not the folder of a study. Leave out --arm.')
        return {"": find_records(folder)}
    records = study_arms(folder)
    unknown = [arm for arm in arms if arm not in records]
    if unknown:
        raise HistoryError(
            f'--arm {unknown[0]}: the study "{path}" has no such arm. Choose from: {", ".join(records)}.'
        )
    return {arm: of_arm for arm, of_arm in records.items() if not arms or arm in arms}


def _stored(
    run: RunRecord, left_out: str | None, quality: Quality | None, commits: Mapping[str, tuple[float, str] | None]
) -> StoredRun:
    revision = run.facts.get(REVISION)
    commit = None if revision is None else str(revision)
    commit_unix_s, subject = commits.get(str(commit)) or (None, None)
    return StoredRun(
        run_id=run.run_id,
        started_unix_s=run.started_unix_s,
        added_unix_s=time.time(),
        commit=commit,
        commit_unix_s=commit_unix_s,
        subject=subject,
        facts={name: value for name, value in run.facts.items() if name != REVISION},
        values=run_values(run, quality, None),
        quality=quality.name if quality is not None else None,
        left_out=left_out,
        study=run.place.study if run.place is not None else None,
        arm=run.place.arm if run.place is not None else None,
    )


@contextmanager
def _unpacked(path: Path) -> Iterator[Path]:
    """Return the folder of a path; an archive is unpacked to a temporary one, without traces and other large files."""
    if not path.is_file() or (path.suffix.lower() != ".zip" and not zipfile.is_zipfile(path)):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="lightning_perf_history_") as folder:
        try:
            with zipfile.ZipFile(path) as archive:
                members = [info for info in archive.infolist() if _is_log(info.filename)]
                if sum(info.file_size for info in members) > MOST_ARCHIVE_BYTES:
                    raise HistoryError(f"{path}: its logs are larger than 1 GiB. Unpack it, and give the folder.")
                archive.extractall(folder, members)
        except (OSError, zipfile.BadZipFile, RuntimeError) as error:  # RuntimeError: the archive has a password
            raise HistoryError(f"{path}: cannot be read as a ZIP archive ({error}). Download it again.") from error
        # An archive of a folder often has that folder as its only member.
        inside = list(Path(folder).iterdir())
        yield inside[0] if len(inside) == 1 and inside[0].is_dir() else Path(folder)


def _is_log(name: str) -> bool:
    return name.endswith((".jsonl", ".json")) and not name.endswith(".trace.json")
