"""Measures a training on several numbers of devices, in interleaved blocks of fresh processes."""

from __future__ import annotations

import math
import random
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from lightning_perf import __version__
from lightning_perf.errors import TraceError
from lightning_perf.report.build import analyze
from lightning_perf.tune.errors import NoTrainingError, OutOfTimeError, TrialError, TuneError, trial_errors
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

FIRST_STEPS, LEAST_STEPS, MOST_STEPS, USUAL_S = 30, 40, 2000, 4.0
"""Timed steps of the first processes, which only show their time. Those of the blocks take so many seconds."""


def measure_scaling(
    source: str | Script, counts: Sequence[int], settings: TuneSettings, on_progress: Callable[[str], None]
) -> ScalingResult:
    """Train on each number of devices in interleaved blocks of fresh processes.

    Raises:
        TuneError: The training cannot run on a number of devices, or the budget is too small for three blocks.
        KeyboardInterrupt: Before three blocks. Later, the result has the complete blocks.
    """
    budget = Budget(settings.minutes)
    with (
        tempfile.TemporaryDirectory(prefix="lightning-perf-scaling-", ignore_cleanup_errors=True) as folder,
        Progress(on_progress, budget.left_s) as progress,
    ):
        return _Scaling(source, settings, folder, budget, progress).run(sorted(counts))


@dataclass(frozen=True)
class _Scaling:
    source: str | Script
    settings: TuneSettings
    folder: str
    budget: Budget
    progress: Progress

    def run(self, counts: Sequence[int]) -> ScalingResult:
        blocks: list[dict[int, Run]] = []
        interrupted = False
        try:
            for block in self._measure_blocks(counts):
                blocks.append(block)  # noqa: PERF402
        except OutOfTimeError as error:
            if len(blocks) < LEAST_BLOCKS:
                minutes = f"--minutes {self.settings.minutes:g} is too little for {LEAST_BLOCKS} blocks"
                raise TuneError(f"{minutes}: give {error}") from error
        except KeyboardInterrupt:
            interrupted = True
            if len(blocks) < LEAST_BLOCKS:
                self.progress.say(f"Interrupted: there is no result before {LEAST_BLOCKS} blocks.")
                raise
            self.progress.say(f"Interrupted: the result has {len(blocks)} blocks.")
        run = blocks[0][counts[0]]
        return ScalingResult(
            schema_version=SCHEMA_VERSION,
            tool_version=__version__,
            device=run.device,
            device_name=run.device_name,
            cores=usable_cpus(),
            counts=compare_counts(blocks),
            seconds=self.budget.spent_s(),
            versions=installed_versions(),
            command=command_of(self.source, self.settings, counts),
            code=code_of(self.source),
            interrupted=interrupted,
        )

    def _measure_blocks(self, counts: Sequence[int]) -> Iterator[dict[int, Run]]:
        """Yield blocks, each in random order, while there is time."""
        steps, block_s = {}, 0.0
        # The largest number comes first: if the training cannot use it, the error comes before any measurement.
        for devices in reversed(counts):
            began_s = time.monotonic()
            self.progress.doing(f"first steps on {name_devices(devices)}")
            run = self._train(devices, FIRST_STEPS)
            step_s = run.step_ns / 1e9
            steps[devices] = min(max(round((self.settings.window_s or USUAL_S) / step_s), LEAST_STEPS), MOST_STEPS)
            block_s += time.monotonic() - began_s + (steps[devices] - FIRST_STEPS) * step_s
            self.progress.say(f"{name_devices(devices)}: a step takes about {format_duration(run.step_ns)}")
        blocks, chance = self.settings.rounds or USUAL_BLOCKS, random.Random(self.settings.seed)
        for number in range(1, blocks + 1):
            began_s = time.monotonic()
            if self.budget.left_s() < RESERVE_FACTOR * block_s:
                needed_s = self.budget.spent_s() + (LEAST_BLOCKS + 1) * RESERVE_FACTOR * block_s
                raise OutOfTimeError(math.ceil(needed_s / 60))
            block = {}
            for devices in chance.sample(counts, len(counts)):
                self.progress.doing(f"block {number} of {blocks}: {name_devices(devices)}")
                block[devices] = self._train(devices, steps[devices])
            yield block
            block_s = max(block_s, time.monotonic() - began_s)
            seen = (f"{format_duration(block[count].step_ns)} on {name_devices(count)}" for count in counts)
            self.progress.say(f"block {number} of {blocks}: a step takes {', '.join(seen)}")

    def _train(self, devices: int, steps: int) -> Run:
        """Train on some devices, with a process for each, as a launcher such as torchrun starts them."""
        folder = tempfile.mkdtemp(dir=self.folder)
        source, script = (self.source, None) if isinstance(self.source, str) else (None, self.source)
        order = Order(source, script, None, (), self.settings.seed, False, folder, devices=devices, timed_steps=steps)
        rank = 0
        try:
            with trial_errors(), ExitStack() as started:
                ranks = [started.enter_context(start_worker(order, each)) for each in _environments(devices)]
                training = list(ranks)
                while training:
                    ready = wait_for_messages(training, self.budget.left_s())
                    if not ready:
                        raise OutOfTimeError("more")
                    for worker in ready:
                        rank = ranks.index(worker)
                        worker.receive(Measured)
                        training.remove(worker)
            return account_for(analyze(Path(folder, "perf")), devices)
        except OutOfTimeError:
            raise
        except NoTrainingError as error:
            raise TuneError(str(error)) from error
        except (TrialError, TraceError) as error:
            place = name_devices(devices) if devices == 1 else f"{name_devices(devices)}, in rank {rank}"
            raise TuneError(f"the training fails on {place}: {error}") from error


def _environments(devices: int) -> list[dict[str, str]]:
    """Return the variables of each rank, by which Lightning and torch find the others; none for a single one."""
    if devices == 1:
        return [{}]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    # In a job of SLURM, the name of an interactive one keeps Lightning from taking these for processes of srun.
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": "0", "SLURM_JOB_NAME": "interactive"}
    ranks = map(str, range(devices))
    return [{**common, "WORLD_SIZE": str(devices), "LOCAL_RANK": rank, "RANK": rank} for rank in ranks]
