"""The cache of columns: the same trace as decoded, never an outdated or damaged one, and no fault of it is a fault of
the reading."""

import gzip
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from lightning_perf.errors import TraceError
from lightning_perf.report.build import analyze
from lightning_perf.run_files.user_cache import CACHE_VARIABLE, OFF
from lightning_perf.trace import column_cache, reader
from lightning_perf.trace.on_disk import release_columns
from lightning_perf.trace.reader import read_trace
from lightning_perf.trace.trace import Trace
from tests.support.same_trace import assert_same_trace
from tests.support.trace_builder import TraceBuilder

T = TypeVar("T")

LONG_AGO_S = 1_700_000_000
TENSORS = {"parameters": [[0, 4096, 512]], "gradients": [[-1, 8192, 64]]}

CORPUS_FILES = (
    "hta/nccl_parser_config/nccl_data.b4b6dce.json.gz",
    "tracelens/mi300/ddp_resnet18_no_pool/train_resnet18.941dea2.json.gz",
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own, for files of any size."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    for name in ("LARGE_BYTES", "LARGE_GZIP_BYTES"):
        monkeypatch.setattr(column_cache, name, 1)
    monkeypatch.setattr(reader, "CACHED_BYTES", 1)
    return tmp_path / "cache" / "columns"


def write(path: Path, duration_us: int = 30) -> Path:
    builder = TraceBuilder(
        **{"lightning_perf.tensors": {"start": TENSORS, "end": TENSORS, "available_bytes": {"0": 9}}}
    )
    builder.rank(1, 2).gpu("NVIDIA A100").thread_name("main é").step(1, 0, 100)
    builder.op("aten::mm", 5, duration_us, dims=[[2, 3]])
    builder.launch("sgemm", call_us=6, call_duration_us=1, start_us=8, duration_us=9).memory(7, 512)
    builder.write(path)
    os.utime(path, (LONG_AGO_S, LONG_AGO_S))
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "one.pt.trace.json")


@contextmanager
def decoded(monkeypatch: pytest.MonkeyPatch, times: int) -> Iterator[None]:
    """The number of files that are decoded in the block."""
    seen = []
    decode = reader._decoded

    def count(*arguments: Any) -> Trace:
        seen.append(arguments)
        return decode(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(reader, "_decoded", count)
        yield
    assert len(seen) == times


def without_cache(read: Callable[[Path], T], path: Path, monkeypatch: pytest.MonkeyPatch) -> T:
    with monkeypatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, OFF)
        return read(path)


def test_the_second_reader_gets_the_same_trace(path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with decoded(monkeypatch, 1):
        first, second = read_trace(path), read_trace(path)
    alone = without_cache(read_trace, path, monkeypatch)
    assert_same_trace(alone, first)
    assert_same_trace(alone, second)
    assert second.tensors[0].available_bytes == {0: 9}
    assert second.sources == (str(path),)
    release_columns()  # they are read from the file again
    assert_same_trace(alone, second)
    with pytest.raises(ValueError, match="read-only"):
        second.operators.start_ns[0] = 7
    (entry,) = cache.iterdir()
    assert entry.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("file", CORPUS_FILES)
def test_a_real_trace(file: str, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with decoded(monkeypatch, 1):
        traces = [read_trace(corpus / "traces" / file) for _ in range(2)]
        report = analyze(corpus / "traces" / file).to_json()
    for trace in traces:
        assert_same_trace(trace, without_cache(read_trace, corpus / "traces" / file, monkeypatch))
    assert report == without_cache(analyze, corpus / "traces" / file, monkeypatch).to_json()


def test_a_copy_elsewhere_is_known(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = shutil.copy2(path, tmp_path / "other.json")
    read_trace(path)
    with decoded(monkeypatch, 0):
        assert read_trace(copy).sources == (str(copy),)


def test_a_change_of_the_same_size_and_time_is_seen(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, status = read_trace(path), path.stat()
    write(path, 31)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size
    with decoded(monkeypatch, 1):
        after = read_trace(path)
    assert after.operators.duration_ns.sum() == before.operators.duration_ns.sum() + 1000


def test_another_decoder_reads_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_trace(path)
    monkeypatch.setattr(column_cache, "decoder_version", lambda: b"another")
    with decoded(monkeypatch, 1):
        read_trace(path)


def test_the_version_of_the_decoder_is_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for source in Path(column_cache.__file__).parent.glob("*.py"):
        shutil.copy(source, tmp_path)
    monkeypatch.setattr(column_cache, "__file__", str(tmp_path / "column_cache.py"))
    fresh = column_cache.decoder_version.__wrapped__
    assert fresh() == column_cache.decoder_version()
    with (tmp_path / "assembly.py").open("a") as code:
        code.write("# changed\n")
    assert fresh() != column_cache.decoder_version()
    monkeypatch.setattr(column_cache, "__file__", str(tmp_path / "elsewhere" / "column_cache.pyc"))
    with pytest.raises(OSError, match="column_cache"):
        fresh()


def test_what_is_not_kept(path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.utime(path)  # it might change again with the same time
    read_trace(path)
    os.utime(path, (LONG_AGO_S, LONG_AGO_S))
    monkeypatch.setattr(column_cache, "LARGE_BYTES", path.stat().st_size + 1)
    read_trace(path)
    monkeypatch.setattr(column_cache, "LARGE_BYTES", 1)
    monkeypatch.setenv(CACHE_VARIABLE, OFF)
    read_trace(path)
    for missing in (path.with_name("none.json"), path.parent):
        with pytest.raises(TraceError):
            read_trace(missing)
    assert not cache.exists()


def test_a_file_that_changes_while_it_is_read_is_not_kept(
    path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = reader._decoded
    monkeypatch.setattr(reader, "_decoded", lambda *given: (decode(*given), write(path, 31))[0])
    read_trace(path)
    assert list(cache.iterdir()) == []


def test_a_gzip_file_is_large_sooner(path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_cache, "LARGE_BYTES", 1 << 30)
    read_trace(path)
    assert not cache.exists()
    path.write_bytes(gzip.compress(path.read_bytes()))
    os.utime(path, (LONG_AGO_S, LONG_AGO_S))
    read_trace(path)
    assert len(list(cache.iterdir())) == 1


def test_a_damaged_entry_is_replaced(path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read_trace(path)
    (entry,) = cache.iterdir()
    content = entry.read_bytes()
    used = [at for at in range(len(content)) if content[at] not in (0, 32)]
    faults = [content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] for at in used[:: len(used) // 60]]
    faults += [content[:size] for size in (0, 10, 60, len(content) // 2, len(content) - 65)]
    faults.append(b"\x80\x04" + content)  # a pickle is not read at all
    for fault in faults:
        entry.write_bytes(fault)
        with decoded(monkeypatch, 1):
            assert_same_trace(read_trace(path), whole)
        assert entry.read_bytes() == content


def test_a_full_disk(path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full")

    @contextmanager
    def to_full_disk(*_: Any, **__: Any) -> Iterator[Any]:
        with full.open("wb") as file:
            yield file

    with monkeypatch.context() as patch:
        patch.setattr(column_cache, "atomic_file", to_full_disk)
        whole = read_trace(path)
        assert_same_trace(read_trace(path), whole)
    assert list(cache.iterdir()) == []
    usage = shutil.disk_usage(cache)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 30))
    read_trace(path)
    assert list(cache.iterdir()) == []


def test_a_folder_that_cannot_be_written(path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", refuse)
        whole = read_trace(path)
    cache.parent.write_text("a file is in the way")
    assert_same_trace(read_trace(path), whole)
    cache.parent.unlink()
    cache.parent.mkdir()
    elsewhere = path.parent / "elsewhere"
    elsewhere.mkdir()
    cache.symlink_to(elsewhere)  # a link could lead anywhere
    assert_same_trace(read_trace(path), whole)
    assert list(elsewhere.iterdir()) == []
    cache.unlink()
    read_trace(path)
    cache.rename(elsewhere / "columns")
    cache.symlink_to(elsewhere / "columns")
    with decoded(monkeypatch, 1):
        read_trace(path)
    cache.unlink()
    (elsewhere / "columns").rename(cache)
    monkeypatch.setattr(os, "utime", refuse)  # the entries can only be read
    with decoded(monkeypatch, 0):
        assert_same_trace(read_trace(path), whole)


def test_the_oldest_entries_make_room(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [write(tmp_path / f"{number}.json", 30 + number) for number in range(3)]
    for path in paths[:2]:
        read_trace(path)
    for age, entry in enumerate(sorted(cache.iterdir(), key=lambda entry: entry.stat().st_mtime_ns)):
        os.utime(entry, (LONG_AGO_S + age, LONG_AGO_S + age))
    read_trace(paths[0])  # used last
    monkeypatch.setattr(column_cache, "MOST_BYTES", 2 * max(entry.stat().st_size for entry in cache.iterdir()))
    read_trace(paths[2])
    with decoded(monkeypatch, 0):
        read_trace(paths[0])
        read_trace(paths[2])
    with decoded(monkeypatch, 1):
        read_trace(paths[1])


def test_processes_that_read_at_once(path: Path, cache: Path) -> None:
    whole = read_trace(path)
    code = f"""
import sys
from pathlib import Path
from lightning_perf.trace import column_cache
from lightning_perf.trace import reader
column_cache.LARGE_BYTES = reader.CACHED_BYTES = 1
read_trace = reader.read_trace
for _ in range(40):
    assert len(read_trace({str(path)!r}).operators) == {len(whole.operators)}
    for entry in Path({str(cache)!r}).iterdir():
        entry.unlink(missing_ok=True)
"""
    running = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate()[1] for process in running] == ["", "", ""]
    assert_same_trace(read_trace(path), whole)
