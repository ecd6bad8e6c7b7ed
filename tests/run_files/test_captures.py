from __future__ import annotations

from pathlib import Path

import pytest

from lightning_perf.errors import TraceError
from lightning_perf.run_files.captures import CAPTURES, CaptureRecord, CaptureTrigger, Slowdown, is_capture_folder

RECORDS = (
    CaptureRecord("slow-step-12", CaptureTrigger.SLOW_STEPS, 11, Slowdown(100, 125, (200, 210, 220))),
    CaptureRecord("on-demand-40", CaptureTrigger.SIGNAL, 39),
)


def test_round_trip_with_a_torn_last_line(tmp_path: Path) -> None:
    path = tmp_path / "captures.rank0.jsonl"
    path.write_bytes(CAPTURES.encode(*RECORDS) + b'{"folder":"slow-st')
    assert CAPTURES.read(path) == RECORDS


def test_what_is_no_capture_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "captures.rank0.jsonl"
    path.write_bytes(b'{"folder":"x","trigger":"boredom","step":1}\n')
    with pytest.raises(TraceError, match="line 1 is no record of a capture"):
        CAPTURES.read(path)


def test_a_capture_folder_has_its_name_and_the_record_beside_it(tmp_path: Path) -> None:
    for name in ("slow-step-12", "on-demand-3", "slow-step-x", "version_0"):
        (tmp_path / name).mkdir()
    assert not is_capture_folder(tmp_path / "slow-step-12")  # somebody's own folder of that name
    (tmp_path / "captures.rank1.jsonl").touch()
    found = [path.name for path in sorted(tmp_path.iterdir()) if is_capture_folder(path)]
    assert found == ["on-demand-3", "slow-step-12"]
