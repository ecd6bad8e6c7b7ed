from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from lightning_perf.tensorboard.cache import BESIDE, key_of
from lightning_perf.tensorboard.discovery import Run
from lightning_perf.tensorboard.storage import LocalStorage, RemoteStorage, StorageError
from lightning_perf.tensorboard.task import Task, make_task
from tests.tensorboard.support import stored


def test_a_local_task_names_the_real_files(logdir: Path, user_cache: Path) -> None:
    run = Run("fit", "run", LocalStorage(logdir), "fit", (stored("fit/a.json"),), (stored("fit/run.jsonl"),))
    task = make_task(run, key_of(run))
    assert (task.kind, task.url, task.traces) == ("report", None, 1)
    assert [file.local for file in task.files] == [str(logdir / "fit" / name) for name in ("a.json", "run.jsonl")]
    assert task.places[0] == str(logdir / "fit" / BESIDE)
    assert task.fetched == str(user_cache / "fetched")


def test_a_remote_task_names_the_url_with_its_credentials() -> None:
    run = Run("s", "study", RemoteStorage("ftp://me:secret@host/logs"), "s", (), (stored("s/study.json"),))
    task = make_task(run, "k")
    assert (task.kind, task.url) == ("study", "ftp://me:secret@host/logs")
    assert task.location == "ftp://host/logs"
    assert task.files[0].local is None


def test_a_task_survives_its_way_to_the_worker(logdir: Path) -> None:
    task = make_task(Run("ä", "trace", LocalStorage(logdir), "ä", (stored("ä/\n.json"),), ()), "k")
    data = msgspec.json.encode(task)
    assert b"\n" not in data
    assert msgspec.json.decode(data, type=Task) == task


def test_a_file_outside_the_root_is_refused(logdir: Path) -> None:
    (logdir / "a.json").symlink_to("/etc/passwd")
    with pytest.raises(StorageError, match="leads out"):
        make_task(Run(".", "trace", LocalStorage(logdir), "", (stored("a.json"),), ()), "k")
