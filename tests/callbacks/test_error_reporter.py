"""Faults become one warning."""

from __future__ import annotations

import warnings

import pytest

from lightning_perf.callbacks.error_reporter import Faults


def test_the_first_fault_warns_and_all_are_kept() -> None:
    faults = Faults()
    with pytest.warns(RuntimeWarning, match=r"the trace is lost, training goes on \(OSError: disk full\)"):
        faults.report("the trace is lost", OSError("disk full"))
    faults.report("more is lost", ValueError("x"))  # a second warning would be an error in this suite
    assert len(faults.messages) == 2


def test_no_error_where_warnings_are_errors(caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Faults().report("the trace is lost", OSError("disk full"))
    assert "disk full" in caplog.text
