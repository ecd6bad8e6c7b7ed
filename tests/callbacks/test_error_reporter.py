"""ErrorReporter become one warning."""

from __future__ import annotations

import warnings

import pytest

from lightning_perf.callbacks.error_reporter import ErrorReporter


def test_the_first_fault_warns_and_all_are_kept() -> None:
    errors = ErrorReporter()
    with pytest.warns(RuntimeWarning, match=r"the trace is lost, training continues \(OSError: disk full\)"):
        errors.report("the trace is lost", OSError("disk full"))
    errors.report("more is lost", ValueError("x"))  # a second warning would be an error in this suite
    assert len(errors.messages) == 2


def test_no_error_where_warnings_are_errors(caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ErrorReporter().report("the trace is lost", OSError("disk full"))
    assert "disk full" in caplog.text
