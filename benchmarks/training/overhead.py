"""Measure the overhead of observing a training: time of its steps with an observer over the time in a bare Trainer.

Each arm is a fit of its own. Arms run in rounds, in random order:

- bare: no callback;
- empty: a callback without hooks, which the Trainer still calls;
- timer: `PerfCallback` with a window that is never reached;
- perf: `PerfCallback` with its window in the middle of the fit;
- pytorch: Lightning's own ``Trainer(profiler="pytorch")`` with the same window.

Lightning's profiler would affect other arms in its process. So it has a process of its own, with a bare arm in it. A
ratio always refers to the bare fit of the same process and round.

The steps of a fit are split into those outside of the window (before and after it, without the first ones), inside, and
after. The main figure is the CPU time of the process, which other work on the machine disturbs least; wall time is next
to it. Ratios are geometric means over rounds with their 95 % t interval. Microseconds are the median of Walsh averages
of the rounds' differences with its signed-rank interval, which a disturbed round hardly moves. A callback's work does
not depend on the length of the step. So its microseconds on the short step, where rounds differ least, also give its
share of longer steps.

If the Trainer has no profiler of its own, `PerfCallback` saves the Trainer the calls of its idle profiler. The figures
include this saving, as every fit does.

Run as ``python -m benchmarks.training.overhead [--device cuda]``. It prints a table, and writes it and the raw times to
``benchmarks/results/``, or to the files that ``--out`` names. On a GPU the process of `PerfCallback` trains under
``torch.cuda.set_sync_debug_mode("error")`` outside of the window: a step that waits for the device ends the benchmark
with an error.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.options import make_parser
from benchmarks.quiet import QUIET_TRAINER, be_quiet
from benchmarks.versions import known_versions
from lightning_perf import PerfCallback
from lightning_perf.machine.environment import cpu_name
from lightning_perf.statistics.location import paired_ratio
from lightning_perf.statistics.ranks import walsh_interval
from lightning_perf.statistics.values import Estimate

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "overhead"
METHOD = 3
"""Version of the method: figures of different versions are not comparable."""

NEVER = 10**9
SKIP_FIRST, WARMUP, ACTIVE = 100, 3, 5
WINDOW = range(SKIP_FIRST, SKIP_FIRST + WARMUP + ACTIVE + 1)
"""Steps under the profiler; the last one holds the end of the window, which comes when the next step begins."""
SETTLED = 20
"""Steps left out at the beginning of a fit, and before and after the window."""

PROCESSES = {"perf": ("bare", "empty", "timer", "perf"), "pytorch": ("bare", "pytorch")}
"""The arms of each process."""
SHORT, LONG = "step of about 1 ms", "step of about 10 ms"
MODELS = {
    "cpu": {SHORT: (64, 32, 4), LONG: (512, 128, 1)},
    "cuda": {SHORT: (64, 32, 4), LONG: (4096, 1280, 1)},
}
"""By device: width of the layers, batch size, and how many times ``--steps`` to train. On an H100 the long step takes
about 10 ms in FP32: 0.5 TFLOP at 52 TFLOP/s."""
PARTS = ("outside", "inside", "after")


@dataclass(frozen=True)
class Fit:
    """Mean times of a step in one fit, in milliseconds, by part of the fit.

    Attributes:
        process: Key of `PROCESSES`.
        model: `SHORT` or `LONG`.
        arm: One of the process's arms.
        round: Number of the round.
        cpu_ms: CPU time of the process.
        wall_ms: Wall time.
    """

    process: str
    model: str
    arm: str
    round: int
    cpu_ms: dict[str, float]
    wall_ms: dict[str, float]


class Clock(pl.Callback):
    """Notes when steps begin; first of the callbacks, so that a step holds the hooks of all.

    Args:
        strict: Whether torch has to raise where a step outside of the window waits for the device.
    """

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict
        self.cpu_ns: list[int] = []
        self.wall_ns: list[int] = []

    def on_train_batch_start(self, *_: Any) -> None:
        """A step begins."""
        self.cpu_ns.append(time.process_time_ns())
        self.wall_ns.append(time.perf_counter_ns())
        step = len(self.wall_ns) - 1
        if self.strict and step in (SETTLED, WINDOW.start - 1, WINDOW.stop + SETTLED):
            torch.cuda.set_sync_debug_mode("default" if step == WINDOW.start - 1 else "error")

    def on_train_epoch_end(self, *_: Any) -> None:
        """Allow synchronization again: after the last step, the end of the fit may wait for the device."""
        if self.strict:
            torch.cuda.set_sync_debug_mode("default")


class Layers(pl.LightningModule):
    """Four linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            *(part for _ in range(4) for part in (torch.nn.Linear(width, width), torch.nn.ReLU()))
        )

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        """A loss to have gradients of."""
        return self.layers(batch[0]).square().mean()  # type: ignore[no-any-return]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain gradient descent."""
        return torch.optim.SGD(self.parameters(), 1e-3)


def observers(arm: str, folder: str) -> tuple[list[pl.Callback], Any]:
    """The callbacks and the profiler of an arm."""
    if arm == "empty":
        return [pl.Callback()], None
    if arm in ("timer", "perf"):
        skip_first = NEVER if arm == "timer" else SKIP_FIRST
        return [PerfCallback(skip_first=skip_first, warmup=WARMUP, active=ACTIVE, report="none")], None
    if arm == "pytorch":
        schedule = torch.profiler.schedule(wait=SKIP_FIRST, warmup=WARMUP, active=ACTIVE, repeat=1)
        return [], pl.profilers.PyTorchProfiler(dirpath=folder, filename="profile", schedule=schedule)
    return [], None


def mean_ms(times_ns: list[int]) -> dict[str, float]:
    """Mean step of each part of a fit, from the times at which steps begin."""
    steps = [(end - begin) / 1e6 for begin, end in itertools.pairwise(times_ns)]
    after = steps[WINDOW.stop + SETTLED :]
    parts = {
        "outside": steps[SETTLED : WINDOW.start - 1] + after,
        "inside": steps[WINDOW.start - 1 : WINDOW.stop],
        "after": after,
    }
    return {part: sum(kept) / len(kept) for part, kept in parts.items()}


def fit(process: str, model: str, arm: str, number: int, steps: int, device: str) -> Fit:
    """Train once."""
    width, batch, times = MODELS[device][model]
    steps *= times
    torch.manual_seed(0)
    if device == "cuda":  # One batch that stays on the device: copies would be most of the long step.
        data = DataLoader(
            TensorDataset(torch.randn(batch, width, device=device).expand(steps, -1, -1)), batch_size=None
        )
    else:
        data = DataLoader(TensorDataset(torch.randn(batch * steps, width)), batch)
    clock = Clock(strict=device == "cuda" and process == "perf")
    with tempfile.TemporaryDirectory() as folder:
        callbacks, profiler = observers(arm, folder)
        trainer = pl.Trainer(
            default_root_dir=folder,
            max_epochs=1,
            accelerator=device,
            devices=1,
            callbacks=[clock, *callbacks],
            profiler=profiler,
            **QUIET_TRAINER,
        )
        trainer.fit(Layers(width), data)
    return Fit(process, model, arm, number, mean_ms(clock.cpu_ns), mean_ms(clock.wall_ns))


def work(process: str, steps: int, device: str) -> None:
    """Run rounds as they are asked for on standard input, and answer each with its fits, in a line of JSON."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of the arms must not mix with the answers
    torch.set_num_threads(1)
    be_quiet()
    for line in sys.stdin:
        number = int(line)
        order = random.Random(number)
        arms = PROCESSES[process]
        fits = [
            fit(process, model, arm, number, steps, device)
            for model in (SHORT, LONG)
            for arm in order.sample(arms, len(arms))
        ]
        print(json.dumps([asdict(each) for each in fits]), file=answers, flush=True)


def start(process: str, python: str, steps: int, device: str) -> subprocess.Popen[str]:
    """Start a process of `work`."""
    command = [
        python,
        "-m",
        "benchmarks.training.overhead",
        "--process",
        process,
        "--steps",
        str(steps),
        "--device",
        device,
    ]
    stderr = subprocess.DEVNULL if device == "cpu" else None  # where a step may have waited for the device
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True)


def ask(worker: subprocess.Popen[str], number: int) -> list[Fit]:
    """Have a process run a round."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(f"{number}\n")
    worker.stdin.flush()
    answer = worker.stdout.readline()
    if not answer:
        raise SystemExit(f"{' '.join(map(str, worker.args))} ended with {worker.wait()}")  # type: ignore[arg-type]
    return [Fit(**each) for each in json.loads(answer)]


def table(fits: list[Fit]) -> str:
    """The result as a Markdown table."""
    return "\n".join(
        [
            "| model | arm | CPU over bare, µs/step | CPU, outside window | wall, outside | inside | after |",
            "|---|---|---|---|---|---|---|",
            *_rows(fits),
        ]
    )


def _rows(fits: list[Fit]) -> Iterator[str]:
    for model in (SHORT, LONG):
        for process, arms in PROCESSES.items():
            runs = {arm: [f for f in fits if (f.model, f.process, f.arm) == (model, process, arm)] for arm in arms}
            bare = runs["bare"]
            for arm in arms[1:] if bare else ():
                own = runs[arm]
                extra_ms = [o.cpu_ms["outside"] - b.cpu_ms["outside"] for o, b in zip(own, bare, strict=True)]
                extra = walsh_interval([each * 1e3 for each in extra_ms])
                cells = [_ratio([f.cpu_ms[part] for f in bare], [f.cpu_ms[part] for f in own]) for part in PARTS]
                cells.insert(1, _ratio([f.wall_ms["outside"] for f in bare], [f.wall_ms["outside"] for f in own]))
                yield f"| {model} | {arm} | {_estimate(extra, '+.0f')} | {' | '.join(cells)} |"


def _ratio(bare: list[float], own: list[float]) -> str:
    return _estimate(paired_ratio(bare, own), ".3f")


def _estimate(estimate: Estimate, form: str) -> str:
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return f"not known ({estimate.reason})"
    return f"{estimate.value:{form}} ({estimate.low:{form}} – {estimate.high:{form}})"


def main() -> None:
    """Measure, print and write."""
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="fits of each arm (default: 30)")
    parser.add_argument("--minutes", type=float, help="start no further round after this time (default: no limit)")
    parser.add_argument(
        "--steps", type=int, default=200, help="steps of a fit, four times as many of the short ones (default: 200)"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to train (default: cpu)")
    parser.add_argument(
        "--out", type=Path, help="results, without suffix (default: benchmarks/results/overhead, or …_cuda)"
    )
    parser.add_argument("--process", choices=PROCESSES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.steps < WINDOW.stop + 2 * SETTLED:
        parser.error(f"--steps is too small: give {WINDOW.stop + 2 * SETTLED} or more, to have some after the window")
    if arguments.process:
        work(arguments.process, arguments.steps, arguments.device)
        return
    device = arguments.device
    results = arguments.out or (RESULTS if device == "cpu" else RESULTS.with_name(f"{RESULTS.name}_{device}"))
    machine = cpu_name() if device == "cpu" else f"{torch.cuda.get_device_name()}, {cpu_name()}"
    pythons = {"perf": sys.executable, "pytorch": sys.executable}
    versions = known_versions()
    workers = {process: start(process, python, arguments.steps, device) for process, python in pythons.items()}
    deadline = time.monotonic() + 60 * arguments.minutes if arguments.minutes else float("inf")
    results.parent.mkdir(parents=True, exist_ok=True)
    kept: list[Fit] = []
    try:
        for number in range(-1, arguments.rounds):  # the first round warms up and is left out
            for process in random.Random(number).sample(list(workers), len(workers)):
                fits = ask(workers[process], number)
                kept += fits if number >= 0 else []
            if number >= 0:
                _write(results, kept, arguments.steps, number + 1, machine, versions)
            if time.monotonic() > deadline:
                break
    finally:
        for worker in workers.values():
            worker.kill()
            worker.wait()
    print(results.with_suffix(".md").read_text(encoding="utf-8"))


def _write(results: Path, fits: list[Fit], steps: int, rounds: int, machine: str, versions: dict[str, str]) -> None:
    """Write the page and the raw times of the rounds so far."""
    text = (
        f"# Overhead\n\nWritten by `python -m benchmarks.training.overhead`, method {METHOD}: time of a step "
        f"over that of a "
        f"bare Trainer, with its 95 % interval. {rounds} rounds of {steps} steps, one thread, {machine}. "
        + ", ".join(f"{name.removeprefix('version.')} {value}" for name, value in versions.items())
        + f".\n\n{table(fits)}\n"
    )
    results.with_suffix(".md").write_text(text, encoding="utf-8")
    raw = {"method": METHOD, "steps": steps, "cpu": machine, **versions, "fits": [asdict(f) for f in fits]}
    results.with_suffix(".json").write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
