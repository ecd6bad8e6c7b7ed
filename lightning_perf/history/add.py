"""Add runs to a history."""

from __future__ import annotations

import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from lightning_perf.compare.records.metrics import Quality, find_quality, run_values
from lightning_perf.compare.records.record import RunRecord, find_records
from lightning_perf.compare.study.results import study_arms
from lightning_perf.compare.verdicts.facts import find_left_out
from lightning_perf.history.store import HistoryError, StoredRun, open_store, read_store
from lightning_perf.run_files.journal import STUDY_NAME
from lightning_perf.workers.revision import commit_info

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
    """Read a folder with runs, the folder of a study, or a ZIP archive of either as the entries of a history.

    Raises:
        HistoryError: The archive cannot be read, or the arm does not exist.
        CompareError: The folder holds no runs, or a record cannot be read.
    """
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
    if not path.is_file() or not zipfile.is_zipfile(path):
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
