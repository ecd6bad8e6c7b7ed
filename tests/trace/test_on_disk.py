"""Columns on disk: the same trace as in memory, whatever becomes of the disk."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from lightning_perf.report.recording import analyze_recording, encode_recording
from lightning_perf.run_files.user_cache import CACHE_VARIABLE, OFF
from lightning_perf.trace import on_disk, parallel, reader
from lightning_perf.trace.columns import Spans
from lightning_perf.trace.on_disk import ColumnFile, release_columns
from lightning_perf.trace.reader import read_trace
from tests.support.every_event import everything
from tests.support.same_trace import assert_same_trace

ALL_BYTES = 64
"""With this limit, nearly all columns of the small trace are on disk, in several parts."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def path(tmp_path: Path, cache: Path) -> Path:
    path = tmp_path / "trace.json"
    path.write_text(everything())
    return path


@pytest.fixture
def in_memory(path: Path) -> Any:
    return read_trace(path)


@pytest.fixture
def small_limit(in_memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_disk, "LARGE_BYTES", ALL_BYTES)


def mapped() -> int:
    gc.collect()
    return len(on_disk._MAPPINGS)


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize("processes", [1, 2])
def test_the_same_trace_and_documents(
    path: Path, in_memory: Any, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PARALLEL_BYTES", 1)
    monkeypatch.setattr(parallel, "BLOCK_BYTES", 1 << 13)
    before = mapped()
    trace = read_trace(path, processes=processes)
    assert mapped() > before + 30
    release_columns()
    assert_same_trace(in_memory, trace)
    document = encode_recording(analyze_recording([path], processes=processes))
    del trace
    assert mapped() == before
    monkeypatch.setattr(on_disk, "LARGE_BYTES", 1 << 40)
    assert document == encode_recording(analyze_recording([path]))


def full_after(size: int) -> Callable[[int, memoryview, int], int]:
    """A disk that takes so many bytes, of the last write a part."""
    written = 0
    write = os.pwrite

    def refuse(file: int, data: memoryview, at: int) -> int:
        nonlocal written
        if written >= size:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = write(file, data[: size - written], at)
        written += done
        return done

    return refuse


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize("size", [0, 1, 5000, 20001, 60000])
def test_a_disk_that_fills_up(path: Path, in_memory: Any, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", full_after(size))
    assert_same_trace(in_memory, read_trace(path))


@pytest.mark.usefixtures("small_limit")
def test_room_is_left_on_the_disk(path: Path, in_memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    state = os.statvfs(path)
    full = os.statvfs_result((state[0], state[1], state[2], state[3], (1 << 30) // state[1], *state[5:10]))
    monkeypatch.setattr(os, "fstatvfs", lambda _: full)
    before = mapped()
    trace = read_trace(path)
    assert mapped() == before
    assert_same_trace(in_memory, trace)


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize("fault", ["off", "a file", "no folder at all"])
def test_without_a_cache_folder(
    path: Path, in_memory: Any, cache: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "off":
        monkeypatch.setenv(CACHE_VARIABLE, OFF)
    else:
        cache.write_text("a file is in the way")
    if fault == "no folder at all":
        monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: (_ for _ in ()).throw(FileNotFoundError(2, "none")))
    before = mapped()
    trace = read_trace(path)
    assert (mapped() > before) == (fault != "no folder at all")
    assert_same_trace(in_memory, trace)
    if fault == "off":
        assert not cache.exists()


@pytest.mark.usefixtures("small_limit", "cache")
def test_no_file_has_a_name(path: Path, cache: Path) -> None:
    trace = read_trace(path)
    assert len(trace.operators)
    assert [entry for entry in cache.rglob("*") if entry.is_file()] == []


def arrays(found: object) -> Iterator[np.ndarray]:
    if isinstance(found, np.ndarray):
        yield found
    elif isinstance(found, msgspec.Struct):
        yield from (each for name in found.__struct_fields__ for each in arrays(getattr(found, name)))
    elif isinstance(found, (tuple, list)):
        yield from (each for value in found for each in arrays(value))
    elif isinstance(found, dict):
        yield from arrays(list(found.values()))


@pytest.mark.usefixtures("cache")
def test_arrays_in_other_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_disk, "LARGE_BYTES", 100)
    large, small = np.arange(100), np.arange(3)
    columns = (large, large + 1, large.astype(np.int32), large.astype(np.int32)[::-1])
    value = (Spans(*columns), {"a": large[::2], "b": small}, "text", 7, np.broadcast_to(small[:1], 100))
    found = on_disk.on_disk(value)
    assert found[2:4] == ("text", 7)
    assert [each.tolist() for each in arrays(found)] == [each.tolist() for each in arrays(value)]
    assert [each.flags.writeable for each in arrays(found)] == [False] * 5 + [True, False]
    assert found[1]["b"] is small


@pytest.mark.usefixtures("cache")
def test_an_empty_file_of_a_column() -> None:
    file = ColumnFile()
    assert file.append(memoryview(b""))
    assert file.numbers(np.dtype("i4")).tolist() == []
