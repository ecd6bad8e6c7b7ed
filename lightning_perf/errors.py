"""Errors that users can fix, and the reason that another error gives."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """The exit code of a ``lightning-perf`` command.

    Example:
        >>> ExitCode.CHECK_FAILED == 1
        True
    """

    SUCCESS = 0
    """The command did its work. Without a gate, every verdict of a comparison is a success."""
    CHECK_FAILED = 1
    """A check failed: a gate, ``--fail-on`` or a limit, a candidate that diverged or did not finish, or no result."""
    USAGE = 2
    """An option, an input or an output file cannot be used, or lightning_perf has a bug."""
    UNFAIR = 3
    """The runs differ in more than the setting being tested, so they were not compared."""
    INCONCLUSIVE = 4
    """A gate could not be decided: the interval includes its limit."""
    INVALID_RUNS = 5
    """An arm has no valid run."""
    INTERRUPTED = 130
    """Ctrl-C stopped the command."""


_REASON_LENGTH = 240
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_GENERIC = re.compile(r"^(failed to|while executing|set torch|the following|traceback|backend compiler)", re.IGNORECASE)


_HINT = re.compile(
    r"for (more|extended|c\+\+)|if you|consider using|caused by: \(_|the error above|\(refer|you can|user stack|to see|"
    r"please (file|report)|try |- (modify|debug|create)|## ",
    re.IGNORECASE,
)
_WORKER_TRACEBACK = re.compile(r"\ACaught .*\n  File [^\n]*\n(?:    [^\n]*\n)*", re.DOTALL)
"""Torch puts the traceback of a worker process into the message of its error."""

_FILE = re.compile(r'File "(?P<path>[^"]+)", line (?P<line>\d+), in \S+')


class UserError(Exception):
    """An error that the user can fix. The command line prints its message without a traceback."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE


class LocatedError(UserError):
    """An error with a message that names the place, the problem and the fix.

    Args:
        where: The file, folder or option at fault.
        problem: The problem, as a clause without a full stop.
        action: The fix, as a sentence without a full stop.
    """

    def __init__(self, where: object, problem: str, action: str) -> None:
        super().__init__(f"{where}: {problem}. {action}.")
        self.where = str(where)
        self.problem = problem
        self.action = action

    def __reduce__(self) -> tuple[type[LocatedError], tuple[str, str, str]]:
        # Exceptions cross process boundaries (parallel ranks, DataLoader workers). The default would lose arguments.
        return type(self), (self.where, self.problem, self.action)


class TraceError(LocatedError):
    """A trace or another file of a run cannot be read. The message names it, the problem, and the fix."""


class ReportError(UserError, ValueError):
    """A file could not be read as a report. The message says why."""


def reason_of(error: BaseException) -> str:
    r"""Return the innermost cause of an error, on one line.

    Compilers wrap the cause in long reports about their own stages; the cause shows the problem with the model.
    """
    cause, lines = _cause(error)
    if not lines:
        return type(cause).__name__
    line = lines[0]
    return f"{type(cause).__name__}: {line if len(line) <= _REASON_LENGTH else line[: _REASON_LENGTH - 1] + '…'}"


def whole_reason_of(error: BaseException) -> str:
    r"""Return all that an error says about its innermost cause, on one line, without hints for developers of compilers.

    Example:
        >>> whole_reason_of(ValueError('Constraints violated!\nFor more information, see …\n  - b is always 2\n'
        ...     'The following call raised this error:\n  File "/home/u/net.py", line 7, in forward\n    x.view(2, 3)'))
        'ValueError: Constraints violated! - b is always 2 net.py, line 7: x.view(2, 3)'
    """
    cause, lines = _cause(error)
    text = " ".join(line for line in lines if not _HINT.match(line))
    return f"{type(cause).__name__}: {_FILE.sub(_short_place, text)}" if text else type(cause).__name__


def _cause(error: BaseException) -> tuple[BaseException, list[str]]:
    """Return the innermost cause of an error, and the lines of its message without generic ones."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = _WORKER_TRACEBACK.sub("", _ANSI.sub("", str(error))).removeprefix(f"{type(error).__name__}: ")
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    return error, [line for line in lines if not _GENERIC.match(line)] or lines


def _short_place(place: re.Match[str]) -> str:
    name = place["path"].replace("\\", "/").rpartition("/")[2]
    return f"{name}, line {place['line']}:"


class CompareError(UserError):
    """A comparison or a study cannot continue. The message names the cause, the place and the fix."""


class InvalidRunsError(CompareError):
    """An arm has no valid run left, or no block has a valid run of both arms."""

    exit_code = ExitCode.INVALID_RUNS
