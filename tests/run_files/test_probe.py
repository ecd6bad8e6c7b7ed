from __future__ import annotations

from pathlib import Path

import pytest

from lightning_perf.errors import TraceError
from lightning_perf.run_files.probe import PROBE_NAME, Probe, ProbedCall, ProbedChange, read_probe, write_probe

CHANGE = ProbedChange("bf16", "bf16-mixed", 5.0, 4.0, 6.0, 0.5, 80.0, 7)
CALL = ProbedCall("conv2d", "[[1]]", 2.0, 60.0, 30.0, {"bf16": 20.0})
PROBE = Probe("A CPU", 0, ("rank0.json",), 100.0, 90.0, 80.0, 4.5, (CHANGE,), (CALL,), {"my::op": "why"})


def test_a_probe_is_written_and_read(tmp_path: Path) -> None:
    write_probe(tmp_path, PROBE)
    assert read_probe(tmp_path / PROBE_NAME) == PROBE
    assert PROBE.change("bf16") == CHANGE
    assert PROBE.change("tf32") is None


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"device": 3}', b"\xff\xfe"])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / PROBE_NAME).write_bytes(content)
    with pytest.raises(TraceError, match="is not the result of a probe"):
        read_probe(tmp_path / PROBE_NAME)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read_probe(tmp_path / PROBE_NAME)
