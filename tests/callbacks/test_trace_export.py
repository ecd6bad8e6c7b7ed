from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from lightning_perf.callbacks.trace_export import export_trace


class Recording:
    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_text('{"traceEvents": []}')
        if self.fails:
            raise RuntimeError("half-way")


def test_a_trace_is_packed_under_its_name(tmp_path: Path) -> None:
    path = export_trace(Recording(), tmp_path, "rank0.17")
    assert path == tmp_path / "rank0.17.pt.trace.json.gz"
    assert gzip.decompress(path.read_bytes()) == b'{"traceEvents": []}'
    assert list(tmp_path.iterdir()) == [path]


def test_a_failing_export_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="half-way"):
        export_trace(Recording(fails=True), tmp_path, "rank0.17")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_and_gets_its_room_back(tmp_path: Path) -> None:
    class Full:
        def export_chrome_trace(self, path: str) -> None:
            Path(f"{path}.tmp").write_text("{")  # torch writes this first, and raises nothing when that fails

    (tmp_path / "rank0.16.pt.trace.json.gz").touch()
    with pytest.raises(OSError, match="its disk may be full"):
        export_trace(Full(), tmp_path, "rank0.17")
    assert [path.name for path in tmp_path.iterdir()] == ["rank0.16.pt.trace.json.gz"]
