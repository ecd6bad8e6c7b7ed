"""Measures a training on several numbers of devices, in interleaved blocks of fresh processes."""

from __future__ import annotations

import random
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from lightning_perf import __version__
from lightning_perf.errors import TraceError
from lightning_perf.report.build import analyze
from lightning_perf.tune.errors import OutOfTimeError, TrialError, TuneError, trial_errors
from lightning_perf.tune.messages import Measured, Order
from lightning_perf.tune.pairs import start_worker
from lightning_perf.tune.progress import Progress
from lightning_perf.tune.resume import code_of, command_of, installed_versions
from lightning_perf.tune.scaling import SCHEMA_VERSION, Run, ScalingResult, account_for, compare_counts, name_devices
from lightning_perf.tune.settings import RESERVE_FACTOR, Budget, TuneSettings
from lightning_perf.units import format_duration
from lightning_perf.workers.limits import usable_cpus
from lightning_perf.workers.process import wait_for_messages
from lightning_perf.workers.script import Script

LEAST_BLOCKS, USUAL_BLOCKS = 3, 6
"""Blocks for an interval that says something, and blocks that are measured if there is time."""

WARMUP_STEPS, LEAST_STEPS, MOST_STEPS, USUAL_S = 30, 40, 2000, 4.0
"""Timed steps of a process in the first block, which only shows their time. Later blocks take so many seconds."""


def measure_scaling(
    source: str | Script, counts: Sequence[int], settings: TuneSettings, on_progress: Callable[[str], None]
) -> ScalingResult:
    """Train on each number of devices in interleaved blocks of fresh processes.

    Raises:
        TuneError: The training cannot run on a number of devices, or the budget is too small for three blocks.
    """
    budget = Budget(settings.minutes)
    with (
        tempfile.TemporaryDirectory(prefix="lightning-perf-scaling-", ignore_cleanup_errors=True) as folder,
        Progress(on_progress, budget.left_s) as progress,
    ):
        return _Scaling(source, settings, folder, budget, progress).run(counts)


class _Scaling:
    def __init__(
        self, source: str | Script, settings: TuneSettings, folder: str, budget: Budget, progress: Progress
    ) -> None:
        self._source, self._settings, self._folder = source, settings, folder
        self._budget, self._progress = budget, progress

    def run(self, counts: Sequence[int]) -> ScalingResult:
        # The largest number comes first: if the training cannot use it, the error comes before any measurement.
        steps, block_s = {}, 0.0
        for devices in sorted(counts, reverse=True):
            began_s = time.monotonic()
            run, machine = self._train(devices, WARMUP_STEPS)
            step_s = run.step_ns / 1e9
            steps[devices] = min(max(round((self._settings.window_s or USUAL_S) / step_s), LEAST_STEPS), MOST_STEPS)
            block_s += time.monotonic() - began_s + (steps[devices] - WARMUP_STEPS) * step_s
            self._progress.say(f"{name_devices(devices)}: a step takes about {format_duration(run.step_ns)}")
        runs = self._measure_blocks(steps, block_s)
        return ScalingResult(
            schema_version=SCHEMA_VERSION,
            tool_version=__version__,
            device=machine.device,
            device_name=machine.device_name,
            cores=usable_cpus(),
            counts=compare_counts(runs),
            seconds=self._budget.spent_s(),
            versions=installed_versions(),
            command=command_of(self._source, self._settings, sorted(counts)),
            code=code_of(self._source),
        )

    def _measure_blocks(self, steps: Mapping[int, int], block_s: float) -> dict[int, list[Run]]:
        """Measure blocks, each in random order, while there is time."""
        runs: dict[int, list[Run]] = {devices: [] for devices in sorted(steps)}
        chance = random.Random(self._settings.seed)
        blocks = self._settings.rounds or USUAL_BLOCKS
        for number in range(1, blocks + 1):
            began_s = time.monotonic()
            if self._budget.left_s() < RESERVE_FACTOR * block_s:
                if number > LEAST_BLOCKS:
                    break
                minutes = (self._budget.spent_s() + (LEAST_BLOCKS + 1) * RESERVE_FACTOR * block_s) / 60
                raise TuneError(
                    f"--minutes {self._settings.minutes:g} is too little for {LEAST_BLOCKS} blocks: give {minutes:.0f}"
                )
            for devices in chance.sample(sorted(steps), len(steps)):
                self._progress.doing(f"block {number} of {blocks}: {name_devices(devices)}")
                runs[devices].append(self._train(devices, steps[devices])[0])
            block_s = max(block_s, time.monotonic() - began_s)
            seen = ", ".join(
                f"{format_duration(each[-1].step_ns)} on {name_devices(count)}" for count, each in runs.items()
            )
            self._progress.say(f"block {number} of {blocks}: a step takes {seen}")
        return runs

    def _train(self, devices: int, steps: int) -> tuple[Run, Measured]:
        """Train on some devices, with a process for each, as a launcher such as torchrun starts them."""
        folder = tempfile.mkdtemp(dir=self._folder)
        source, script = (self._source, None) if isinstance(self._source, str) else (None, self._source)
        seed = self._settings.seed
        order = Order(source, script, None, (), seed, False, folder, devices=devices, timed_steps=steps)
        environments = _environments(devices)
        try:
            with trial_errors(), ExitStack() as started:
                ranks = [started.enter_context(start_worker(order, each)) for each in environments]
                measured: dict[int, Measured] = {}
                while len(measured) < devices:
                    ready = wait_for_messages(
                        [each for each in ranks if each.pid not in measured], self._budget.left_s()
                    )
                    if not ready:
                        raise OutOfTimeError(
                            f"it takes longer than the {self._settings.minutes:g} minutes of the budget"
                        )
                    measured |= {each.pid: each.receive(Measured) for each in ready}
            by_rank = [measured[each.pid] for each in ranks]
            return account_for(analyze(Path(folder, "perf")), by_rank), by_rank[0]
        except (TrialError, TraceError) as error:
            raise TuneError(f"the training fails on {name_devices(devices)}: {error}") from error


def _environments(devices: int) -> list[dict[str, str]]:
    """Return the variables of each rank, by which Lightning and torch find the others; none for a single one."""
    if devices == 1:
        return [{}]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    # In a job of SLURM, the name of an interactive one keeps Lightning from taking these for processes of srun.
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": "0", "SLURM_JOB_NAME": "interactive"}
    return [{**common, "WORLD_SIZE": str(devices), "LOCAL_RANK": str(rank)} for rank in range(devices)]
