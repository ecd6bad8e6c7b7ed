"""``lightning-perf analyze``: print the report of a trace, a run, or a memory snapshot."""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_perf.arguments import (
    add_list,
    add_outputs,
    at_least,
    describe,
    positive,
    print_error,
    progress_printer,
    show,
)
from lightning_perf.errors import ExitCode, TraceError

if TYPE_CHECKING:
    from lightning_perf.findings.finding import Finding
    from lightning_perf.report.recordings import RecordingExecutor
    from lightning_perf.run_files.numerics.precision import PrecisionMistake
    from lightning_perf.run_files.probe import Probe

HELP = "report where the step time goes"

PROBE_SECONDS = 10.0
"""Time for a probe from the command line, where nobody waits for a training to end."""

SEVERITIES = ("high", "moderate", "low")
"""From the most severe. ``--fail-on`` takes one of them as *this or worse*."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command."""
    describe(
        parser,
        "Report where the step time goes and what to change, from any torch.profiler trace. For a snapshot of "
        "torch.cuda.memory, report who held the memory.",
        usage="[OPTIONS] [PATH]",
        examples=(
            "lightning-perf analyze lightning_logs/version_0/perf --html report.html",
            "lightning-perf analyze --fail-on high,input-bound    # the newest run",
            "lightning-perf analyze lightning_logs/version_0/perf --probe 30",
            "lightning-perf analyze snapshot.pickle --html memory.html    # of torch.cuda.memory",
        ),
        exit_codes={
            ExitCode.SUCCESS: "the report was printed",
            ExitCode.CHECK_FAILED: "--fail-on matched a finding",
        },
    )
    parser.add_argument(
        "path",
        nargs="?",
        metavar="PATH",
        help="a trace (.json or .json.gz), the folder of a run, or a memory snapshot (default: the newest run below "
        "the current folder)",
    )
    add_list(
        parser,
        "--fail-on",
        metavar="RULE",
        help="exit with 1 if a finding has this rule ID or severity; 'moderate' includes high, 'low' is any finding",
    )
    parser.add_argument("--by-shape", action="store_true", help="separate operators by the shapes of their inputs")
    parser.add_argument(
        "--link",
        type=positive,
        metavar="GB_PER_S",
        help="peak bandwidth of the link between the devices in one direction, e.g. 50 for InfiniBand NDR (default: "
        "of NVLink or PCIe, if all ranks share a machine)",
    )
    probe = parser.add_argument_group("probe")
    probe.add_argument(
        "--probe",
        nargs="?",
        type=_probe_seconds,
        const=PROBE_SECONDS,
        metavar="SECONDS",
        help="also run the recorded operators again on this machine, in the settings that findings advise, and "
        "estimate the gain of each. The folder of a run keeps the result for later reports (default of SECONDS: "
        f"{PROBE_SECONDS:g})",
    )
    probe.add_argument(
        "--compile",
        action="store_true",
        help="with --probe: also compile the recorded operators of a training on a processor, which takes a minute or "
        "more",
    )
    where = parser.add_argument_group("where it runs")
    where.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        metavar="ENGINE",
        help="local or ray: where the traces of many ranks are analyzed (default: %(default)s)",
    )
    where.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="address of the Ray cluster (default: RAY_ADDRESS, else Ray starts on this machine)",
    )
    where.add_argument(
        "--jobs",
        type=at_least(1),
        metavar="N",
        help="processes that analyze traces at once on this machine, fewer if memory is short (default: one per "
        "processor)",
    )
    add_outputs(parser, top=8)


def _probe_seconds(text: str) -> float:
    try:
        return positive(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error} of seconds. Give PATH before --probe") from None


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from lightning_perf.memory_snapshot.snapshot import is_snapshot
    from lightning_perf.report.build import analyze
    from lightning_perf.report.recordings import analyze_recordings

    _check_names(options.fail_on)
    if options.compile and options.probe is None:
        raise TraceError("--compile", "works only with --probe", "Add --probe, or leave it out")
    if options.jobs is not None and options.engine == "ray":
        raise TraceError("--jobs", "works only with --engine local", "Leave it out: Ray knows its processors")
    say = progress_printer(options.quiet)
    path = options.path
    if path is not None and is_snapshot(path):
        return _analyze_snapshot(Path(path), options)
    if path is None:
        path = find_newest_run(Path.cwd())
        say(f"analyzing the newest run below the current folder: {path.relative_to(Path.cwd())}")
    executor: RecordingExecutor = functools.partial(analyze_recordings, jobs=options.jobs, on_progress=say)
    if options.engine == "ray":
        from lightning_perf.compare.engines.ray import RayRecordings

        executor = RayRecordings(options.ray_address)
    probe = _probe(Path(path), options, say) if options.probe is not None else None
    link = options.link * 1e9 if options.link else None
    report = analyze(path, by_shape=options.by_shape, link_bytes_per_s=link, executor=executor, probe=probe)
    show(report, options, title=Path(path).resolve().name)
    matched: list[Finding | PrecisionMistake] = [
        finding
        for finding in (*report.findings, *report.fit_findings)
        if {finding.kind, *SEVERITIES[SEVERITIES.index(finding.severity) :]}.intersection(options.fail_on)
    ]
    if report.precision is not None:  # their severity is not one of lost time, so only an ID selects them
        matched += [mistake for mistake in report.precision.mistakes if mistake.kind in options.fail_on]
    if matched:
        names = ", ".join(f"{finding.kind} ({finding.severity})" for finding in matched)
        print_error(f"--fail-on {','.join(options.fail_on)} matched: {names}")
        return ExitCode.CHECK_FAILED
    return ExitCode.SUCCESS


def _analyze_snapshot(path: Path, options: argparse.Namespace) -> int:
    from lightning_perf.memory_snapshot.build import analyze_snapshot

    for option, given, lacks in (("--fail-on", options.fail_on, "findings"), ("--probe", options.probe, "operators")):
        if given:
            raise TraceError(
                option, f"{path} is a memory snapshot, which has no {lacks}", "Leave the option out, or give a trace"
            )
    show(analyze_snapshot(path), options, title=path.name)
    return ExitCode.SUCCESS


def _probe(path: Path, options: argparse.Namespace, say: Callable[[str], None]) -> Probe:
    """Probe a recording, and keep the result in the folder of its run."""
    from lightning_perf.probe.run import probe_path
    from lightning_perf.run_files.probe import write_probe
    from lightning_perf.run_files.traces import find_traces

    find_traces(path)  # an error of the path comes before any progress
    say(f"probing for about {options.probe:g} s{', and compiling for a minute or more' if options.compile else ''}")
    probe = probe_path(path, options.probe, compiles=options.compile)
    if path.is_dir():
        try:
            write_probe(path, probe)
        except OSError as error:  # the report has the probe in any case
            print_error(f"{path}: the probe could not be kept ({error.strerror})")
    return probe


def find_newest_run(folder: Path) -> Path:
    """Find the folder of the run with the newest trace in a folder or below it, without hidden folders."""
    from lightning_perf.run_files.captures import is_capture_folder
    from lightning_perf.run_files.traces import PROFILER_SUFFIXES

    found = []
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if is_capture_folder(Path(root)):
            continue
        for name in names:
            if name.endswith(PROFILER_SUFFIXES) and not name.startswith("."):
                with suppress(OSError):  # removed in the meantime, or a dangling link
                    found.append((Path(root, name).stat().st_mtime, Path(root)))
    if not found:
        raise TraceError(
            folder,
            "no folder below holds a trace (*.pt.trace.json or *.pt.trace.json.gz)",
            "Give the PATH of a trace or of a run, or record one: add PerfCallback() to your Trainer's callbacks",
        )
    return max(found)[1]


def _check_names(names: tuple[str, ...]) -> None:
    if not names:
        return
    from lightning_perf.findings.pages import read_symptoms

    rules = read_symptoms()
    for name in names:
        if name not in SEVERITIES and name not in rules:
            raise TraceError(
                "--fail-on",
                f"unknown rule or severity '{name}'",
                f"Choose from {', '.join(SEVERITIES)}; {', '.join(rules)}",
            )
