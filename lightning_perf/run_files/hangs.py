"""``hang.rank0.jsonl``: when no step or batch of a rank ended for long, where the rank was, and when it continued."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from lightning_perf.run_files.jsonl import Count, RankLog
from lightning_perf.units import format_duration


class HangReport(Struct, frozen=True):
    """The position of a rank in which no step or batch ended for long.

    Attributes:
        step: The step that it is in, by the Trainer's own count.
        phase: The phase of the step, or other work, e.g. ``validation, backward``.
        place: File and line of the thread that trains: the innermost of the user's code, and the innermost of all.
        since_s: Unix time from which on nothing ended.
        seconds: The time until the report.
        workers: The state of each child process.
        collective: The last collective operation that torch's flight recorder has; empty without one.
        continued: Whether the rank has continued: the report is the last of this standstill.
    """

    rank: Count
    step: Count
    phase: str
    place: str
    since_s: float
    seconds: float
    workers: tuple[str, ...] = ()
    collective: str = ""
    continued: bool = False

    @property
    def note(self) -> str:
        """The last report of a run as a sentence."""
        where = f"step {self.step}, {self.phase}: {self.place}"
        return f"On rank {self.rank}, no step had ended for {format_duration(1e9 * self.seconds)} at last: {where}."


HANGS: RankLog[HangReport] = RankLog(HangReport, "hang", "report on a hang")


def stacks_path(folder: Path, rank: int) -> Path:
    """Return the file with the stacks of a rank."""
    return HANGS.path(folder, rank).with_suffix(".txt")


def open_hangs(folder: Path) -> tuple[HangReport, ...]:
    """Return the last report of each rank that has not continued since."""
    last = [report for path in HANGS.paths(folder) for report in HANGS.read(path)[-1:]]
    return tuple(sorted((report for report in last if not report.continued), key=lambda report: report.rank))
