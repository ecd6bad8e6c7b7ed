"""Check the estimates of ``analyze --probe --compile``: probe networks, compile them, and compare the gains.

Each network is recorded in its own process. Its recorded calls are compiled in a worker process of the probe, and the
gain of ``torch.compile`` is estimated. Then fits with and without ``torch.compile`` alternate every few steps.

Run as ``python -m benchmarks.savings.compile_estimates`` on a quiet machine without a GPU, with a C++ compiler. It
takes about three minutes per network on two cores, and writes ``benchmarks/results/compile_estimates.md``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import torch

from benchmarks.options import make_parser
from benchmarks.quiet import be_quiet
from benchmarks.savings.estimates import METHOD, PROFILED_STEPS, WORTH, Given, Measured, Row, goals, line
from benchmarks.savings.fits import BASELINE, Fits, Setting, gain_of, measure_apart, usual_step_s
from benchmarks.savings.networks import ALL, Network
from benchmarks.versions import device_name, versions_text
from lightning_perf import PerfCallback
from lightning_perf.probe.run import probe_path

RESULTS = Path(__file__).parents[1] / "results" / "compile_estimates.md"

NETWORKS = (
    "CNN",
    "ResNet-18",
    "transformer",
    "MobileNetV3-small",
    "RegNetY-400MF",
    "DeiT-tiny",
    "GPT, 6 layers of 256",
    "GhostNet",
    "PoolFormer-S12",
    "ConvMixer-256/8",
    "SqueezeNet 1.1",
)

COMPILED = Setting("cpu-overhead", compiled=True)
SKIPPED_STEPS = 10


def measure(name: str, network: Network, *, rounds: int, block_s: float) -> Measured:
    """Probe a network with its compiled calls, and measure the gain of compiling it."""
    began = time.monotonic()
    fits = Fits(network, BASELINE)
    with tempfile.TemporaryDirectory() as folder:
        callback = PerfCallback(
            dirpath=folder, report="none", skip_first=SKIPPED_STEPS, active=PROFILED_STEPS, repeat=1, probe=False
        )
        fits.fit(callback, SKIPPED_STEPS + 3 + PROFILED_STEPS)
        probe = probe_path(next(Path(folder).rglob("*.pt.trace.json.gz")).parent, 5.0, compiles=True)
    change = probe.change("compile")
    if change is None:
        raise SystemExit(f"{name}: {probe.skipped['torch.compile']}")
    times = measure_apart(name, {"": BASELINE, "torch.compile": COMPILED}, rounds=rounds, block_s=block_s)
    step_s = usual_step_s(times[""])
    row = Row(
        name,
        "torch.compile",
        COMPILED.rule,
        step_s * 1e3,
        Given(change.low_ns / (step_s * 1e9), change.high_ns / (step_s * 1e9), "probed"),
        gain_of(times[""], times["torch.compile"]),
    )
    return Measured(name, METHOD, [row], time.monotonic() - began)


def page(measured: list[Measured], rounds: int) -> str:
    """Return the page of results."""
    rows = [row for one in measured for row in one.rows]
    found = goals(rows)
    large = goals([row for row in rows if (row.gain.low or 0.0) > WORTH])
    return (
        "# Estimates of torch.compile and measured gains\n\n"
        f"Written by `python -m benchmarks.savings.compile_estimates`: {rounds} rounds of a few steps in each "
        f"setting, with one process per setting. {device_name()}, one thread; load average {os.getloadavg()[0]:.1f} at "
        f"the end, including this benchmark. {versions_text()}.\n\n"
        f"{found.inside} of {found.given} gains are inside the estimate. Of gains over 5 %, {large.inside} of "
        f"{large.given} are. The error of the estimate was chosen before these measurements.\n\n"
        "Estimates and gains are percentages of the step. A report leaves out an estimate that starts below 3 %.\n\n"
        "| network | advice | step, ms | estimate, % | source | gain, % (95 % interval) | verdict | width |\n"
        "|---|---|---|---|---|---|---|---|\n" + "\n".join(map(line, rows)) + "\n"
    )


def main() -> None:
    """Measure, print and write."""
    parser = make_parser(__doc__, RESULTS)
    parser.add_argument("--rounds", type=int, default=20, help="rounds of both settings (default: %(default)s)")
    parser.add_argument(
        "--block", type=float, default=0.3, metavar="SECONDS", help="timed steps of a round (default: %(default)s)"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="only networks with TEXT in their name")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if torch.cuda.is_available():
        parser.error("the calls are compiled for processors: hide the GPU (CUDA_VISIBLE_DEVICES=)")
    networks = {name: ALL[name] for name in NETWORKS}
    if options.measure:
        be_quiet()
        found = measure(options.measure, networks[options.measure], rounds=options.rounds, block_s=options.block)
        print(msgspec.json.encode(found).decode())
        return
    measured: list[Measured] = []
    for name in networks:
        if options.only.lower() not in name.lower():
            continue
        command = [sys.executable, "-m", "benchmarks.savings.compile_estimates", "--measure", name]
        command += ["--rounds", str(options.rounds), "--block", str(options.block)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        measured.append(msgspec.json.decode(done.stdout.splitlines()[-1], type=Measured))
        print("\n".join(map(line, measured[-1].rows)), flush=True)
    if not measured:
        parser.error(f"no network contains {options.only!r}: {', '.join(networks)}")
    text = page(measured, options.rounds)
    if options.only:
        print(text)
    else:
        options.results.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
