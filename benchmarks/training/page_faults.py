"""Measure the cost of page faults in trainings on a processor: glibc returns memory in every step and takes it again.

Each fit is a process of its own, because the amount of returned memory depends on the positions of blocks. The fits
train the recipe's models on the synthetic set: plain, with `PerfCallback` between its windows, and with the environment
variables that the finding ``cpu-page-faults`` advises. The processes of a round run in random order.

Run as ``python -m benchmarks.training.page_faults``. It prints a table and writes it to
``benchmarks/results/page_faults.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.options import make_parser, markdown_table, write_page
from benchmarks.processes import run_module
from lightning_perf.machine.page_faults import KEEP_MEMORY, allocator_name, count_page_faults, page_fault_ns

RESULTS = Path(__file__).parents[1] / "results" / "page_faults.md"
METHOD = 1
"""Version of the method: figures of different versions are not comparable."""

PLAIN, OBSERVED, KEPT = ARMS = ("a bare Trainer", "with PerfCallback", "memory kept")
WARM_UP_STEPS = 8


@dataclass(frozen=True)
class Training:
    """A training of the recipe.

    Attributes:
        model: Its name in the recipe.
        batch_size: Pictures a batch.
        steps: Steps that are measured.
    """

    model: str
    batch_size: int
    steps: int


TRAININGS = (
    Training("cnn", 32, 40),
    Training("cnn", 128, 16),
    Training("resnet18", 32, 16),
    Training("resnet18", 128, 8),
)


def fit(training: Training, *, observed: bool) -> dict[str, float]:
    """Train in this process; the medians of the steps after the warm-up."""
    import lightning.pytorch as pl

    from benchmarks.quiet import QUIET_TRAINER, be_quiet
    from lightning_perf import PerfCallback
    from recipes.signlang.settings import TrainSettings
    from recipes.signlang.tune import training as of_recipe

    be_quiet()
    ends: list[tuple[float, int]] = []

    class Clock(pl.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            ends.append((time.perf_counter(), count_page_faults() or 0))

    steps = WARM_UP_STEPS + training.steps + 1
    module, data, arguments = of_recipe(TrainSettings(model=training.model, batch_size=training.batch_size))
    callbacks: list[pl.Callback] = [Clock()]
    with tempfile.TemporaryDirectory() as folder:
        if observed:
            callbacks.append(PerfCallback(skip_first=10 * steps, warmup=1, dirpath=folder, report="none"))
        trainer = pl.Trainer(**arguments, max_steps=steps, limit_val_batches=0, callbacks=callbacks, **QUIET_TRAINER)
        trainer.fit(module, data)
    pairs = list(zip(ends[WARM_UP_STEPS:], ends[WARM_UP_STEPS + 1 :], strict=False))
    return {
        "step_ms": 1e3 * statistics.median(end[0] - begin[0] for begin, end in pairs),
        "faults": statistics.median(end[1] - begin[1] for begin, end in pairs),
    }


def measure(training: Training, arm: str) -> dict[str, float]:
    """One fit in a process of its own."""
    given = ["--fit", training.model, "--batch-size", training.batch_size, "--steps", training.steps]
    given += ["--observed"] * (arm == OBSERVED)
    environment = {name: value for name, value in os.environ.items() if name not in KEEP_MEMORY}
    environment |= KEEP_MEMORY if arm == KEPT else {}
    figures: dict[str, float] = json.loads(
        run_module("benchmarks.training.page_faults", *given, environment=environment)
    )
    return figures


def rows(training: Training, found: dict[str, list[dict[str, float]]]) -> list[tuple[str, ...]]:
    """The rows of a training: medians of the processes, from the least to the most."""

    def spread(arm: str, name: str, digits: int) -> str:
        values = sorted(one[name] for one in found[arm])
        middle, least, most = (f"{value:,.{digits}f}" for value in (statistics.median(values), values[0], values[-1]))
        return middle if least == most else f"{middle} ({least} – {most})"

    name = f"{training.model}, batches of {training.batch_size}"
    return [(name, arm, spread(arm, "faults", 0), spread(arm, "step_ms", 1)) for arm in ARMS]


def main() -> None:
    """Measure, print and write; or be the process of one fit."""
    parser = make_parser(__doc__, RESULTS)
    parser.add_argument("--rounds", type=int, default=5, help="processes of each row (default: 5)")
    parser.add_argument("--fit", help=argparse.SUPPRESS)
    parser.add_argument("--batch-size", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--observed", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fit:
        print(json.dumps(fit(Training(options.fit, options.batch_size, options.steps), observed=options.observed)))
        return
    if allocator_name() != "glibc":
        raise SystemExit("this needs glibc's allocator")
    from benchmarks.versions import device_name, versions_text

    order = random.Random(0)
    lines: list[tuple[str, ...]] = []
    for training in TRAININGS:
        found: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
        for _ in range(options.rounds):
            for arm in order.sample(ARMS, len(ARMS)):
                found[arm].append(measure(training, arm))
                print(f"{training.model} {training.batch_size} {arm}: {found[arm][-1]}", flush=True)
        lines += rows(training, found)
    cost_ns = page_fault_ns()
    libc = os.confstr("CS_GNU_LIBC_VERSION")
    write_page(
        options.results,
        f"# Page faults\n\nWritten by `python -m benchmarks.training.page_faults`, method {METHOD}: medians of "
        f"{options.rounds} processes a row, with the least and the most of them. A fault costs one thread "
        f"{cost_ns or 0:,.0f} ns here (tried out). {device_name()}, {libc}. {versions_text()}.\n\n"
        f"{markdown_table(('training', 'how', 'faults a step', 'step, ms'), lines)}\n",
    )


if __name__ == "__main__":
    main()
