"""ErrorReporter become one warning."""

from __future__ import annotations

import errno
import warnings
from pathlib import Path

import pytest

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.cli import main
from lightning_perf.run_files.steps import STEPS, StepSample


def test_the_first_fault_of_a_kind_warns_and_all_are_kept() -> None:
    errors = ErrorReporter()
    with pytest.warns(RuntimeWarning, match="not watched"):
        errors.report("the device is not watched", OSError("no driver"), kind="device")
    with pytest.warns(RuntimeWarning, match=r"the trace is lost, training continues \(OSError: disk full\)"):
        errors.report("the trace is lost", OSError("disk full"))
    errors.report("more is lost", ValueError("x"))  # a further warning would be an error in this suite
    assert len(errors.messages) == 3


def test_no_error_where_warnings_are_errors(caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ErrorReporter().report("the trace is lost", OSError("disk full"))
    assert "disk full" in caplog.text


@pytest.mark.parametrize(
    ("number", "steps", "said"),
    [
        (errno.ENOSPC, True, "Note The disk was full while this run wrote its files"),
        (errno.EDQUOT, False, "Note The disk was full while this run wrote its files"),
        (errno.EIO, True, ""),
    ],
)
def test_a_run_that_outgrew_its_disk_says_so(
    tmp_path: Path, number: int, steps: bool, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    errors = ErrorReporter()
    errors.folder = tmp_path
    with pytest.warns(RuntimeWarning, match="step times are no longer saved"):
        errors.report("step times are no longer saved", OSError(number, "no space"))  # the message itself is not saved
    if steps:
        samples = [StepSample(step, 10_000_000, 0, None, 2, False) for step in range(20)]
        (tmp_path / "steps.rank0.jsonl").write_bytes(STEPS.encode(*samples))
    assert main(["analyze", str(tmp_path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert said in shown
    assert ("disk was full" in shown) == bool(said)
