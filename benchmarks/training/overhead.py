"""Measure the cost of `PerfCallback` in trainings as users write them, in processor and in wall time.

All fits run in one process, in turn: the same program differs by more than this cost from process to process. The
programs are in `benchmarks.training.overhead_programs`. The arms are *bare* (none of our callbacks), *empty* (a
callback without hooks, which the Trainer still calls), and *perf* (`PerfCallback` with its defaults). An arm that did
not do its work is an error.

A step lasts from its first hook to that of the next step. The cost of a steady step comes from switched fits. From step
100 on, they train blocks of steps with the callback, or with an empty one in its place, in pairs of random order. The
cost is the trimmed mean of the differences within pairs, with a 95 % bootstrap interval over pairs.

In epochs of one batch the callback cannot be switched. There, and for the other parts of a fit, the benchmark takes the
median of each step over rounds, and then the mean over steps. The cost is the difference from the empty callback, with
an interval over rounds. Fits of their own time the methods of each component in place. Fresh processes measure imports,
start, end, memory and disk.

Run as ``python -m benchmarks.training.overhead [--device cuda]``. It prints a page, and writes it and the figures to
``benchmarks/results/``, or to the files that ``--out`` names. ``--quote`` prints the lines that the docs quote. On a
GPU, the hot loop of `PerfCallback` trains under ``torch.cuda.set_sync_debug_mode("error")`` outside of the window: a
step that waits for the device ends the benchmark with an error.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import io
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch

from benchmarks.options import make_parser, markdown_table, write_page
from benchmarks.processes import peak_memory_mb, run_module
from benchmarks.quiet import be_quiet
from benchmarks.training.overhead_programs import PROGRAMS, REAL
from benchmarks.versions import known_versions, versions_text
from lightning_perf.machine.environment import cpu_name

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "overhead"
METHOD = 6
"""Version of the method: figures of different versions are not comparable."""

ARMS = ("bare", "empty", "perf")
STEPS = {"hot loop": 600, "one batch per epoch": 300}
REAL_STEPS = 200
SWITCHED_STEPS = 1600
BLOCK_STEPS, SETTLING = 10, 2
"""Steps with or without the callback in a row, and those at the start of such a block that do not count."""
EPOCH_BLOCKS = {"table": 5}
"""Blocks of an epoch, where fits have several: the two blocks of a pair are at the same place of their epochs."""
TRIMMED = 0.05
"""Share of the pairs that is left out at each end: other programs and the collector of garbage strike few blocks."""
FRESH = "language"
WINDOW = range(9, 19)
"""The steps that hold the window by default: 3 to warm up, 5 recorded, and the pauses before and after."""
PARTS = {"first": [*range(1, 9), *range(19, 100)], "window": list(WINDOW), "after": list(range(19, 39)), "steady": None}
COMPONENTS = {
    "timer": "steps.step_timer.StepTimer steps.step_tracker.StepTracker recording.profiler.WindowProfiler fit.Fit",
    "account": "account.time_stack.TimeStack account.fit_account.FitAccountant account.totals.FitTotals",
    "record": "run_record.fit_record.LoopRecord run_record.fit_record.FitRecord recording.memory_watch.MemoryWatch",
    "monitors": "mistakes.watch.MistakeWatch compilation.monitor.CompileMonitor",
    "log": "steps.step_log.StepLog trainer_log.TrainerLog",
}
"""The parts of the callback, and their classes in `lightning_perf.callbacks`."""


class Clock(pl.Callback):
    """Notes when steps begin; first of the callbacks, so that a step holds the hooks of all.

    Args:
        strict: Whether torch has to raise where a step outside of the window waits for the device.
    """

    def __init__(self, strict: bool = False, at_steady: Callable[[], None] = lambda: None) -> None:
        self.strict = strict
        self.at_steady = at_steady
        self.times_ns: list[tuple[int, int]] = []
        self.end_ns = (0, 0)

    def on_train_batch_start(self, *_: Any) -> None:
        """A step begins."""
        step = len(self.times_ns)
        if step == 100:
            self.at_steady()
        if self.strict and step in (5, WINDOW.start - 1, WINDOW.stop + 5):
            torch.cuda.set_sync_debug_mode("default" if step == WINDOW.start - 1 else "error")
        self.times_ns.append(now_ns())

    def on_train_epoch_end(self, *_: Any) -> None:
        """Allow synchronization again: after the last step, the end of the fit may wait for the device."""
        if self.strict:
            torch.cuda.set_sync_debug_mode("default")

    def on_train_end(self, *_: Any) -> None:
        """Training has ended."""
        self.end_ns = now_ns()


class Components:
    """Times the methods of the callback's parts in place."""

    def __init__(self) -> None:
        self.times_ns: dict[str, int] = defaultdict(int)
        self._inner_ns: list[int] = [0]

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Time the methods in the block."""
        originals = []
        for part, names in COMPONENTS.items():
            for name in names.split():
                module, _, kind = f"lightning_perf.callbacks.{name}".rpartition(".")
                owner = getattr(__import__(module, fromlist=[kind]), kind)
                for method, function in list(vars(owner).items()):
                    if isinstance(function, FunctionType) and not method.startswith("__"):
                        originals.append((owner, method, function))
                        setattr(owner, method, self._timing(part, function))
        try:
            yield
        finally:
            for owner, method, function in originals:
                setattr(owner, method, function)

    def _timing(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timing(*args: Any, **kwargs: Any) -> Any:
            self._inner_ns.append(0)
            begin_ns = time.thread_time_ns()
            try:
                return function(*args, **kwargs)
            finally:
                spent_ns = time.thread_time_ns() - begin_ns
                self.times_ns[part] += spent_ns - self._inner_ns.pop() - self.own_ns
                self._inner_ns[-1] += spent_ns + self.around_ns

        return timing

    own_ns = around_ns = 0

    def calibrate(self) -> None:
        """Measure the cost of timing an empty method, inside and around the two readings of the clock."""
        empty = self._timing("", lambda: None)
        totals = []
        for _ in range(50):
            self.times_ns.clear()
            begin_ns = time.thread_time_ns()
            for _ in range(1000):
                empty()
            totals.append(((time.thread_time_ns() - begin_ns) / 1000, self.times_ns[""] / 1000))
        whole_ns, inside_ns = (statistics.median(column) for column in zip(*totals, strict=True))
        self.own_ns, self.around_ns = round(inside_ns), round(whole_ns - inside_ns)


class Switch(pl.Callback):
    """Takes a `PerfCallback` out of its fit for blocks of steps, and notes the times of all steps.

    It is the first callback, so that a step holds the hooks of all.

    Args:
        seed: Of the order within pairs of blocks.
        apart: Blocks from the first of a pair to the second.
    """

    def __init__(self, seed: int, apart: int = 1) -> None:
        self._draw = np.random.default_rng(seed)
        self._apart = apart
        self._order: list[bool] = []
        self._methods: list[tuple[Any, str, Any, Any]] = []
        self._on = True
        self._with: list[pl.Callback] = []
        self.times_ns: list[tuple[int, int]] = []
        self.blocks: list[bool] = []
        """Whether the callback was there, by block."""

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Keep track of the methods that the callback replaces in the block."""
        from lightning_perf.callbacks.wrapped_methods import WrappedMethods

        own = WrappedMethods.wrap

        def wrap(wrapped: Any, owner: Any, name: str, make: Any) -> None:
            before = vars(owner).get(name)
            own(wrapped, owner, name, make)
            self._methods.append((owner, name, before, vars(owner).get(name)))

        WrappedMethods.wrap = wrap  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            WrappedMethods.wrap = own  # type: ignore[method-assign]

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        """A step begins. With the first one of a block, the callback leaves or comes back."""
        step = len(self.times_ns) - 100
        if step >= 0 and step % BLOCK_STEPS == 0:
            if not self._order:
                first = self._draw.random(self._apart) < 0.5
                self._order = [*first.tolist(), *(~first).tolist()]
            self.blocks.append(self._order.pop(0))
            self._turn(trainer, self.blocks[-1])
        self.times_ns.append(now_ns())

    def on_train_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Training has ended: the callback gets its end."""
        self._turn(trainer, True)

    def _turn(self, trainer: pl.Trainer, on: bool) -> None:
        if on == self._on:
            return
        self._on = on
        if not on:
            self._with = trainer.callbacks  # type: ignore[attr-defined]
        empty = [pl.Callback() if type(each).__name__ == "PerfCallback" else each for each in self._with]
        trainer.callbacks = self._with if on else empty  # type: ignore[attr-defined]
        for owner, name, without, wrapper in self._methods if on else reversed(self._methods):
            if on:
                setattr(owner, name, wrapper)
            elif without is None:
                vars(owner).pop(name, None)
            else:
                setattr(owner, name, without)

    def differences_ms(self) -> Any:
        """Return the processor and wall time per step that the callback added, by pair of blocks."""
        steps_ms = np.diff(self.times_ns[100:], axis=0) / 1e6
        cycle = 2 * self._apart
        count = len(steps_ms) // BLOCK_STEPS // cycle * cycle
        blocks = steps_ms[: count * BLOCK_STEPS].reshape(count, BLOCK_STEPS, 2)[:, SETTLING:].mean(axis=1)
        signs = np.where(self.blocks[:count], 1, -1)
        return (blocks * signs[:, None]).reshape(-1, 2, self._apart, 2).sum(axis=1).reshape(-1, 2)


def switched(program: str, device: str, seed: int) -> Any:
    """Train once with a callback that leaves and comes back, and return its costs by pair of blocks."""
    from lightning_perf import PerfCallback

    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()) as output:
        module, data, options = PROGRAMS[program](SWITCHED_STEPS, Path(name))
        options = {"max_epochs": 1, "enable_progress_bar": False, "enable_model_summary": False, **options}
        switch = Switch(seed, EPOCH_BLOCKS.get(program, 1))
        callbacks = [switch, *options.pop("callbacks", ()), PerfCallback()]
        trainer = pl.Trainer(default_root_dir=name, accelerator=device, devices=1, callbacks=callbacks, **options)
        with switch.watching():
            trainer.fit(module, **data)
        if "PerfCallback:" in output.getvalue() or len(switch.times_ns) != SWITCHED_STEPS:
            raise SystemExit(f"{program}: the switched callback did not do its work: {output.getvalue()}")
    return switch.differences_ms()


def cost_us(differences_ms: Any) -> dict[str, list[float]]:
    """Return value, low and high of the trimmed mean difference in microseconds of processor and wall time."""
    cut = int(TRIMMED * len(differences_ms))

    def estimate(rows: Any) -> Any:
        return np.sort(rows, axis=0)[cut : len(rows) - cut].mean(axis=0) * 1e3

    draw = np.random.default_rng(0)
    count = len(differences_ms)
    samples = [estimate(differences_ms[draw.integers(0, count, count)]) for _ in range(1000)]
    return with_interval(estimate(differences_ms), samples)


def with_interval(value: Any, samples: list[Any]) -> dict[str, list[float]]:
    """Return value, low and high of processor and wall time, from the draws of a bootstrap."""
    low, high = np.percentile(samples, [2.5, 97.5], axis=0)
    return {
        clock: [round(float(each[place]), 1) for each in (value, low, high)]
        for place, clock in enumerate(("cpu", "wall"))
    }


def now_ns() -> tuple[int, int]:
    """Return the processor time of this process, and the wall time."""
    return time.process_time_ns(), time.perf_counter_ns()


def fit(
    program: str, arm: str, steps: int, device: str, at_steady: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Train once, and return the times in milliseconds: pairs of processor and wall time."""
    own: list[Any] = [pl.Callback()] if arm == "empty" else []
    if arm == "perf":
        from lightning_perf import PerfCallback

        own = [PerfCallback()]
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(name)
        module, data, options = PROGRAMS[program](steps, folder)
        clock = Clock(device == "cuda" and program == "hot loop" and arm == "perf", at_steady)
        options = {"max_epochs": 1, "enable_progress_bar": False, "enable_model_summary": False, **options}
        callbacks = [clock, *options.pop("callbacks", ()), *own]
        trainer = pl.Trainer(default_root_dir=folder, accelerator=device, devices=1, callbacks=callbacks, **options)
        begin_ns = now_ns()
        trainer.fit(module, **data)
        end_ns = now_ns()
        check_work(arm, folder, clock, steps)
        files = [path for path in folder.rglob("perf/*") if path.is_file()]
        times = np.array([begin_ns, *clock.times_ns, clock.end_ns, end_ns])
        return {"times_ms": np.diff(times, axis=0) / 1e6, "bytes": {path.name: path.stat().st_size for path in files}}


def check_work(arm: str, folder: Path, clock: Clock, steps: int) -> None:
    """Raise an error if a fit did not do its work."""
    from lightning_perf.run_files.fit.account import account_paths, read_account
    from lightning_perf.run_files.steps import STEPS as STEP_FILE

    seen, expected = [len(clock.times_ns)], [steps]
    if arm == "perf":
        perf = next((path.parent for path in folder.rglob("run.jsonl")), folder)
        seen += [sum(len(STEP_FILE.read(path)) for path in STEP_FILE.paths(perf))]
        seen += [any(perf.glob(files)) for files in ("*.pt.trace.json*", "report.json")]
        seen += [each.steps for each in map(read_account, account_paths(perf)) if each.end == "returned"]
        expected += [steps, True, True, steps]
    if seen != expected:
        raise SystemExit(f"{arm} did not do its work: steps, samples, traces, reports, account: {seen}, not {expected}")


def measure_switched(device: str, minutes: float) -> dict[str, Any]:
    """Return the cost of a steady step by program, from as many switched fits as the time admits."""
    found: dict[str, list[Any]] = {name: [] for name in PROGRAMS if name != "one batch per epoch"}
    deadline = time.monotonic() + 60 * minutes
    seed = 0
    while not seed or time.monotonic() < deadline:
        for name, differences in found.items():
            differences.append(switched(name, device, seed))
        seed += 1
    return {name: cost_us(np.concatenate(differences)) for name, differences in found.items()}


def measure(device: str, rounds: int, minutes: float) -> tuple[dict[str, Any], int]:
    """Run the rounds, and return the times of all steps by program and arm, and the number of rounds."""
    names = [name for name in PROGRAMS if device == "cpu" or name != "one batch per epoch"]
    found: dict[str, Any] = {name: {arm: [] for arm in ARMS} for name in names}
    deadline = time.monotonic() + 60 * minutes
    for number in range(-1, rounds):  # the first round warms up and is left out
        for name in names:
            for arm in ARMS if number % 2 else reversed(ARMS):
                run = fit(name, arm, STEPS.get(name, REAL_STEPS), device)
                if number >= 0:
                    found[name][arm].append(run["times_ms"])
        if number >= 0 and time.monotonic() > deadline:
            return found, number + 1
    return found, rounds


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of each program."""
    figures: dict[str, Any] = {}
    for name, arms in found.items():
        runs = {arm: np.stack(times) for arm, times in arms.items()}  # rounds, intervals, clocks
        base = runs["empty"]
        steady_ms = np.median(base[:, 101:-2], axis=0).mean(axis=0)
        rows: dict[str, Any] = {}
        for arm, own in runs.items():
            parts = {part: difference_us(own, base, at) for part, at in PARTS.items()}
            parts["start"] = difference_us(own, base, [-1])
            parts["end"] = difference_us(own, base, [own.shape[1] - 2])
            rows[arm] = parts
        figures[name] = {"step_ms": [round(each, 3) for each in steady_ms], "arms": rows}
    return figures


def difference_us(own: Any, base: Any, at: list[int] | None) -> dict[str, list[float]]:
    """Return value, low and high of the difference per step in microseconds, of processor and wall time.

    Args:
        at: Steps; None for the steady state. Interval 0 is the start of the fit, before step 0.
    """
    places = list(range(101, own.shape[1] - 2)) if at is None else [step + 1 for step in at]
    own, base = own[:, places], base[:, places]

    def estimate(rows: Any) -> Any:
        return (np.median(own[rows], axis=0) - np.median(base[rows], axis=0)).mean(axis=0) * 1e3

    draw = np.random.default_rng(0)
    return with_interval(estimate(slice(None)), [estimate(draw.integers(0, len(own), len(own))) for _ in range(200)])


def measure_components(device: str) -> dict[str, Any]:
    """Return the microseconds per step of each part, by program."""
    found: dict[str, Any] = {}
    components = Components()
    components.calibrate()
    for name in PROGRAMS:
        steps = STEPS.get(name, REAL_STEPS)
        with components.timed():
            fit(name, "perf", steps, device, components.times_ns.clear)
        found[name] = {part: round(components.times_ns[part] / (steps - 100) / 1e3, 1) for part in COMPONENTS}
    return found


def measure_fresh(device: str) -> dict[str, Any]:
    """Return the medians of three alternating processes of each arm."""
    found: dict[str, list[dict[str, Any]]] = {"empty": [], "perf": []}
    with tempfile.TemporaryDirectory() as bytecode:
        # As after an installation by pip, all modules are compiled. The first run compiles them.
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}
        for number in range(4):
            for arm, runs in found.items():
                given = ("--fresh", arm, "--device", device)
                figures = run_module("benchmarks.training.overhead", *given, environment=environment)
                runs += [json.loads(figures)] if number else []
    return {
        arm: {key: round(statistics.median(run[key] for run in runs), 2) for key in runs[0]}
        for arm, runs in found.items()
    }


def fresh(arm: str, device: str) -> dict[str, float]:
    """Train once in this process, and return its costs."""
    begin_ns = now_ns()
    if arm == "perf":
        getattr(__import__("lightning_perf"), "PerfCallback")  # noqa: B009 - the package imports it when asked
    imported_ns = now_ns()
    run = fit(FRESH, arm, REAL_STEPS, device)
    times = run["times_ms"]
    return {
        "import_cpu_ms": (imported_ns[0] - begin_ns[0]) / 1e6,
        "start_cpu_ms": times[0][0],
        "start_wall_ms": times[0][1],
        "end_cpu_ms": times[-1][0],
        "end_wall_ms": times[-1][1],
        "fit_wall_ms": float(times[:, 1].sum()),
        "memory_mb": peak_memory_mb(),
        "disk_kb": sum(run["bytes"].values()) / 1024,
    }


COLUMNS = ("steady", "first", "after", "window", "start", "end")


def page(results: dict[str, Any]) -> str:
    """Write the page."""
    load = " to ".join(f"{each:.1f}" for each in results["load"])
    machine = f"{results['processor']}, {results['cores']} cores, load {load}"
    head = f"{results['date']}, {results['rounds']} rounds, one thread, {machine}"
    programs, components = results["programs"], results["components"]
    rows = []
    for name, program in programs.items():
        for arm in ("bare", "perf"):
            parts = program["arms"][arm]
            cells = [_interval(parts[part]["cpu"]) for part in COLUMNS] + [_interval(parts["steady"]["wall"])]
            rows.append([name, f"{program['step_ms'][0]:.2f}", arm, *cells])
    own, empty = results["fresh"]["perf"], results["fresh"]["empty"]
    return "\n".join(
        [
            "# Overhead\n",
            f"Written by `python -m benchmarks.training.overhead`, method {METHOD}. {head}.",
            f"{results['versions']}.\n",
            "Processor time over that with an empty callback, in µs: per step from step 100 on (steady), in the first",
            "100, in the 20 after the window and in the ten of the window, and per fit for its start and its end. In",
            "brackets is the 95 % interval. The last column is wall time.\n",
            markdown_table(["program", "step, ms", "arm", *COLUMNS, "steady, wall"], rows) + "\n",
            "Where the time of a steady step goes, in µs, timed in place:\n",
            markdown_table(
                ["program", *COMPONENTS],
                [[name, *(f"{parts[part]:.1f}" for part in COMPONENTS)] for name, parts in components.items()],
            )
            + "\n",
            f"A fresh process with {REAL_STEPS} steps of *{FRESH}*:\n",
            markdown_table(
                ["", "PerfCallback", "empty callback"],
                [[key.replace("_", " "), f"{own[key]:,.1f}", f"{empty[key]:,.1f}"] for key in own],
            )
            + "\n",
        ]
    )


def _interval(estimate: list[float]) -> str:
    value, low, high = estimate
    return f"{value:+.0f} ({low:+.0f} – {high:+.0f})"


def quote(results: dict[str, Any]) -> str:
    """Return the figures that README and docs quote: those of the real program with the median cost."""
    if results["method"] != METHOD:
        return f"No figures yet: the last run had method {results['method']}, and they need method {METHOD}"
    costs = {name: program["arms"]["perf"] for name, program in results["programs"].items()}
    by_cost = sorted(set(REAL) & set(costs), key=lambda name: costs[name]["steady"]["cpu"][0])
    real = by_cost[(len(by_cost) - 1) // 2]
    shown = [(real, "steady", f"{real}, from step 100 on"), (real, "first", f"{real}, first 100 steps")]
    shown += [(name, "steady", name) for name in STEPS if name in costs]
    lines = [f"PerfCallback on {results['processor']}: processor time per step over an empty callback"]
    for name, part, words in shown:
        step_ms, cost = results["programs"][name]["step_ms"][0], costs[name][part]["cpu"]
        lines.append(f"  {words:<30} {_interval(cost)} µs, {cost[0] / 10 / step_ms:.1f} % of {step_ms:.1f} ms")
    return "\n".join(lines)


def main() -> None:
    """Measure, print and write."""
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=40, help="most fits of each arm (default: 40)")
    parser.add_argument("--minutes", type=float, default=5.5, help="start no further round after this (default: 5.5)")
    parser.add_argument(
        "--switched-minutes", type=float, default=4.0, help="start no further switched fits after this (default: 4)"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to train (default: cpu)")
    parser.add_argument(
        "--out", type=Path, help="results, without suffix (default: benchmarks/results/overhead, or …_cuda)"
    )
    parser.add_argument(
        "--quote", action="store_true", help="print the figures that the docs quote, and measure nothing"
    )
    parser.add_argument("--fresh", choices=("empty", "perf"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    device = arguments.device
    out = arguments.out or (RESULTS if device == "cpu" else RESULTS.with_name(f"{RESULTS.name}_{device}"))
    if arguments.quote:
        print(quote(json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))))
        return
    torch.set_num_threads(1)
    be_quiet()
    if arguments.fresh:
        print(json.dumps(fresh(arguments.fresh, device)))
        return
    load = [os.getloadavg()[0]]
    found, rounds = measure(device, arguments.rounds, arguments.minutes)
    programs = summary(found)
    for name, steady in measure_switched(device, arguments.switched_minutes).items():
        programs[name]["arms"]["perf"]["steady"] = steady
    results = {
        "method": METHOD,
        "date": datetime.date.today().isoformat(),
        "processor": cpu_name() if device == "cpu" else f"{torch.cuda.get_device_name()}, {cpu_name()}",
        "cores": os.cpu_count(),
        "rounds": rounds,
        "versions": versions_text(),
        **known_versions(),
        "programs": programs,
        "components": measure_components(device),
        "fresh": measure_fresh(device),
        "load": [*load, os.getloadavg()[0]],
    }
    write_page(out.with_suffix(".md"), page(results))
    out.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
