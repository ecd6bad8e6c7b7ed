"""``lightning-perf study``: run every arm once per block and compare the arms. An interrupted study resumes."""

from __future__ import annotations

import argparse
import math
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from lightning_perf.arguments import add_count, add_outputs, describe, positive, share
from lightning_perf.commands.compare import add_settings, compare_and_show, read_settings
from lightning_perf.compare.judge import EXIT_CODES
from lightning_perf.errors import ExitCode

if TYPE_CHECKING:
    from lightning_perf.compare.study.definition import Study
    from lightning_perf.compare.study_options import EngineChoice, StudyOptions
    from lightning_perf.compare.verdicts.gates import Settings

HELP = "run arms in random, balanced blocks and compare them"

_PLAN_OPTIONS = ("blocks", "seed", "attempts", "precise")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command."""
    describe(
        parser,
        "Run each arm once per block and compare the arms. Each run is a fresh process. The order within a block is "
        "random and balanced, and a warm-up block does not count. The trainings need PerfCallback.\n\n"
        "Run the command again with the same FOLDER to resume. The other options are kept there.",
        usage="[OPTIONS] FOLDER",
        examples=(
            "lightning-perf study studies/precision --treatment precision \\",
            '    --arm fp32="python train.py --precision 32-true --seed {seed}" \\',
            '    --arm amp="python train.py --precision 16-mixed --seed {seed}" \\',
            '    --gate "accuracy>=-0.01"',
        ),
        exit_codes={
            **EXIT_CODES,
            ExitCode.INTERRUPTED: "interrupted by Ctrl-C; run again with the same FOLDER to resume",
        },
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder for everything that the study writes")
    plan = parser.add_argument_group("plan")
    plan.add_argument(
        "--arm",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="a setting and the command that trains with it; the first arm is the baseline. {seed}, {block} and {dir} "
        "(a folder for the files of the run) are filled in",
    )
    add_plan(plan, again="Run again with the same FOLDER for the rest. Only for --engine local")
    engine = parser.add_argument_group("where it runs")
    engine.add_argument(
        "--engine",
        choices=("local", "ray", "slurm"),
        metavar="ENGINE",
        help="local (this machine), ray or slurm (default: local)",
    )
    add_devices(engine, "local: ")
    add_count(engine, "--gpus", default=None, least=0, help="ray, slurm: GPUs per run (default: 1)")
    add_count(engine, "--cpus", default=None, help="ray, slurm: CPU cores per run (default: 1)")
    engine.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="ray: address of the cluster (default: RAY_ADDRESS, else Ray starts on this machine)",
    )
    engine.add_argument(
        "--slurm",
        action="append",
        default=None,
        metavar="KEY=VALUE",
        help="slurm: an option of the jobs, e.g. partition=gpu, or time=60 (minutes for one block)",
    )
    add_settings(parser)
    add_outputs(parser, plot="folder")


def add_plan(plan: argparse._ArgumentGroup, *, again: str) -> None:
    """Add the options for the number and the conditions of the runs; `again` ends the help of ``--minutes``."""
    plan.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="[NAME:]KEY=VALUE",
        help="an environment variable of one arm, or of all arms",
    )
    add_count(
        plan, "--blocks", default=None, help="blocks that count (default: 6); with --precise, the maximum (default: 40)"
    )
    plan.add_argument(
        "--precise",
        type=share,
        metavar="SHARE",
        help="after 12 blocks, add more until the step time is known to within this share, e.g. 0.01 for ±1 %%. Only "
        "the width of the interval decides, so the verdict stays valid",
    )
    plan.add_argument(
        "-m",
        "--minutes",
        type=positive,
        metavar="MINUTES",
        help=f"time budget of this call: start no block that would end later. {again}",
    )
    plan.add_argument("--seed", type=int, metavar="N", help="block n trains with seed N + n (default: 0)")
    add_count(plan, "--attempts", default=None, help="attempts per block when runs fail (default: 3)")


def add_devices(group: argparse._ArgumentGroup, scope: str = "") -> None:
    """Add ``--devices``; `scope` starts its help."""
    group.add_argument(
        "--devices",
        metavar="LIST",
        help=f"{scope}cpu, or GPU numbers such as 0,1. Each device runs one block at a time (default: the first GPU, "
        "else the CPU)",
    )


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from lightning_perf.compare.study_options import settle_options
    from lightning_perf.errors import CompareError
    from lightning_perf.run_files.journal import STUDY_NAME

    import_packages(options)
    folder: Path = options.folder
    study = _read_study(options)
    if study is None and not (folder / STUDY_NAME).exists():
        raise CompareError(f"{folder}: there is no study to resume. To start one, give two arms: --arm NAME=COMMAND.")
    settled = settle_options(folder, _read_engine(options), read_settings(options))
    if options.minutes is not None and settled.engine.engine != "local":
        raise CompareError(
            f"--minutes: works only with --engine local, not {settled.engine.engine}. Leave it out. SLURM limits each "
            "block with --slurm time=MINUTES."
        )
    run_blocks(study, folder, settled, options, resume=f"lightning-perf study {shlex.quote(str(folder))}")
    return compare_and_show([str(folder)], settled.settings, options)


def import_packages(options: argparse.Namespace) -> None:
    """Report a missing package before hours of runs, not after them."""
    from lightning_perf.lazy_imports import import_extra

    for package in ("scipy", "matplotlib") if options.plot is not None else ("scipy",):
        import_extra(package, "compare")


def run_blocks(
    study: Study | None, folder: Path, settled: StudyOptions, options: argparse.Namespace, *, resume: str
) -> None:
    """Run the blocks of a study, or the rest of the one in the folder; `resume` is the command to show after Ctrl-C."""
    from lightning_perf.compare.study.run import run_study
    from lightning_perf.compare.verdicts.comparison import UnfairError

    # The comparison that follows reports the differences of runs that are refused as unfair.
    with _resume_hint(resume), suppress(UnfairError):
        run_study(
            study,
            folder,
            settled.engine.build(),
            (lambda _: None) if options.quiet else print_line,
            half_width=lambda folder: _half_width(folder, settled.settings),
            budget_s=None if options.minutes is None else 60 * options.minutes,
        )


def _read_study(options: argparse.Namespace) -> Study | None:
    """Return the study that the options define, or None to resume the one in the folder."""
    from lightning_perf.compare.study.definition import Study, StudyArm
    from lightning_perf.errors import CompareError

    plan = read_plan(options)
    if not options.arm:
        names = [name for name in _PLAN_OPTIONS if getattr(options, name) is not None]
        if names or options.env:
            given = ", ".join(f"--{name}" for name in (*names, *(["env"] if options.env else [])))
            raise CompareError(
                f"{given}: defines a new study, which needs arms. Add --arm NAME=COMMAND twice or more, or leave out "
                f"{given} to resume the study in the folder."
            )
        return None
    commands: dict[str, tuple[str, ...]] = {}
    for text in options.arm:
        name, equals, command = text.partition("=")
        if not equals:
            raise CompareError(f"--arm '{text}': the command is missing. Give NAME=COMMAND.")
        if name in commands:
            raise CompareError(f"--arm '{name}': two arms have this name. Give each arm its own name.")
        try:
            commands[name] = tuple(shlex.split(command))
        except ValueError as error:
            raise CompareError(
                f"--arm '{name}': '{command}' is not a shell command ({error}). Check its quotes."
            ) from error
    environments = read_environments(options.env, list(commands))
    arms = tuple(StudyArm(name, command, environments[name]) for name, command in commands.items())
    return Study(arms=arms, treatment=tuple(options.treatment), **plan)


def read_plan(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `Study` that the options of `add_plan` give, without defaults."""
    from lightning_perf.compare.study.run import MAX_PRECISE_BLOCKS, MIN_PRECISE_BLOCKS
    from lightning_perf.errors import CompareError

    plan = {name: value for name in _PLAN_OPTIONS if (value := getattr(options, name)) is not None}
    if options.precise is None:
        return plan
    most = plan.get("blocks", MAX_PRECISE_BLOCKS)
    if most < MIN_PRECISE_BLOCKS:
        raise CompareError(
            f"--blocks {most}: --precise needs at least {MIN_PRECISE_BLOCKS}. Give a larger maximum, or leave "
            "--precise out."
        )
    return {**plan, "blocks": MIN_PRECISE_BLOCKS, "max_blocks": most}


def _half_width(folder: Path, settings: Settings) -> float | None:
    """Return the half-width of the widest interval of the step time, as a share; None if a candidate has none yet."""
    from lightning_perf.compare.folders import compare_runs
    from lightning_perf.errors import InvalidRunsError

    try:
        comparison = compare_runs(folder, settings)
    except InvalidRunsError:
        return None
    widest = 0.0
    for candidate in comparison.candidates:
        result = next((metric for metric in candidate.metrics if metric.metric == "step_time"), None)
        if result is None or result.estimate.low is None or result.estimate.high is None:
            return None
        widest = max(widest, math.sqrt(result.estimate.high / result.estimate.low) - 1)
    return widest


def read_environments(texts: Sequence[str], arms: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the environment variables of each arm, from the values of ``--env``."""
    from lightning_perf.errors import CompareError

    environments: dict[str, dict[str, str]] = {name: {} for name in arms}
    for text in texts:
        key, equals, value = text.partition("=")
        arm, colon, variable = key.rpartition(":")
        if not equals or not variable or (colon and arm not in environments):
            raise CompareError(f"--env '{text}': give [NAME:]KEY=VALUE. NAME is one of {', '.join(arms)}.")
        for name in [arm] if colon else arms:
            environments[name][variable] = value
    return environments


def _read_engine(options: argparse.Namespace) -> EngineChoice | None:
    """Return the engine that the options choose, or None without such an option."""
    from lightning_perf.compare.study_options import EngineChoice
    from lightning_perf.errors import CompareError

    theirs = {"devices": ("local",), "gpus": ("ray", "slurm"), "cpus": ("ray", "slurm"), "ray_address": ("ray",)}
    theirs["slurm"] = ("slurm",)
    given = {name: value for name in theirs if (value := getattr(options, name)) is not None}
    engine: Any = options.engine or "local"
    for name in given:
        if engine not in theirs[name]:
            needed = " or ".join(f"--engine {other}" for other in theirs[name])
            raise CompareError(f"--{name.replace('_', '-')}: works only with {needed}. Add that, or leave it out.")
    if options.engine is None and not given:
        return None
    if "ray_address" in given:
        given["address"] = given.pop("ray_address")
    if "slurm" in given:
        given["slurm"] = dict(map(_slurm_option, given["slurm"]))
    return EngineChoice(engine=engine, **given)


def _slurm_option(text: str) -> tuple[str, str | int]:
    from lightning_perf.errors import CompareError

    name, equals, value = text.partition("=")
    if not name or not equals:
        raise CompareError(f"--slurm '{text}': give KEY=VALUE, e.g. partition=gpu.")
    return name.replace("-", "_"), int(value) if value.isdigit() else value


@contextmanager
def _resume_hint(resume: str) -> Iterator[None]:
    """Answer Ctrl-C at once, since a run may take seconds to end, and then print how to resume."""

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        # Without an import: the signal may come in the middle of one.
        print("Stopping: waiting for the current run to end …", file=sys.stderr, flush=True)  # noqa: T201
        raise KeyboardInterrupt

    in_main = threading.current_thread() is threading.main_thread()  # Python allows no handler in another thread
    before = signal.signal(signal.SIGINT, stop) if in_main else None
    try:
        yield
    except KeyboardInterrupt:
        print_line(f"Stopped. All finished runs are kept. Resume with: {resume}")
        raise
    finally:
        if in_main:
            signal.signal(signal.SIGINT, before)


def print_line(line: str) -> None:
    """Print a line of progress to standard error. Standard output is for the comparison."""
    from lightning_perf.show.terminal_text import safe

    print(safe(line), file=sys.stderr, flush=True)  # noqa: T201
