"""``lightning-perf tune``: try levers on a training and keep those that measure faster."""

from __future__ import annotations

import argparse
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_perf.arguments import (
    add_count,
    add_list,
    add_outputs,
    add_printed_list,
    at_least,
    describe,
    positive,
    print_progress,
    progress_printer,
    share,
    show,
    write_output,
)
from lightning_perf.errors import ExitCode
from lightning_perf.workers.script import Script, ScriptError, find_script

if TYPE_CHECKING:
    from lightning_perf.tune.result import TuneResult

HELP = "try changes on your training and keep those that are faster"

TUNE_FILE, PATCH_FILE, SCALING_FILE = "tune.json", "tune.patch", "scaling.json"
"""The document and the patch, in the folder of ``--out``, and the document of ``--devices``."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command."""
    describe(
        parser,
        "Try precision, memory layout, fused optimizer, compilation, data loading and batch size on your own "
        "training. Each change runs in a fresh process, in short windows that alternate with the current best "
        "setting. The result lists the predicted and the measured gain, and for a script a patch with the changes. A "
        "script runs up to its first training, by a Trainer of Lightning or Hugging Face, once per process. Options "
        "go before the script. Everything after the script belongs to the script. Your files stay unchanged without "
        "--apply. If you interrupt a tuning with -o, or its budget is too small, run the same command again to "
        "resume.",
        usage="[OPTIONS] SCRIPT [ARGS ...] | PKG:NAME",
        examples=(
            "lightning-perf tune -o tuning train.py --lr 0.1",
            "lightning-perf tune --levers precision,workers --minutes 5 -m mypackage.train",
            "lightning-perf tune mypackage.training:make",
            "lightning-perf tune --devices 1,2,4 train.py",
        ),
        exit_codes={
            ExitCode.SUCCESS: "tuned; with --gate, no lever saves as much",
            ExitCode.CHECK_FAILED: "--gate: the kept levers certainly save as much",
            ExitCode.USAGE: "wrong usage, or the unchanged training fails",
            ExitCode.INCONCLUSIVE: "--gate: a lever may save as much, or there was no time to decide on it",
            ExitCode.INTERRUPTED: "interrupted by Ctrl-C; prints the results so far",
        },
    )
    parser.add_argument(
        "training",
        nargs=argparse.REMAINDER,
        action=_Training,
        metavar="SCRIPT",
        help="the script and its arguments, as after 'python'; or PKG:NAME, package.module:name of a function without "
        "arguments. It returns a LightningModule, or a tuple of the module, a DataLoader or LightningDataModule, and "
        "a dict of Trainer arguments",
    )
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module, as after 'python -m'")
    trials = parser.add_argument_group("trials")
    trials.add_argument("--minutes", type=positive, default=15.0, metavar="MINUTES", help="time budget (default: 15)")
    add_list(trials, "--levers", metavar="NAME", help="levers or families to try (default: all that apply)")
    add_printed_list(trials, _lever_lines, things="the levers and their families")
    add_count(
        trials,
        "--rounds",
        default=None,
        help="windows of each setting in one trial, 6 to 50 (default: 12, fewer if the budget is small)",
    )
    trials.add_argument(
        "--window",
        type=positive,
        metavar="SECONDS",
        help="length of a window (default: 0.75, shorter if the budget is small)",
    )
    add_count(trials, "--seed", default=0, least=0, help="seed of weights, samples and order of windows (default: 0)")
    add_list(
        trials,
        "--devices",
        metavar="N",
        kind=at_least(1),
        help="instead of levers, compare numbers of devices, and show the lost time per step by cause",
    )
    trials.add_argument(
        "--gate",
        type=share,
        metavar="SHARE",
        help="fail if the kept levers certainly save this share of the step time, e.g. 0.05 for 5 %%",
    )
    output = add_outputs(parser, html=False, out=f"keep {TUNE_FILE}, estimates.jsonl and {PATCH_FILE} there")
    output.add_argument(
        "--apply", action="store_true", help="apply the patch to your script, if git has no other changes of its files"
    )


class _Training(argparse.Action):
    """Lets options follow ``PKG:NAME``. After a script, everything is an argument of the script."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:  # noqa: ARG002
        if _is_name(values) and not namespace.module and len(values) > 1:
            if not values[1].startswith("-"):
                parser.error(f"unexpected argument '{values[1]}'")
            parser.parse_args([*values[1:], values[0]], namespace)
        else:
            namespace.training = values


def _is_name(words: Sequence[str]) -> bool:
    return bool(words) and ":" in words[0] and not Path(words[0]).exists()


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from lightning_perf.estimates.followed import save_outcomes
    from lightning_perf.lazy_imports import import_extra
    from lightning_perf.tune.campaign import checked_estimates, run_campaign
    from lightning_perf.tune.resume import find_unfinished
    from lightning_perf.tune.settings import TuneSettings

    import_extra("torch", "train")
    import_extra("scipy", "compare")
    training: str | Script = (
        options.training[0]
        if _is_name(options.training) and not options.module
        else find_script(options.training, is_module=options.module, command="tune")
    )
    if options.devices:
        _check_devices(options)
    if options.apply:
        _check_apply(training)
    settings = TuneSettings(
        minutes=options.minutes,
        levers=options.levers,
        rounds=options.rounds,
        window_s=options.window,
        seed=options.seed,
    )
    say = progress_printer(options.quiet)
    out: Path | None = options.out
    if options.devices:
        from lightning_perf.tune.device_counts import measure_scaling

        scaling = measure_scaling(training, options.devices, settings, say)
        show(scaling, options, kept_as=SCALING_FILE)
        return ExitCode.INTERRUPTED if scaling.interrupted else ExitCode.SUCCESS
    if out is None:
        result = run_campaign(training, settings, say)
    else:
        out.mkdir(parents=True, exist_ok=True)
        path = out / TUNE_FILE
        unfinished = find_unfinished(path, training, settings)
        result = run_campaign(
            training, settings, say, earlier=unfinished, save=lambda so_far: write_output(path, so_far.to_json())
        )
        save_outcomes(out, checked_estimates(result))
        if result.diff:
            write_output(out / PATCH_FILE, result.diff)
    show(result, options, kept_as=TUNE_FILE)
    if result.interrupted or result.open_levers:
        say("to resume, run the same command again" if out is not None else "to resume later, tune with -o FOLDER")
    if result.interrupted:
        return ExitCode.INTERRUPTED
    if isinstance(training, Script) and result.diff and options.apply:
        _apply(result, training.root)
    elif isinstance(training, Script) and result.diff and out is not None:
        patch = str((out / PATCH_FILE).absolute())
        say(f"to apply the patch: {shlex.join(['git', '-C', str(training.root), 'apply', patch])}")
    if options.gate is None:
        return ExitCode.SUCCESS
    code, sentence = result.judge(options.gate)
    print_progress(sentence)
    return code


def _check_devices(options: argparse.Namespace) -> None:
    """Raise an error if ``--devices`` has nothing to compare, or an option that belongs to levers."""
    given = [f"--{name}" for name in ("levers", "gate", "apply") if getattr(options, name)]
    if given:
        raise ScriptError("--devices", f"tries no levers, so {given[0]} has no meaning", f"Leave out {given[0]}")
    if len(set(options.devices)) < 2 or len(set(options.devices)) < len(options.devices):
        raise ScriptError("--devices", "needs at least two different numbers", "Give them, e.g. --devices 1,2")


def _check_apply(training: str | Script) -> None:
    """Raise an error if no patch of this training could be applied."""
    from lightning_perf.workers.revision import repository

    if isinstance(training, str):
        raise ScriptError("--apply", f"{training} is not a script", "Leave out --apply, or give a script")
    if repository(training.folder) is None:
        raise ScriptError("--apply", f"{training.folder} is not in a git repository", "Leave out --apply")


def _apply(result: TuneResult, root: Path) -> None:
    """Apply the patch, unless it touches files that git would not restore."""
    from lightning_perf.workers.revision import changed_files

    if not result.confirmed:
        raise ScriptError("--apply", "the patch was not applied, because its gain is not certain", "Use -o to keep it")
    files = sorted({place.file for place in result.places if place.reason is None and place.file is not None})
    if changed := changed_files(root, files):
        advice = "Commit or stash your changes, then run git apply with the patch above"
        raise ScriptError("--apply", f"{', '.join(changed)} has changes that are not committed", advice)
    done = subprocess.run(["git", "apply", "-"], cwd=root, input=result.diff.encode(), capture_output=True, check=False)
    if done.returncode:
        raise ScriptError("--apply", f"git apply failed ({done.stderr.decode().strip()})", "Apply the patch by hand")
    print_progress(f"applied the patch to {', '.join(files)}")


def _lever_lines() -> Iterator[str]:
    from lightning_perf.lazy_imports import import_extra

    import_extra("torch", "train")
    from lightning_perf.tune.levers.registry import LEVERS

    yield f"{'LEVER':<26}FAMILY"
    for lever in LEVERS:
        yield f"{lever.name:<26}{lever.family}"
