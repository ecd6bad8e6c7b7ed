from __future__ import annotations

from pathlib import Path

import pytest

from lightning_perf.errors import TraceError
from lightning_perf.run_files.captures import WINDOWS, RecordedWindow

VALUES = (RecordedWindow("", 10, 17, 5, 1_000, 2_000, 3_000), RecordedWindow("slow-step-80", 80, 83, 3, 4, 5, 6))


def test_round_trip_with_a_torn_last_line(tmp_path: Path) -> None:
    path = WINDOWS.path(tmp_path, 0)
    path.write_bytes(WINDOWS.encode(*VALUES) + WINDOWS.encode(VALUES[0])[:20])
    assert WINDOWS.read(path) == VALUES


@pytest.mark.parametrize("line", [b'{"capture":""}\n', b'{"capture":"","first_step":-1}\n', b"[]\n", b"\xff\n"])
def test_what_is_no_window_is_an_error_that_names_the_line(tmp_path: Path, line: bytes) -> None:
    path = WINDOWS.path(tmp_path, 0)
    path.write_bytes(WINDOWS.encode(VALUES[0]) + line)
    with pytest.raises(TraceError, match=r"windows\.rank0\.jsonl.*line 2 is no record of a profiler window"):
        WINDOWS.read(path)
