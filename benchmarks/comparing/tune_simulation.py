"""Simulate whole tunings by `lightning-perf tune`: how often useless levers are kept, and how often useful ones.

The tunings are real, with their budget, order and decisions. Only the processes are simulated, on their own clock: they
start in 6 s, and a step takes 50 ms. In each tuning, 8 levers apply. One of them may gain or lose, the others do
nothing. The random spread of a window falls with the square root of its length.

Run as ``python -m benchmarks.comparing.tune_simulation``: prints a Markdown table and writes it to
``benchmarks/results/``. It takes about ten minutes.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.options import make_parser, markdown_table, write_page
from lightning_perf.tune import campaign, pairs
from lightning_perf.tune.levers.lever import Machine, Setting
from lightning_perf.tune.levers.registry import LEVERS
from lightning_perf.tune.messages import Order, Profile, Ready, Run, Scouted, Window
from lightning_perf.tune.result import TuneResult
from lightning_perf.tune.settings import USUAL_WINDOW_S, TuneSettings
from lightning_perf.workers.process import WorkerTimeoutError

RESULTS = Path(__file__).parents[1] / "results" / "tune_simulation.md"
STEP_S, START_S = 0.05, 6.0
NAMES = ("channels-last", "fused-optimizer", "keep-memory", "bf16-mixed", "cudnn-benchmark", "workers-1", "workers-2")
USEFUL, USELESS = NAMES[0], (*NAMES[1:], "compile")


@dataclass(frozen=True)
class Noise:
    """How the times of a machine vary.

    Attributes:
        name: In words.
        window: Standard deviation of the log time of a window of 0.75 s.
        process: Standard deviation of the log time of a process, for good.
        slow: Share of processes that are slower by `slowdown`, as by page faults.
        slowdown: Their additional log time.
        freedom: Degrees of freedom of Student's t for both spreads; infinite for normal ones.
        disturbed: Share of windows that take 30 % longer on average, exponentially distributed.
        drift: Amplitude of slow waves of the machine's speed, with a period of 100 s.
    """

    name: str
    window: float = 0.0115
    process: float = 0.0
    slow: float = 0.0
    slowdown: float = 0.1
    freedom: float = math.inf
    disturbed: float = 0.0
    drift: float = 0.0


MACHINES = (
    Noise("quiet"),
    Noise("processes differ by 1 %", process=0.01),
    Noise("processes differ by 2 %", process=0.02),
    Noise("half of the processes 10 % slower", slow=0.5, slowdown=math.log(1.1)),
    Noise("one process of five 20 % slower", slow=0.2, slowdown=math.log(1.2)),
    Noise("speed drifts by ±20 %", process=0.005, drift=0.2),
    Noise("heavy tails (Student's t, 2 degrees of freedom)", process=0.01, freedom=2),
    Noise("shared with others", window=0.06, process=0.02, disturbed=0.1, drift=0.1),
)


class Simulation:
    """A machine with a clock of its own, which trains in simulated processes.

    Args:
        gain: Share of the time that the useful lever saves.
    """

    def __init__(self, noise: Noise, gain: float, seed: int) -> None:
        self.noise, self.gain = noise, gain
        self.clock_s = 0.0
        self.random = np.random.default_rng(seed)

    def spread(self, deviation: float) -> float:
        """Return a random log time."""
        normal, freedom = self.random.normal(0, deviation), self.noise.freedom
        return normal if math.isinf(freedom) else normal / math.sqrt(self.random.chisquare(freedom) / freedom)

    def tune(self, minutes: float) -> TuneResult:
        """Tune once."""

        def clock() -> float:
            return self.clock_s

        with (
            patch.object(pairs, "WorkerProcess", lambda _, order, **__: Process(self, order)),
            patch("time.monotonic", clock),
            patch("time.perf_counter", clock),
            patch.object(campaign, "installed_versions", dict),
        ):
            return campaign.run_campaign(b"", TuneSettings(minutes=minutes), lambda _: None)


class Process(nullcontext["Process"]):
    """A worker process of the simulation, with the methods of `WorkerProcess` that a tuning calls."""

    def __init__(self, simulation: Simulation, order: Order) -> None:
        super().__init__(self)
        self.simulation, self.steps = simulation, 0
        noise = simulation.noise
        self.log_time = simulation.spread(noise.process) + noise.slowdown * (simulation.random.random() < noise.slow)
        if USEFUL in order.levers:
            self.log_time += math.log1p(-simulation.gain)
        self.ready_s = simulation.clock_s + START_S

    def send(self, run: Run) -> None:
        """Take an order."""
        self.steps = run.steps

    def receive(self, kind: type, timeout_s: float) -> Any:
        """Answer it, which takes time of the simulation."""
        simulation = self.simulation
        if kind is Window:
            seconds = self._seconds(self.steps * STEP_S)
            answer: Any = Window(seconds, self.steps, self.steps, (1.0,) * self.steps)
        else:
            seconds = max(self.ready_s - simulation.clock_s, 0.0)
            answer = Ready() if kind is Ready else _scouted()
        simulation.clock_s += min(seconds, timeout_s)
        if seconds > timeout_s:
            raise WorkerTimeoutError("too late")
        return answer

    def _seconds(self, usual_s: float) -> float:
        simulation, noise = self.simulation, self.simulation.noise
        log_time = self.log_time + simulation.spread(noise.window * math.sqrt(USUAL_WINDOW_S / usual_s))
        log_time += noise.drift * math.sin(2 * math.pi * simulation.clock_s / 100)
        hit = simulation.random.random() < noise.disturbed
        return float(usual_s * math.exp(log_time) * (1 + hit * simulation.random.exponential(0.3)))

    def close(self) -> None:
        """End it."""


def _scouted() -> Scouted:
    applying = (USEFUL, *USELESS)
    missing = {lever.name: None if lever.name in applying else "not simulated" for lever in LEVERS}
    settings: dict[str, tuple[Setting, ...]] = {name: (Setting("", line=name),) for name in applying}
    return Scouted(Machine("cpu", None, 2, "simulated"), missing, settings, Profile())


def share_kept(noise: Noise, gain: float, minutes: float, tunings: int) -> float:
    """Return the share of tunings that keep the useful lever, or any one if none is useful."""
    kept = [Simulation(noise, gain, seed).tune(minutes).kept for seed in range(tunings)]
    return sum(bool(names) if gain <= 0 else USEFUL in names for names in kept) / tunings


GAINS = (0.0, -0.1, 0.01, 0.05, 0.1, 0.3)


def table(minutes: float, tunings: int) -> str:
    """Return how often levers are kept on each machine, as a Markdown table."""
    rows = []
    for noise in MACHINES:
        # Shares close to 0 need more tunings.
        found = [share_kept(noise, gain, minutes, tunings if gain == 0 else tunings // 5) for gain in GAINS]
        rows.append((noise.name, *(f"{100 * share:.1f} %" for share in found)))
    heads = ("machine", "nothing helps: any kept", "one loses 10 %: any kept", "1 % gained", "5 %", "10 %", "30 %")
    return markdown_table(heads, rows, len(GAINS))


def main() -> None:
    """Simulate, print and write."""
    parser = make_parser(__doc__, RESULTS)
    parser.add_argument("--tunings", type=int, default=500)
    parser.add_argument("--minutes", type=float, nargs="+", default=[TuneSettings.minutes, 3.0])
    options = parser.parse_args()
    parts = [
        "# How often a lever is kept",
        (
            f"Written by `python -m benchmarks.comparing.tune_simulation`: {options.tunings} tunings of 8 levers for "
            f"the first column, {options.tunings // 5} for each other. The last four columns are the shares in which a "
            "lever with that gain is kept."
        ),
    ]
    for minutes in options.minutes:
        parts += [f"## {minutes:g} minutes", table(minutes, options.tunings)]
    write_page(options.results, "\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
