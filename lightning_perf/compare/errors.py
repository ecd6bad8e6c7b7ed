"""Errors that comparisons and studies raise for problems that you can fix."""

from __future__ import annotations

from lightning_perf.errors import ExitCode, UserError


class CompareError(UserError):
    """A comparison or a study cannot continue. The message names the cause, the place and the fix."""


class InvalidRunsError(CompareError):
    """An arm has no valid run left, or no block has a valid run of both arms."""

    exit_code = ExitCode.INVALID_RUNS
