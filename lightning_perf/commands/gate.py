"""``lightning-perf gate``: compare two commits of a repository, and fail if the second one is slower."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_perf.arguments import add_outputs, at_least, describe, write_output
from lightning_perf.commands.compare import add_settings, compare_and_show, no_result, read_settings
from lightning_perf.commands.study import (
    add_devices,
    add_plan,
    import_packages,
    print_line,
    read_environments,
    read_plan,
    run_blocks,
)
from lightning_perf.compare.judge import EXIT_CODES
from lightning_perf.errors import ExitCode

if TYPE_CHECKING:
    from lightning_perf.compare.verdicts.gates import Settings

HELP = "compare two commits, e.g. of a pull request, and fail if the second is slower"

DEFAULT_GATE = "step_time<=1.05"
TREATMENT = "code"
BASE, HEAD = "base", "head"
LAST_COMMIT = "HEAD"

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command."""
    describe(
        parser,
        "Check out two commits side by side, run COMMAND in both in random, balanced blocks, and compare the runs as "
        "'lightning-perf study' does. COMMAND has to leave a run record: its Trainer has a PerfCallback, or it starts "
        "with 'lightning-perf run'.\n\n"
        "Put all options before COMMAND. If it is interrupted, run it again to resume.",
        usage="[OPTIONS] --base REF -- COMMAND ...",
        examples=(
            "lightning-perf gate --base main -- lightning-perf run train.py",
            'lightning-perf gate --base main --gate "step_time<=1.02" --precise 0.01 -- \\',
            "    python train.py --seed {seed}",
            'lightning-perf gate --base v1.0 --setup "pip install -e ." -- python train.py',
            "lightning-perf gate --comment gate.md    # in GitHub Actions",
        ),
        exit_codes={
            **EXIT_CODES,
            ExitCode.SUCCESS: "all gates passed",
            ExitCode.INTERRUPTED: "interrupted by Ctrl-C; run the command again to resume",
        },
    )
    parser.add_argument(
        "command_line",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="program and arguments. It runs in each checkout, in the same subfolder as the current one. {seed}, "
        "{block} and {dir} (a folder for the files of the run) are filled in",
    )
    commits = parser.add_argument_group("commits")
    commits.add_argument("--base", metavar="REF", help="commit, branch or tag that is the baseline, e.g. main")
    commits.add_argument(
        "--head", default=LAST_COMMIT, metavar="REF", help="commit, branch or tag to judge (default: %(default)s)"
    )
    commits.add_argument(
        "--setup",
        metavar="COMMAND",
        help="shell command to run once in each checkout, e.g. 'pip install -e .'. Each side then has a virtual "
        "environment of its own, which also sees your current packages",
    )
    plan = parser.add_argument_group("plan")
    add_plan(plan, again="Run the command again for the rest")
    add_devices(plan)
    add_settings(parser, default_gate=DEFAULT_GATE)
    add_outputs(
        parser,
        plot="folder",
        out="folder for the runs (default: perf-gate/BASE-HEAD, by the hashes of the two commits)",
    )
    _add_comment(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from lightning_perf.errors import CompareError

    if options.comment is not None:
        from lightning_perf.pull_request import comment

        return comment(options)
    try:
        return _compare_commits(options)
    except CompareError as error:
        # A pull request would otherwise keep the result of an earlier commit.
        if options.markdown is not None:
            write_output(options.markdown, no_result(str(error)))
        raise


def _compare_commits(options: argparse.Namespace) -> int:
    from lightning_perf.compare.study.checkouts import has_uncommitted_changes, open_checkouts, resolve_commit
    from lightning_perf.compare.study.definition import Study, StudyArm
    from lightning_perf.compare.study_options import EngineChoice, settle_options
    from lightning_perf.errors import CompareError

    import_packages(options)
    if options.base is None:
        raise CompareError("--base: the baseline is missing. Give a commit, branch or tag, e.g. --base main.")
    words = options.command_line[1:] if options.command_line[:1] == ["--"] else options.command_line
    if not words:
        raise CompareError("The command to measure is missing. Give it last: -- python train.py")
    commits = {BASE: resolve_commit("--base", options.base), HEAD: resolve_commit("--head", options.head)}
    if commits[BASE] == commits[HEAD]:
        raise CompareError(
            f"--base '{options.base}' and --head '{options.head}' are the same commit, {commits[BASE][:12]}. Commit "
            "your change, or give another --base."
        )
    environments = read_environments(options.env, list(commits))
    folder = options.out or Path("perf-gate") / f"{commits[BASE][:12]}-{commits[HEAD][:12]}"
    say = (lambda _: None) if options.quiet else print_line
    if options.head == LAST_COMMIT and has_uncommitted_changes():
        say("Changes that you have not committed are in neither checkout.")
    commands = [StudyArm(name, tuple(words), environments[name]) for name in commits]
    with open_checkouts(folder, commits, commands, setup=options.setup, say=say) as arms:
        settings = _settings(options)
        study = Study(
            arms=arms,
            treatment=settings.treatment,
            workdir=str(folder.absolute()),
            revision=None,  # each arm has its own
            **read_plan(options),
        )
        settled = settle_options(folder, EngineChoice(devices=options.devices), settings)
        run_blocks(study, folder, settled, options, resume="the same command")
        if TREATMENT not in options.allow:
            _check_code(folder, commits)
    return compare_and_show([str(folder)], settled.settings, options)


def _settings(options: argparse.Namespace) -> Settings:
    """Return the rules: the code is the setting being tested, and there is always a gate."""
    from lightning_perf.compare.verdicts.gates import parse_gate

    settings = read_settings(options)
    treatment = tuple(dict.fromkeys((TREATMENT, *settings.treatment)))
    return replace(settings, treatment=treatment, gates=settings.gates or (parse_gate(DEFAULT_GATE),))


def _check_code(folder: Path, commits: Mapping[str, str]) -> None:
    """Check that the runs of each arm used its commit, since both arms would otherwise run the same code."""
    from lightning_perf.compare.study.definition import study_arms
    from lightning_perf.errors import CompareError

    arms = study_arms(folder)
    for name, commit in commits.items():
        for record in arms[name]:
            revision = record.facts.get("code.revision")
            if revision is not None and not str(revision).startswith(commit[:12]):
                raise CompareError(
                    f"The runs of {name} used the code {revision} instead of {commit[:12]}: the "
                    "script is not in the checkout. Give its path relative to the current folder. If it belongs to "
                    "another repository, e.g. a submodule, add --allow code."
                )


def _add_comment(parser: argparse.ArgumentParser) -> None:
    """Add the options of the comment."""
    group = parser.add_argument_group(
        "comment",
        "Write a file into a comment on the pull request of a GitHub Actions workflow, and exit. The next call updates "
        "the comment. It needs GitHub's command line 'gh', and a token in GITHUB_TOKEN or GH_TOKEN with the permission "
        "'pull-requests: write'. Without that permission and in workflows of other events, gate writes no comment, "
        "prints the reason, and exits with 0.",
    )
    group.add_argument("--comment", type=Path, metavar="FILE", help="run nothing, and write this Markdown as a comment")
    group.add_argument(
        "--key",
        type=_key,
        default="gate",
        metavar="NAME",
        help="identifies the comment. Give each job a key of its own if several comment (default: %(default)s)",
    )
    group.add_argument(
        "--pull-request",
        type=at_least(1),
        metavar="N",
        help="number of the pull request (default: that of the event, from GITHUB_EVENT_PATH)",
    )


def _key(text: str) -> str:
    if not _KEY.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a key: use letters, digits, dots, dashes and underscores")
    return text
