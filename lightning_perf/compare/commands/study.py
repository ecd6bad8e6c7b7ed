"""``lightning-perf study``: run arms × blocks and compare them; run again, go on where it was cut off."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from lightning_perf.arguments import at_least
from lightning_perf.compare.commands.compare import (
    EXIT_CODES,
    add_outputs,
    add_settings,
    compare_and_show,
    read_settings,
    report_errors,
)

if TYPE_CHECKING:
    from lightning_perf.compare.commands.study_options import EngineChoice
    from lightning_perf.compare.study.definition import Study

__all__ = ["HELP", "add_arguments", "run"]

HELP = "run arms in random, balanced blocks and compare them"

_EPILOG = (
    'Example: lightning-perf study studies/precision --arm fp32="python train.py --precision 32-true --seed {seed}" '
    '--arm amp="python train.py --precision 16-mixed --seed {seed}" --treatment precision --gate "accuracy>=-0.01". '
    f"{EXIT_CODES} 130 stopped: run it again to go on."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command."""
    parser.description = (
        "Run every arm once a block, each run in a fresh process, in random and balanced order after a warm-up block "
        "that does not count, and compare them. The trainings need PerfCallback. What was cut off goes on when it is "
        "run again in the same folder; the folder alone is enough then."
    )
    parser.epilog = _EPILOG
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where everything of the study goes")
    plan = parser.add_argument_group("the study")
    plan.add_argument(
        "--arm",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="a setting and the command that trains with it; {seed}, {block} and {dir} (a folder for the run's files) "
        "are filled in. The first arm is the baseline",
    )
    plan.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="[NAME:]KEY=VALUE",
        help="an environment variable of an arm, or of all arms",
    )
    plan.add_argument("--blocks", type=at_least(1), metavar="N", help="blocks that count (default: 6)")
    plan.add_argument("--seed", type=int, metavar="N", help="block n trains with seed N + n (default: 0)")
    plan.add_argument(
        "--attempts", type=at_least(1), metavar="N", help="how often a block with failing runs is tried (default: 3)"
    )
    engine = parser.add_argument_group("where it runs")
    engine.add_argument(
        "--engine", choices=("local", "ray", "slurm"), help="this machine, a Ray cluster or SLURM (default: local)"
    )
    engine.add_argument(
        "--devices",
        metavar="LIST",
        help="local: cpu, or numbers of GPUs as 0,1, each of which runs a block at a time (default: the first GPU, "
        "or the CPU where there is none)",
    )
    engine.add_argument("--gpus", type=at_least(0), metavar="N", help="ray, slurm: GPUs of a run (default: 1)")
    engine.add_argument("--cpus", type=at_least(1), metavar="N", help="ray, slurm: processors of a run (default: 1)")
    engine.add_argument(
        "--ray-address", metavar="ADDRESS", help="ray: the cluster (default: RAY_ADDRESS, or one of this machine)"
    )
    engine.add_argument(
        "--slurm",
        action="append",
        default=None,
        metavar="KEY=VALUE",
        help="slurm: option of the jobs, as partition=gpu or time=60 (minutes, for a whole block)",
    )
    add_settings(parser)
    add_outputs(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code.

    Raises:
        KeyboardInterrupt: It was stopped by Ctrl-C, and has said how to go on.
    """
    return report_errors(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    from lightning_perf.compare.commands.study_options import settle_options
    from lightning_perf.compare.errors import CompareError
    from lightning_perf.compare.study.run import run_study
    from lightning_perf.lazy_imports import import_extra
    from lightning_perf.run_files.journal import STUDY_NAME

    for package in ("scipy", "matplotlib") if options.plots is not None else ("scipy",):
        import_extra(package, "compare")  # before hours of runs, not after
    folder: Path = options.folder
    study = _read_study(options)
    if study is None and not (folder / STUDY_NAME).exists():
        raise CompareError(f"{folder}: holds no study to go on with. Give the arms: --arm NAME=COMMAND.")
    settled = settle_options(folder, _read_engine(options), read_settings(options))
    with _told_how_to_go_on(folder):
        run_study(study, folder, settled.engine.build(), _say)
    return compare_and_show([str(folder)], settled.settings, options)


def _read_study(options: argparse.Namespace) -> Study | None:
    """The study that was defined; None when none was, to go on with the one in the folder."""
    from lightning_perf.compare.errors import CompareError
    from lightning_perf.compare.study.definition import Study, StudyArm

    plan = {name: value for name in ("blocks", "seed", "attempts") if (value := getattr(options, name)) is not None}
    if not options.arm:
        if plan or options.env:
            given = ", ".join(f"--{name}" for name in (*plan, *(["env"] if options.env else [])))
            raise CompareError(f"{given} belongs to the definition of a study. Give its arms too, or none of them.")
        return None
    commands: dict[str, tuple[str, ...]] = {}
    for text in options.arm:
        name, equals, command = text.partition("=")
        if not equals:
            raise CompareError(f'--arm "{text}": has no command. Give NAME=COMMAND.')
        if name in commands:
            raise CompareError(f"--arm {name}: is given twice. Give each arm a name of its own.")
        try:
            commands[name] = tuple(shlex.split(command))
        except ValueError as error:
            raise CompareError(f'--arm {name}: cannot be read as a command ({error}): "{command}".') from error
    environments = _read_environments(options.env, list(commands))
    arms = tuple(StudyArm(name, command, environments[name]) for name, command in commands.items())
    return Study(arms=arms, treatment=tuple(options.treatment), **plan)


def _read_environments(texts: Sequence[str], arms: Sequence[str]) -> dict[str, dict[str, str]]:
    from lightning_perf.compare.errors import CompareError

    environments: dict[str, dict[str, str]] = {name: {} for name in arms}
    for text in texts:
        key, equals, value = text.partition("=")
        arm, colon, variable = key.rpartition(":")
        if not equals or not variable or (colon and arm not in environments):
            raise CompareError(f'--env "{text}": give [NAME:]KEY=VALUE, where NAME is one of {", ".join(arms)}.')
        for name in [arm] if colon else arms:
            environments[name][variable] = value
    return environments


def _read_engine(options: argparse.Namespace) -> EngineChoice | None:
    """The engine that was chosen; None when nothing was said of it."""
    from lightning_perf.compare.commands.study_options import EngineChoice
    from lightning_perf.compare.errors import CompareError

    theirs = {"devices": ("local",), "gpus": ("ray", "slurm"), "cpus": ("ray", "slurm"), "ray_address": ("ray",)}
    theirs["slurm"] = ("slurm",)
    given = {name: value for name in theirs if (value := getattr(options, name)) is not None}
    engine: Any = options.engine or "local"
    for name in given:
        if engine not in theirs[name]:
            needed = " or ".join(f"--engine {other}" for other in theirs[name])
            raise CompareError(f"--{name.replace('_', '-')}: belongs to {needed}. Give that too, or leave it out.")
    if options.engine is None and not given:
        return None
    if "ray_address" in given:
        given["address"] = given.pop("ray_address")
    if "slurm" in given:
        given["slurm"] = dict(map(_slurm_option, given["slurm"]))
    return EngineChoice(engine=engine, **given)


def _slurm_option(text: str) -> tuple[str, str | int]:
    from lightning_perf.compare.errors import CompareError

    name, equals, value = text.partition("=")
    if not name or not equals:
        raise CompareError(f'--slurm "{text}": give KEY=VALUE, as partition=gpu.')
    return name.replace("-", "_"), int(value) if value.isdigit() else value


@contextmanager
def _told_how_to_go_on(folder: Path) -> Iterator[None]:
    """Tell at once on Ctrl-C that it was heard, since ending a run may take seconds, and then how to go on."""

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        _say("Stopping: the run that is going on is asked to end …")
        raise KeyboardInterrupt

    in_main = threading.current_thread() is threading.main_thread()  # elsewhere Python allows no handler
    before = signal.signal(signal.SIGINT, stop) if in_main else None
    try:
        yield
    except KeyboardInterrupt:
        _say(f"Stopped. Nothing finished is lost. Go on with: lightning-perf study {shlex.quote(str(folder))}")
        raise
    finally:
        if in_main:
            signal.signal(signal.SIGINT, before)


def _say(line: str) -> None:
    from lightning_perf.terminal_text import plain

    # Not on standard output: that is for the comparison.
    print(plain(line).plain, file=sys.stderr, flush=True)  # noqa: T201
