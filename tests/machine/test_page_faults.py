import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_perf.machine import page_faults
from lightning_perf.machine.page_faults import (
    KEEP_MEMORY,
    allocator_name,
    count_page_faults,
    keep_memory,
    page_fault_ns,
)

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
GLIBC = pytest.mark.skipif(allocator_name() != "glibc", reason="needs glibc's allocator")

BLOCKS = """
import ctypes, sys
from lightning_perf.machine.page_faults import count_page_faults, keep_memory
if "keep" in sys.argv:
    assert keep_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
faults = []
for _ in range(5):
    before = count_page_faults()
    block = libc.malloc(64 << 20)  # more than glibc ever keeps by itself
    ctypes.memset(block, 1, 64 << 20)
    libc.free(block)
    faults.append(count_page_faults() - before)
print(min(faults[1:]))
"""


def faults_of_blocks(*arguments: str, **environment: str) -> int:
    """The least faults of taking, filling and freeing a block of 64 MiB once more."""
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS, *arguments],
        env={name: value for name, value in os.environ.items() if "MALLOC" not in name} | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return int(done.stdout)


@LINUX
def test_a_fault_a_fresh_page() -> None:
    pages = 500
    before = count_page_faults()
    with mmap.mmap(-1, pages * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as fresh:
        fresh.madvise(mmap.MADV_NOHUGEPAGE)
        fresh[:: mmap.PAGESIZE] = bytes(pages)
    after = count_page_faults()
    assert before is not None
    assert after is not None
    assert pages <= after - before < 2 * pages


@LINUX
def test_a_fault_takes_time() -> None:
    cost_ns = page_fault_ns()
    assert cost_ns is not None
    assert 10 < cost_ns < 1e7


def test_faults_that_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_faults, "count_page_faults", lambda: None)
    if sys.platform != "win32":
        assert page_fault_ns() is None


@GLIBC
def test_glibc_gives_back_and_keeps_when_told() -> None:
    pages = (64 << 20) // mmap.PAGESIZE
    given_back = faults_of_blocks()
    assert given_back > 100  # as many as pages, or as huge pages
    assert given_back <= 1.1 * pages
    assert faults_of_blocks("keep") < 0.1 * given_back
    assert faults_of_blocks(**KEEP_MEMORY) < 0.1 * given_back


@pytest.mark.parametrize(
    ("library", "name"),
    [("/usr/lib/libjemalloc.so.2", "jemalloc"), ("/opt/libtcmalloc_minimal.so.4", "tcmalloc"), ("/lib/libc.so", None)],
)
def test_other_allocators(library: str, name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "maps").write_text(f"7f00-7f01 r-xp 00000000 08:01 1 {library}\n")
    monkeypatch.setattr(page_faults, "MAPS", tmp_path / "maps")
    monkeypatch.setattr(os, "confstr", lambda _: None, raising=False)
    assert allocator_name() == name
    assert not keep_memory()


def test_no_linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_faults, "MAPS", tmp_path / "nothing")
    assert allocator_name() is None
