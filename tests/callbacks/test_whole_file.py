from __future__ import annotations

from pathlib import Path

import pytest

from lightning_perf.callbacks.whole_file import write_whole


def test_a_file_is_replaced_whole_or_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    write_whole(path, b"first")
    write_whole(path, b"second")

    def full(self: Path, content: bytes) -> int:
        self.touch()
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="no space left"):
        write_whole(path, b"third")
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"second"
