"""The results of all calls, as JSON, and the page that shows them."""

from __future__ import annotations

import fcntl
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.compatibility.loops import LoopRow, LoopTable
from benchmarks.compatibility.programs import PROGRAMS
from benchmarks.compatibility.rows import ProgramRow
from benchmarks.compatibility.scripts import SCRIPTS, ScriptRow
from benchmarks.options import markdown_table
from benchmarks.versions import device_name, versions_text

BUSY_APART = 0.1
"""Two medians without the measurement that differ by more show a busy machine."""

BUSY_LOAD = 1.5
"""So does a load above this. The training alone makes a load of 1."""

INTRODUCTION = """Written by `python -m benchmarks.compatibility` on one thread of {device}, with `{versions}`.

Each program trains for some seconds with random weights and drawn data. It runs in fresh processes without
lightning_perf and with it, alternating, {rounds} of each. A stopwatch of the benchmark's own counts and times the
steps.

Packages that do not fit together ran in virtual environments. `compatibility.json` lists all their versions and the
figures of each training. Equal weights and counted steps do not depend on the load of the machine. Step times do.
"""

PROGRAM_NOTES = """How to read the columns:

- *results the same*: the trained weights and the final metrics of all trainings are the same bit for bit
- *steps*: steps in the log of lightning_perf, and steps by the stopwatch
- *step without → with*: the mean of the medians, and in brackets how far the medians without lightning_perf are apart.
  The first 20 steps are left out, which hold the recorded ones. A row is *busy* if the medians are more than 10 % apart
  or the load of the machine was above 1.5. Then other processes used the machine, and its times say little.
- *processor time*: the same of the processor time per step, of all threads. It depends less on other processes.
- *timer*: the step time by lightning_perf over that of the stopwatch
- *sums*: the largest difference between a recorded step and the sum of its categories, and between the time of the fit
  and the sum of its account. Only a Trainer of Lightning has an account.
- *findings*: those of each training with lightning_perf, with the estimated saving
"""

SCRIPT_NOTES = """Each script runs unchanged: twice as `python SCRIPT`, and as `lightning-perf run SCRIPT`. Progress
bars, times and temporary folders are left out of the comparison of the outputs, and the report out of standard error.
Data that a script would download is drawn in the files where it looks for them."""

LOOP_INTRODUCTION = """The same network, data, order and optimizer, measured by `PerfCallback`, `PerfLoop` (Fabric and
plain PyTorch) and `PerfTrainerCallback`. The loops took turns, each training in a fresh process."""

LOOP_NOTES = """Categories and phases are means over the five recorded steps of each training. They include the cost of
the profiler, and a stretch in which the machine was busy shows in them. The loops themselves differ in:

- *other* and *host other*: the Python code of the loop between the phases. Lightning's Trainer and that of Hugging Face
  run more of it than a plain loop.
- *transfer*: only Lightning's Trainer shows it as a phase of its own. Elsewhere it belongs to *fetch* or *forward*."""


@dataclass
class Document:
    """The results of all calls.

    Attributes:
        device: The processor or GPU of the last call for a program or a script.
        versions: Versions of the environment that all others build on, in the last call.
        programs: Rows of `PROGRAMS`.
        scripts: Rows of `SCRIPTS`.
        loops: The comparison of four kinds of loop.
    """

    device: str = ""
    versions: str = ""
    programs: dict[str, ProgramRow] = field(default_factory=dict)
    scripts: dict[str, ScriptRow] = field(default_factory=dict)
    loops: LoopTable | None = None

    @classmethod
    def read(cls, page: Path) -> Document:
        """Read the results next to a page. Without that file they are empty."""
        path = page.with_suffix(".json")
        return msgspec.json.decode(path.read_bytes(), type=cls) if path.exists() else cls()

    @classmethod
    def add(cls, page: Path, name: str, row: ProgramRow | ScriptRow | LoopTable) -> None:
        """Add a row to the results next to a page, and write both. Calls at the same time keep each other's rows."""
        device, versions = device_name(), versions_text()
        with (Path(tempfile.gettempdir()) / "compatibility.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            document = cls.read(page)
            if isinstance(row, LoopTable):  # which has its own device
                document.loops = row
            else:
                document.device, document.versions = device, versions
                rows: Any = document.programs if isinstance(row, ProgramRow) else document.scripts
                rows[name] = row
            document.write(page)

    def write(self, page: Path) -> None:
        """Write the page, and the results as JSON next to it."""
        page.with_suffix(".json").write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        parts = [
            "# Programs by others",
            INTRODUCTION.format(device=self.device, versions=self.versions, rounds=self._rounds()),
            *self._programs(),
            *self._scripts(),
            *self._loops(),
        ]
        page.write_text("\n\n".join(part.strip() for part in parts) + "\n", encoding="utf-8")

    def _rounds(self) -> str:
        counts = {len(row.step_ms) for row in self.programs.values() if row.step_ms} or {0}
        fewest, most = min(counts), max(counts)
        return f"{fewest} times" if fewest == most else f"{fewest} to {most} times"

    def _programs(self) -> list[str]:
        rows = {name: self.programs[name] for name in PROGRAMS if name in self.programs}
        failed = [f"- **{name}** ({row.package}): {row.error}" for name, row in rows.items() if row.error]
        head = (
            "program", "package", "measured by", "results the same", "steps", "step without → with, ms",
            "processor time, ms", "timer", "sums", "findings",
        )  # fmt: skip
        table = markdown_table(head, [_program_cells(name, row) for name, row in rows.items() if not row.error])
        parts = ["## Programs", table, PROGRAM_NOTES]
        if failed:
            parts += ["Not measured:", "\n".join(failed)]
        return parts

    def _scripts(self) -> list[str]:
        rows = {name: self.scripts[name] for name in SCRIPTS if name in self.scripts}
        if not rows:
            return []
        failed = [f"- **{name}** (`{row.command}`): {row.error}" for name, row in rows.items() if row.error]
        head = (
            "script", "of", "exit code alone, under `run`", "standard output the same", "standard error the same",
            "checkpoints the same", "new files outside of `perf`", "`run` says",
        )  # fmt: skip
        parts = [
            "## Scripts under `lightning-perf run`",
            SCRIPT_NOTES,
            markdown_table(head, [_script_cells(row) for row in rows.values() if not row.error]),
        ]
        return [*parts, "Not run:", "\n".join(failed)] if failed else parts

    def _loops(self) -> list[str]:
        if self.loops is None:
            return []
        parts = ["## One network in four loops", LOOP_INTRODUCTION]
        if self.loops.error:
            return [*parts, f"Not measured: {self.loops.error}"]
        rows = self.loops.rows
        head = ("mean (minimum–maximum) of the trainings", *rows)
        lines = [
            ("median step, ms", *(_spread(row.step_ms) for row in rows.values())),
            ("lightning_perf's step over the stopwatch's", *(_spread(row.timer_ratio, 3) for row in rows.values())),
        ]
        for title, name in (("category", "categories_ms"), ("phase", "phases_ms")):
            parts_of = {
                part: [getattr(row, name).get(part, [0.0]) for row in rows.values()] for part in _names(rows, name)
            }
            lines += [
                (f"{title} *{part.replace('_', ' ')}*, ms", *(_spread(times) for times in values))
                for part, values in parts_of.items()
                if any(max(times) > 0 for times in values)
            ]
        same = "All trainings" if self.loops.same else "Not all trainings"
        busy = f" The machine was busy (a load of {self.loops.load:.1f})." if self.loops.load > BUSY_LOAD else ""
        device = f" Measured on {self.loops.device}." if self.loops.device not in ("", self.device) else ""
        return [
            *parts,
            f"{same} ended in the same weights, bit for bit.{device}{busy}",
            markdown_table(head, lines),
            LOOP_NOTES,
        ]


def _names(rows: Mapping[str, LoopRow], name: str) -> list[str]:
    return list(dict.fromkeys(part for row in rows.values() for part in getattr(row, name)))


def _yes(value: bool) -> str:
    return "yes" if value else "**no**"


def _same(value: bool, repeats: bool) -> str:
    return _yes(value) if repeats else "does not repeat itself"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _spread(values: Sequence[float], digits: int = 2) -> str:
    return f"{_mean(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def _pair(plain: Sequence[float], measured: Sequence[float]) -> str:
    apart = (max(plain) - min(plain)) / (_mean(plain) or 1.0)
    change = _mean(measured) / (_mean(plain) or 1.0) - 1
    noise = f"{apart:.1%}" if len(plain) > 1 else "once each"
    return f"{_mean(plain):.2f} → {_mean(measured):.2f}: {change:+.1%} ({noise})"


def _program_cells(name: str, row: ProgramRow) -> tuple[str, ...]:
    same = _yes(row.same) if row.repeats else "does not repeat itself"
    right = len({*row.steps, *row.recorded_steps}) == 1
    steps = f"{'' if right else '**no:** '}{row.recorded_steps[-1]} of {row.steps[0]}"
    apart = (max(row.step_ms) - min(row.step_ms)) / (_mean(row.step_ms) or 1.0)
    busy = apart > BUSY_APART or row.load > BUSY_LOAD
    sums = [_error(row.breakdown_error_ns), *([_error(row.account_error_ns)] if row.door == "PerfCallback" else [])]
    findings = " / ".join(", ".join(one) or "none" for one in row.findings)
    return (
        f"{name}, busy" if busy else name,
        row.package,
        f"`{row.door}`",
        same + (f"; warned: {'; '.join(row.warnings)}" if row.warnings else ""),
        steps,
        _pair(row.step_ms, row.measured_step_ms),
        _pair(row.step_cpu_ms, row.measured_step_cpu_ms),
        _spread(row.timer_ratio, 3) if row.timer_ratio else "–",
        ", ".join(sums),
        findings,
    )


def _error(error_ns: int | None) -> str:
    return "nothing recorded" if error_ns is None else f"{error_ns} ns"


def _script_cells(row: ScriptRow) -> tuple[str, ...]:
    alone, measured = row.exit_codes
    return (
        f"`{row.command}`",
        row.source,
        f"{alone}, {measured}" if alone == measured else f"**{alone}, {measured}**",
        _same(row.same_output, row.repeats),
        _yes(row.same_errors),
        "–" if row.same_checkpoints is None else _same(row.same_checkpoints, row.repeats),
        ", ".join(f"`{file}`" for file in row.new_files) or "none",
        row.report,
    )
