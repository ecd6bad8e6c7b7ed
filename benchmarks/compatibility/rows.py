"""Measure one program in several processes, and judge the outcomes."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.compatibility.environments import InstallError, installed_packages, python_of
from benchmarks.compatibility.programs import PROGRAMS
from benchmarks.compatibility.session import Outcome
from benchmarks.versions import known_versions

ROOT = Path(__file__).parent.parent.parent
LIMIT_S = 300


@dataclass(frozen=True)
class ProgramRow:
    """The outcomes of a program.

    Attributes:
        package: The package, with its version.
        door: The class of lightning_perf that measured it.
        packages: The packages that the environment adds, with versions.
        repeats: Whether the trainings without the measurement ended in the same weights and metrics.
        same: Whether all trainings did.
        steps: Steps of each training by the benchmark's stopwatch, those without the measurement first.
        recorded_steps: Steps in the step log of lightning_perf, of each training with it.
        step_ms: Median step of each training without the measurement.
        measured_step_ms: The same with it.
        step_cpu_ms: Median processor time per step, of each training without the measurement.
        measured_step_cpu_ms: The same with it.
        timer_ratio: Step time by lightning_perf over that of the stopwatch, of each training with it.
        breakdown_error_ns: The largest difference between a recorded step and the sum of its categories.
        account_error_ns: The largest difference between a fit's wall time and the sum of its account; None for a loop
            without a Trainer, which has no account.
        findings: The findings of each training.
        where: The verdict's first sentence in the last training.
        warnings: Warnings of lightning_perf.
        load: The load of the machine after the last training, over one minute.
        error: The reason, if there is no result.
    """

    package: str
    door: str
    packages: tuple[str, ...] = ()
    repeats: bool = False
    same: bool = False
    steps: tuple[int, ...] = ()
    recorded_steps: tuple[int, ...] = ()
    step_ms: tuple[float, ...] = ()
    measured_step_ms: tuple[float, ...] = ()
    step_cpu_ms: tuple[float, ...] = ()
    measured_step_cpu_ms: tuple[float, ...] = ()
    timer_ratio: tuple[float, ...] = ()
    breakdown_error_ns: int | None = None
    account_error_ns: int | None = None
    findings: tuple[tuple[str, ...], ...] = ()
    where: str = ""
    warnings: tuple[str, ...] = ()
    load: float = 0.0
    error: str = ""


def environment_of(folder: Path) -> dict[str, str]:
    """Return the environment variables of a process that runs in a folder of its own with this checkout."""
    unwanted = ("PYTHONPATH", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(folder), "HF_HUB_OFFLINE": "1"}


def run_one(name: str, python: Path, *, measured: bool) -> Outcome:
    """Train a program in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="compatibility-") as folder:
        command = [str(python), "-m", "benchmarks.compatibility.one", name, "with" if measured else "without"]
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment_of(Path(folder)),
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Outcome(error=f"took more than {LIMIT_S} s")
    for line in reversed(done.stdout.splitlines()):
        if line.startswith('{"outcome"'):
            return Outcome(**json.loads(line)["outcome"])
    return Outcome(error=(done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])


def measure_program(name: str, environments: Path, rounds: int) -> ProgramRow:
    """Train a program without and with the measurement.

    Args:
        name: One of `PROGRAMS`.
        environments: The folder of the environments.
        rounds: Trainings of each kind. They alternate, and every second round has the other order.
    """
    program = PROGRAMS[name]
    try:
        python = python_of(program.environment, environments)
    except InstallError as error:
        return ProgramRow(program.package, program.door, error=f"not installed: {error}")
    packages = installed_packages(program.environment, environments)
    known = known_versions()
    own = {one.split("==")[0].lower().replace("_", "-"): one.split("==")[1] for one in packages}
    version = own.get(program.package) or known.get(f"version.{program.package}") or _version(program.package)
    outcomes: dict[bool, list[Outcome]] = {False: [], True: []}
    for number in range(rounds):
        for measured in (False, True) if number % 2 == 0 else (True, False):
            outcome = run_one(name, python, measured=measured)
            if outcome.error:
                how = " with lightning_perf" if measured else ""
                return ProgramRow(f"{program.package} {version}", program.door, error=f"failed{how}: {outcome.error}")
            outcomes[measured].append(outcome)
    return judge(f"{program.package} {version}", program.door, packages, outcomes[False], outcomes[True])


def _version(package: str) -> str:
    import importlib.metadata

    from benchmarks.compatibility.checkouts import CHECKOUTS, checkout_commit

    return f"@ {checkout_commit(package)}" if package in CHECKOUTS else importlib.metadata.version(package)


def judge(
    package: str, door: str, packages: Sequence[str], plain: Sequence[Outcome], measured: Sequence[Outcome]
) -> ProgramRow:
    """Make the row of a program from its outcomes."""
    results = [(one.weights, sorted(one.metrics.items())) for one in plain]
    everything = [*results, *((one.weights, sorted(one.metrics.items())) for one in measured)]
    return ProgramRow(
        package=package,
        door=door,
        packages=tuple(packages),
        repeats=all(one == results[0] for one in results),
        same=all(one == results[0] for one in everything),
        steps=tuple(one.steps for one in (*plain, *measured)),
        recorded_steps=tuple(one.recorded_steps or 0 for one in measured),
        step_ms=tuple(one.step_ms for one in plain),
        measured_step_ms=tuple(one.step_ms for one in measured),
        step_cpu_ms=tuple(one.step_cpu_ms for one in plain),
        measured_step_cpu_ms=tuple(one.step_cpu_ms for one in measured),
        timer_ratio=tuple(one.timer_ratio for one in measured if one.timer_ratio is not None),
        breakdown_error_ns=_largest([one.breakdown_error_ns for one in measured]),
        account_error_ns=_largest([one.account_error_ns for one in measured]),
        findings=tuple(tuple(one.findings) for one in measured),
        where=measured[-1].where,
        warnings=tuple(dict.fromkeys(text for one in measured for text in one.warnings)),
        load=os.getloadavg()[0],
    )


def _largest(errors: Sequence[int | None]) -> int | None:
    """Return the largest error, or None if one of the trainings has none to show."""
    known = [error for error in errors if error is not None]
    return max(known) if len(known) == len(errors) and known else None
