from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lightning_perf.tensorboard.worker import ReadingProgress

pytestmark = pytest.mark.skipif(not Path("/proc/self/fdinfo").exists(), reason="needs /proc")


def test_follows_reading_in_this_process(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"x" * 100)
    progress = ReadingProgress({str(tmp_path / name): 100 for name in ("a", "b")})
    assert progress.look() == 0.0
    with (tmp_path / "a").open("rb", buffering=0) as first:
        first.read(50)
        assert progress.look() == 0.25
        first.read()
        assert progress.look() == 0.5
    assert progress.look() == 0.5  # closed files stay read
    with (tmp_path / "b").open("rb", buffering=0) as second:
        second.read()
        assert progress.look() == 1.0
        second.seek(0)
        assert progress.look() == 1.0


def test_follows_reading_in_a_child(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 100)
    progress = ReadingProgress({str(path): 100})
    code = f"f = open({str(path)!r}, 'rb', 0); f.read(80); print('read', flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "read\n"
        assert progress.look() == 0.8
        child.stdin.write("\n")


def test_nothing_to_read_is_all_read() -> None:
    assert ReadingProgress({}).look() == 1.0
