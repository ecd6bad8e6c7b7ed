"""Check the estimates of findings: profile networks, follow every advice, and compare the gains with the estimates.

No factor of a rule was fitted to the networks of `benchmarks.savings.networks`. Each one is profiled as a user would do
it, in its own process. Then every advice is followed, even if the report does not give it: 16-bit precision, channels
last, two threads, twice the batch and a fused optimizer. Each setting has processes of its own, as a user's trainings
have: glibc treats memory according to the blocks that a process freed before. Settings alternate every few steps. A
gain compares the means, over the processes, of the lower quartiles of the step times of all rounds.

Run as ``python -m benchmarks.savings.estimates`` on a quiet machine without a GPU. It takes about two hours on two
cores. Processes of the same training differ by the state of their memory, so a trial with ``--processes 1`` is quick
but less certain. It writes three files to ``benchmarks/results/``:

- ``estimates.md``: the table
- ``estimates.json``: all rows, kept after each network, so that ``--resume`` continues an interrupted run
- ``estimates.jsonl``: the given estimates with their outcomes, which ``lightning-perf explain --estimates`` reads

The errors of probed ranges come from the first 24 networks. ``--set fresh`` measures others, to which no constant was
fitted (``estimates_fresh.md``). ``--set compiled`` follows the estimate of ``analyze --probe --compile`` instead
(``compile_estimates.md``). It needs a C++ compiler.

After a change to the estimates, ``--estimates-only`` profiles the networks again and keeps the measured gains.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import lightning.pytorch as pl
import msgspec
import torch

from benchmarks.options import make_parser, markdown_table
from benchmarks.processes import load_average, run_module
from benchmarks.quiet import be_quiet
from benchmarks.savings.fits import BASELINE, Fits, Setting, gain_of, measure_apart, usual_step_s
from benchmarks.savings.networks import SETS, Network
from benchmarks.versions import device_name, known_versions, versions_text
from lightning_perf import PerfCallback
from lightning_perf.estimates.calibration import verdict_of
from lightning_perf.findings.finding import Finding
from lightning_perf.probe.run import probe_path
from lightning_perf.report.build import analyze
from lightning_perf.run_files.atomic import replace_file
from lightning_perf.run_files.estimates import ESTIMATES, EstimateOutcome, Source
from lightning_perf.statistics.collapse import clopper_pearson
from lightning_perf.statistics.values import Estimate

RESULTS = {
    name: Path(__file__).parents[1] / "results" / f"{page}.md"
    for name, page in {"seen": "estimates", "fresh": "estimates_fresh", "compiled": "compile_estimates"}.items()
}
TRIAL = Path("build") / "estimates" / "estimates.md"
"""Page of a run with other networks, or with only some of them."""

DESCRIPTIONS = {
    "seen": "known when the errors of probed ranges were chosen",
    "fresh": "that no constant was fitted to",
    "planted": "that constants were fitted to",
    "compiled": "that the error of estimates of torch.compile was not fitted to",
}
METHOD = 4
"""Version of the method: figures of different versions are not comparable."""

PROFILED_STEPS = 3
PROBE_S = 5.0

BUSY = (
    "The machine was busy, and this benchmark had priority. A report holds its estimates back on a busy machine, and "
    "they are used here all the same. Two threads were not measured, because the other core was busy.\n\n"
)

WORTH = 0.05
"""A certain gain of more than this share of the step is one that advice should not have missed."""

HARM = 0.03
"""Advice that makes the step slower by more than this share is wrong."""


ADVICE: dict[str, Setting] = {
    "bf16-mixed": Setting("cpu-bf16", precision="bf16-mixed"),
    "channels last": Setting("cpu-channels-last", channels_last=True),
    "two threads": Setting("cpu-threads", threads=2),
    "twice the batch": Setting("cpu-overhead", batches=2),
    "fused optimizer": Setting("unfused-optimizer", fused=True),
}
COMPILING = {"torch.compile": Setting("cpu-overhead", compiled=True)}
"""The advice of the set ``compiled``."""


@dataclass(frozen=True)
class Given:
    """The estimate that a report gave.

    Attributes:
        low: Least saving as a share of the step.
        high: Most saving as a share of the step.
        source: Source of the estimate.
    """

    low: float
    high: float
    source: Source


@dataclass(frozen=True)
class Profile:
    """The findings of a profiled fit.

    Attributes:
        step_ms: Median time of its steps without the profiler.
        findings: The findings, by the IDs of their rules.
        compiled: The estimate of `torch.compile`, which is in no finding.
    """

    step_ms: float
    findings: Mapping[str, Finding]
    compiled: Given | None = None

    def given(self, rule: str) -> Given | None:
        """Return the estimate of a rule, as shares of the step without the profiler; None without one."""
        if self.compiled is not None:
            return self.compiled
        finding = self.findings.get(rule)
        if finding is None or finding.saving_low_ms is None or finding.saving_high_ms is None:
            return None
        return Given(finding.saving_low_ms / self.step_ms, finding.saving_high_ms / self.step_ms, finding.basis)


@dataclass(frozen=True)
class Row:
    """The outcome of one advice on one network.

    Attributes:
        network: The network.
        advice: The advice.
        rule: ID of the rule that would give it.
        step_ms: Usual step time of the baseline.
        given: The estimate; None if the report did not give the advice.
        gain: Measured gain as a share of the step, for as many samples.
    """

    network: str
    advice: str
    rule: str
    step_ms: float
    given: Given | None
    gain: Estimate

    @property
    def outcome(self) -> EstimateOutcome | None:
        """The estimate with its outcome, as the store keeps it; None without an estimate."""
        gain = self.gain
        if self.given is None or gain.value is None:
            return None
        return EstimateOutcome(
            rule=self.rule,
            setting=self.advice,
            step_ms=self.step_ms,
            low_ms=self.given.low * self.step_ms,
            high_ms=self.given.high * self.step_ms,
            source=self.given.source,
            gain_ms=gain.value * self.step_ms,
            gain_low_ms=None if gain.low is None else gain.low * self.step_ms,
            gain_high_ms=None if gain.high is None else gain.high * self.step_ms,
            method="benchmark",
            measurement=f"benchmarks.savings.estimates, {self.network}",
            network=self.network,
            machine=device_name(),
            versions=known_versions(),
        )

    @property
    def verdict(self) -> str:
        """Whether the gain is inside the estimate, or whether the report was right to give none."""
        if (outcome := self.outcome) is not None:
            return verdict_of(outcome)
        if (self.gain.low or 0.0) > WORTH:
            return "missed"
        return "rightly not given" if (self.gain.value or 0.0) <= WORTH else "cannot be told"

    @property
    def width(self) -> float | None:
        """Upper end of the estimate divided by the lower one; None without an estimate or without a positive end."""
        return None if (outcome := self.outcome) is None else outcome.width


class Measured(msgspec.Struct):
    """The results of one network.

    Attributes:
        network: Its name.
        method: Version of the method.
        rows: One row for each advice that applies.
        seconds: Time that it took.
        processes: Processes of each setting.
    """

    network: str
    method: int
    rows: list[Row]
    seconds: float
    processes: int = 1


def profile(fits: Fits, *, held_back: bool, compiles: bool = False) -> Profile:
    """Profile a fit, and return also the findings that its report holds back if asked to."""
    fits.fit(pl.Callback(), 3)  # loads kernels
    with tempfile.TemporaryDirectory() as folder:
        skipped = 10
        steps: dict[str, object] = {"skip_first": skipped, "warmup": 2, "active": PROFILED_STEPS, "repeat": 1}
        if "probe" in inspect.signature(PerfCallback).parameters:
            steps["probe"] = PROBE_S
        callback = PerfCallback(dirpath=folder, report="none", **steps)  # type: ignore[arg-type]
        fits.fit(callback, skipped + 3 + PROFILED_STEPS)
        recording = next(Path(folder).rglob("*.pt.trace.json.gz")).parent
        report = analyze(recording)
        assert report.step_times is not None
        step_ns, compiled = report.step_times.p50_ns, None
        if compiles:
            change = probe_path(recording, PROBE_S, compiles=True).change("compile")
            assert change is not None, "the probe could not compile"
            compiled = Given(change.low_ns / step_ns, change.high_ns / step_ns, "probed")
        findings = (*report.findings, *(held.finding for held in report.held_back if held_back))
        return Profile(step_ns / 1e6, {finding.kind: finding for finding in findings}, compiled)


def estimate_again(measured: Measured, network: Network, *, held_back: bool) -> Measured:
    """Profile a network, and return its measured gains with the new estimates."""
    compiles = any(row.advice in COMPILING for row in measured.rows)
    found = profile(Fits(network, BASELINE), held_back=held_back, compiles=compiles)
    rows = [replace(row, given=found.given(row.rule)) for row in measured.rows]
    return msgspec.structs.replace(measured, rows=rows)


def measure(
    name: str,
    network: Network,
    *,
    rounds: int,
    block_s: float,
    processes: int,
    only: Sequence[str],
    held_back: bool,
) -> Measured:
    """Profile one network, and follow every advice that applies.

    Args:
        name: Its name.
        network: The network.
        rounds: Times that each process trains for a few steps.
        block_s: Time that the timed steps of a round take, about.
        processes: Processes of each setting.
        only: The kinds of advice to follow.
        held_back: Whether to use estimates that the report holds back, because the machine is busy.
    """
    began = time.monotonic()
    fits = Fits(network, BASELINE)
    settings = {advice: (ADVICE | COMPILING)[advice] for advice in only}
    if not fits.has_images():
        settings.pop("channels last", None)
    found = profile(fits, held_back=held_back, compiles=not COMPILING.keys().isdisjoint(settings))
    rows = []
    names = list(settings)
    together = fits.settings_in_memory() - 1
    for at in range(0, len(names), together):
        group = {advice: settings[advice] for advice in names[at : at + together]}
        times = measure_apart(name, {"": BASELINE, **group}, rounds=rounds, block_s=block_s, processes=processes)
        step_ms = 1e3 * usual_step_s(times[""])
        for advice, setting in group.items():
            gain = gain_of(times[""], times[advice])
            rows.append(Row(name, advice, setting.rule, step_ms, found.given(setting.rule), gain))
    return Measured(name, METHOD, rows, time.monotonic() - began, processes)


def cells(row: Row) -> tuple[str, ...]:
    """Return one row of the table."""
    estimate = width = source = "–"
    if row.given is not None:
        estimate = f"{100 * row.given.low:.1f} – {100 * row.given.high:.1f}"
        source = row.given.source
        width = "∞" if row.width is None else f"{row.width:.2f}"
    gain = row.gain
    interval = "" if gain.low is None or gain.high is None else f" ({100 * gain.low:.1f} – {100 * gain.high:.1f})"
    measured = "–" if gain.value is None else f"{100 * gain.value:.1f}{interval}"
    verdict = row.verdict if row.verdict in ("inside", "rightly not given", "cannot be told") else f"**{row.verdict}**"
    return row.network, row.advice, f"{row.step_ms:.1f}", estimate, source, measured, verdict, width


@dataclass(frozen=True)
class Goals:
    """The figures of all rows that have a goal.

    Attributes:
        given: Rows with an estimate.
        inside: Gains inside their estimates.
        outside: Gains certainly outside.
        median_width: Median width of the estimates.
        wide: 90th percentile of their widths.
        harmful: Given advice that certainly makes the step more than 3 % slower.
        large: Gains that are certainly over 5 % of the step.
        advised: How many of these the reports advised.
    """

    given: int
    inside: int
    outside: int
    median_width: float
    wide: float
    harmful: int
    large: int
    advised: int


def goals(rows: Sequence[Row]) -> Goals:
    """Count the figures of rows that have a goal."""
    with_estimate = [row for row in rows if row.given is not None]
    verdicts = [row.verdict for row in with_estimate]
    widths = sorted(float("inf") if row.width is None else row.width for row in with_estimate)
    large = [row for row in rows if (row.gain.low or 0.0) > WORTH]
    return Goals(
        given=len(with_estimate),
        inside=verdicts.count("inside"),
        outside=verdicts.count("above") + verdicts.count("below"),
        median_width=_quantile(widths, 0.5),
        wide=_quantile(widths, 0.9),
        harmful=sum(row.gain.high is not None and row.gain.high < -HARM for row in with_estimate),
        large=len(large),
        advised=sum(row.given is not None for row in large),
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile that is one of the values, so that infinite ones do no harm."""
    if not ordered:
        return float("nan")
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def summary(rows: Sequence[Row]) -> str:
    """Return the figures that have a goal, one line each."""
    found = goals(rows)
    inside = clopper_pearson(found.inside, found.given)
    spread = "" if inside.value is None else f", {_share(inside.value)} ({_share(inside.low)} to {_share(inside.high)})"
    undecided = found.given - found.inside - found.outside
    outside = f"{found.outside} certainly outside, {undecided} cannot be told"
    rows_of_goals = (
        ("width of the estimate, median", "at most 1.5", f"{found.median_width:.2f}"),
        ("width of the estimate, 90th percentile", "at most 2.5", f"{found.wide:.2f}"),
        ("gains inside the estimate", "at least 85 %", f"{found.inside} of {found.given}{spread}; {outside}"),
        ("advice that makes the step more than 3 % slower", "0", found.harmful),
        ("gains over 5 % that were advised", "at least 80 %", f"{found.advised} of {found.large}"),
    )
    return markdown_table(("figure", "goal", "measured"), rows_of_goals).replace("inf", "∞")


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


HEADS = ("network", "advice", "step, ms", "estimate, %", "source", "gain, % (95 % interval)", "verdict", "width")


def page(measured: Sequence[Measured], options: argparse.Namespace) -> str:
    """Return the page of results."""
    rows = [row for one in measured for row in one.rows]
    minutes = sum(one.seconds for one in measured) / 60
    processes = max((one.processes for one in measured), default=1)
    each = "one process" if processes == 1 else f"{processes} processes"
    return (
        f"# Estimates and measured gains\n\nWritten by `python -m benchmarks.savings.estimates`, method {METHOD}: "
        f"{len(measured)} networks {DESCRIPTIONS[options.set]}, {each} per setting with {options.rounds} rounds of a "
        f"few steps, {minutes:.0f} minutes in all. {device_name()}, one thread where no other number is given; load "
        f"average {load_average()} at the end, including this benchmark. {versions_text()}.\n\n"
        f"{BUSY if options.busy else ''}{summary(rows)}\n\n"
        "Estimates and gains are percentages of the step. A gain is *inside* if it is in the estimated range, and "
        "*above* or *below* if its whole 95 % interval is outside. It is *missed* if the report gave no advice that "
        "certainly saves more than 5 %.\n\n"
        f"{markdown_table(HEADS, map(cells, rows))}\n"
    )


def keep(measured: Sequence[Measured], options: argparse.Namespace) -> None:
    """Write all results so far: the page, the rows, and the store of measured estimates."""
    target: Path = options.results
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_file(target, page(measured, options).encode())
    replace_file(target.with_suffix(".json"), msgspec.json.format(msgspec.json.encode(list(measured)), indent=1))
    outcomes = [outcome for one in measured for row in one.rows if (outcome := row.outcome) is not None]
    replace_file(target.with_suffix(".jsonl"), ESTIMATES.encode(*outcomes))


def apart(name: str, options: argparse.Namespace, before: Measured | None = None) -> Measured:
    """Measure one network in its own process, or only profile it if its gains are known."""
    given: list[object] = ["--set", options.set, "--measure", name, "--advice", options.advice]
    given += ["--rounds", options.rounds, "--block", options.block, "--processes", options.processes]
    given += ["--busy"] * options.busy + ["--estimates-only"] * (before is not None)
    known = None if before is None else msgspec.json.encode(before)
    return msgspec.json.decode(run_module("benchmarks.savings.estimates", *given, given=known), type=Measured)


def earlier(options: argparse.Namespace) -> dict[str, Measured]:
    """Return the results that an interrupted run of the same method left."""
    path = options.results.with_suffix(".json")
    if not (options.resume or options.estimates_only) or not path.exists():
        return {}
    found = msgspec.json.decode(path.read_bytes(), type=list[Measured])
    return {one.network: one for one in found if one.method == METHOD}


def main() -> None:
    """Measure, print and write."""
    parser = make_parser(__doc__)
    parser.add_argument("--results", type=Path, help=f"page to write (default: {RESULTS['seen']}; a trial: {TRIAL})")
    parser.add_argument("--set", choices=tuple(SETS), default="seen", help="networks (default: seen)")
    parser.add_argument("--rounds", type=int, default=12, help="rounds of each process (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=3, help="processes of each setting (default: %(default)s)")
    parser.add_argument(
        "--block", type=float, default=0.3, metavar="SECONDS", help="timed steps of a round (default: %(default)s)"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="only networks with TEXT in their name")
    parser.add_argument("--advice", default="", metavar="TEXT", help="only advice with TEXT in its name")
    parser.add_argument("--resume", action="store_true", help="keep networks that an interrupted run has measured")
    parser.add_argument(
        "--estimates-only", action="store_true", help="keep all measured gains, and only profile the networks again"
    )
    parser.add_argument(
        "--busy",
        action="store_true",
        help="a trial on a busy machine: use estimates that reports hold back, and leave out two threads",
    )
    parser.add_argument(
        "--tiny", action="store_true", help="one network, one process, two rounds: a test of the benchmark itself"
    )
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if torch.cuda.is_available():
        parser.error("the advice is for processors: hide the GPU (CUDA_VISIBLE_DEVICES=)")
    if options.tiny:
        options.set, options.only, options.rounds, options.block, options.processes = "planted", "MLP", 2, 0.05, 1
    if options.rounds < 1 or options.processes < 1:
        parser.error("--rounds and --processes must be at least 1")
    whole = not (options.only or options.advice)
    if options.results is None:
        options.results = RESULTS.get(options.set, TRIAL) if whole else TRIAL
    networks = SETS[options.set]
    if options.measure:
        be_quiet()
        network = networks[options.measure]
        if options.estimates_only:
            found = estimate_again(
                msgspec.json.decode(sys.stdin.buffer.read(), type=Measured), network, held_back=options.busy
            )
        else:
            every = COMPILING if options.set == "compiled" else ADVICE
            chosen = [advice for advice in every if options.advice in advice and not (options.busy and "two" in advice)]
            found = measure(
                options.measure,
                network,
                rounds=options.rounds,
                block_s=options.block,
                processes=options.processes,
                only=chosen,
                held_back=options.busy,
            )
        print(msgspec.json.encode(found).decode())
        return
    names = [name for name in networks if options.only.lower() in name.lower()]
    if not names:
        parser.error(f"no network contains {options.only!r}: {', '.join(networks)}")
    if not any(options.advice in advice for advice in (*ADVICE, *COMPILING)):
        parser.error(f"no advice contains {options.advice!r}: {', '.join(ADVICE)}")
    done = earlier(options)
    if options.estimates_only:
        names = [name for name in names if name in done]
    if not names:
        parser.error(f"{options.results.with_suffix('.json')}: holds no measured gains. Leave out --estimates-only.")
    for name in names:
        if name in done and not options.estimates_only:
            continue
        done[name] = apart(name, options, done.get(name))
        for row in done[name].rows:
            print(*cells(row), sep=" | ", flush=True)
        keep([done[each] for each in networks if each in done], options)
    print(page([done[name] for name in names], options))


if __name__ == "__main__":
    main()
