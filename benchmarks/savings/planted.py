"""Check the advice of findings: plant a fault in a training, follow the advice, and measure the gain.

For each fault of `benchmarks.savings.plants`, a fit is profiled and a finding must name the fault. Then fits with and
without
its advice alternate in rounds, unprofiled. The mean of the rounds' gains is compared with the predicted saving. Some
faults need a CUDA GPU and some a CPU; on other machines their rows say so. If the advice would not help, there must be
no finding; such rows are measured, too. If memory that was freed earlier matters, every fit is a process of its own.

If the advice is a larger batch, gains refer to the samples of the original step.

Run as ``python -m benchmarks.savings.planted``. It prints a table and writes it to ``benchmarks/results/planted.md``.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
import msgspec
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.options import make_parser, markdown_table, write_page
from benchmarks.processes import load_average, run_module
from benchmarks.quiet import QUIET_TRAINER, be_quiet
from benchmarks.savings.plants import PLANTS, Plant, PlantedModule, Setup, SlowPictures
from benchmarks.step_clock import StepClock
from benchmarks.versions import device_name, versions_text
from lightning_perf import PerfCallback
from lightning_perf.findings.finding import Finding
from lightning_perf.machine.page_faults import allocator_name
from lightning_perf.report.build import build_report
from lightning_perf.statistics.location import interval, paired_difference
from lightning_perf.statistics.values import Estimate
from recipes.signlang.data.data_module import Batch, MemoryPictures
from recipes.signlang.data.image_set import read_image_set
from recipes.signlang.synthetic.dataset import SyntheticSet, default_cache_dir, ensure_synthetic

RESULTS = Path(__file__).parents[1] / "results" / "planted.md"
METHOD = 2
"""Version of the method: figures of different versions are not comparable."""

Part = Literal["profile", "before", "after"]
PictureData = tuple[Tensor, Tensor, tuple[str, ...]]
"""Pictures, ``(m, size, size)`` of uint8, their labels, and the names of those."""

IMAGE_SIZE = 64
PROFILED_STEPS = 3
HERE = "cuda" if torch.cuda.is_available() else "cpu"
NO_FIGURES = ("",) * 4


@dataclass(frozen=True)
class Figures:
    """The figures of a fit.

    Attributes:
        findings: Of a profiled fit.
        step_ms: Mean step of one that was not profiled.
    """

    findings: tuple[Finding, ...] = ()
    step_ms: float = 0.0


def _as_is(batch: Any) -> Any:
    return batch


def fit(setup: Setup, data: PictureData, callback: pl.Callback, steps: int) -> None:
    """Train for some steps."""
    pictures, labels, classes = data
    torch.manual_seed(0)
    if not torch.cuda.is_available():
        torch.set_num_threads(setup.threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = setup.tf32
    module = PlantedModule(setup, classes, IMAGE_SIZE)
    rows = torch.arange(setup.batch_size * steps) % len(pictures)  # as long as the fit: no end of an epoch in it
    memory = MemoryPictures(pictures, labels, rows)
    dataset: Dataset[Batch] = SlowPictures(memory, setup.seconds_a_picture) if setup.seconds_a_picture else memory
    loader = DataLoader(
        dataset,
        setup.batch_size,
        num_workers=setup.workers,
        persistent_workers=setup.workers > 0,
        pin_memory=setup.pin_memory and torch.cuda.is_available(),
        collate_fn=_as_is,
    )
    trainer = pl.Trainer(
        max_epochs=1,
        precision=setup.precision,  # type: ignore[arg-type]
        accelerator="auto",
        devices=1,
        callbacks=[callback],
        **QUIET_TRAINER,
    )
    trainer.fit(module, loader)


def profile(plant: Plant, data: PictureData) -> tuple[Finding, ...]:
    """The findings of a profiled fit with the fault. A GPU is probed; `benchmarks.savings.estimates` probes CPUs."""
    probes = torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as folder:
        callback = PerfCallback(
            skip_first=plant.warm_up, active=PROFILED_STEPS, repeat=1, dirpath=folder, report="none", probe=probes
        )
        fit(plant.before, data, callback, plant.warm_up + 2 * PROFILED_STEPS)
        traces = sorted(Path(folder).glob("rank*.pt.trace.json.gz"))
        return build_report(traces, folder=Path(folder) if probes else None).findings


def step_ms(plant: Plant, part: Part, data: PictureData) -> float:
    """Mean time of an unprofiled fit, after its warm-up, for as many samples as a step has with the fault."""
    setup = plant.after if part == "after" else plant.before
    clock = StepClock(plant.warm_up)
    fit(setup, data, clock, plant.warm_up + plant.steps)
    return clock.seconds * 1e3 / plant.steps * plant.before.batch_size / setup.batch_size


def here(plant: Plant, part: Part, data: PictureData) -> Figures:
    """One fit in this process."""
    return Figures(findings=profile(plant, data)) if part == "profile" else Figures(step_ms=step_ms(plant, part, data))


def apart(plant: Plant, part: Part) -> Figures:
    """One fit in a process of its own, the environment that of its part."""
    advised = dict(plant.environment) if part == "after" else {}
    environment = {name: value for name, value in os.environ.items() if name not in plant.environment} | advised
    figures = run_module("benchmarks.savings.planted", "--fit", PLANTS.index(plant), part, environment=environment)
    return msgspec.json.decode(figures, type=Figures)


def in_turns(rounds: int, measure: Callable[[Part], float]) -> tuple[list[float], list[float]]:
    """Milliseconds of a step without and with the advice, once a round, the order turned about in each."""
    times: dict[Part, list[float]] = {"before": [], "after": []}
    for number in range(rounds):
        parts: tuple[Part, Part] = ("before", "after") if number % 2 else ("after", "before")
        for part in parts:
            times[part].append(measure(part))
    return times["before"], times["after"]


def holds(found: Finding, gain: Estimate) -> bool | None:
    """Whether a prediction holds a gain in milliseconds; None where the gain is outside and its interval is not."""
    low, high = found.saving_low_ms or 0.0, found.saving_high_ms or 0.0
    if gain.value is not None and low <= gain.value <= high:
        return True
    outside = (gain.high is not None and gain.high < low) or (gain.low is not None and gain.low > high)
    return False if outside else None


def picture_data() -> PictureData:
    """The recipe's synthetic pictures."""
    images = read_image_set(ensure_synthetic(SyntheticSet(seed=0, size=IMAGE_SIZE), default_cache_dir()), IMAGE_SIZE)
    return torch.from_numpy(images.pictures), torch.from_numpy(images.labels), images.classes


def row(plant: Plant, rounds: int, data: PictureData) -> tuple[str, ...]:
    """Profile, follow the advice, measure, and compare with the prediction."""
    head = plant.name, f"`{plant.finding}`", plant.advice
    if plant.device not in ("any", HERE):
        return (*head, f"needs a {'CUDA GPU' if plant.device == 'cuda' else 'CPU'}", *NO_FIGURES)
    if plant.environment and allocator_name() != "glibc":
        return (*head, "needs glibc", *NO_FIGURES)

    def figures(part: Part) -> Figures:
        return apart(plant, part) if plant.fresh else here(plant, part, data)

    findings = figures("profile").findings
    found = next((one for one in findings if one.kind == plant.finding), None)
    kinds = [one.kind for one in findings]
    before, after = in_turns(rounds, lambda part: figures(part).step_ms)
    estimate = interval(paired_difference(after, before))
    gain = f"{estimate.value:.2f}" + (
        f" ({estimate.low:.2f} – {estimate.high:.2f})" if estimate.low is not None else ""
    )
    step = f"{sum(before) / len(before):.2f} → {sum(after) / len(after):.2f}"
    if found is None or found.saving_low_ms is None or found.saving_high_ms is None:
        named = "**not**" if plant.helps else "no, as it should be"
        return (*head, f"{named}; found: {', '.join(kinds) or 'nothing'}", step, "", gain, "")
    verdict = {True: "yes", False: "**no**", None: "cannot be told"}[holds(found, estimate)]
    named = f"yes, number {kinds.index(found.kind) + 1}" if plant.helps else "**yes, though it does not help**"
    return (*head, named, step, f"{found.saving_low_ms:.2f} – {found.saving_high_ms:.2f}", gain, verdict)


def main() -> None:
    """Measure, print and write."""
    parser = make_parser(__doc__, RESULTS)
    parser.add_argument("--rounds", type=int, default=6, help="fits of each setup (default: 6)")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only faults with TEXT in their name or finding; writes no file"
    )
    parser.add_argument(
        "--here-only", action="store_true", help="leave out faults of other devices; one that fails becomes a row"
    )
    parser.add_argument("--fit", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    be_quiet()
    data = picture_data()
    if options.fit:
        plant, part = PLANTS[int(options.fit[0])], options.fit[1]
        print(msgspec.json.encode(here(plant, part, data)).decode())
        return
    rows: list[tuple[str, ...]] = []
    for plant in PLANTS:
        if options.only not in f"{plant.name} {plant.finding}":
            continue
        if options.here_only and plant.device not in ("any", HERE):
            continue
        try:
            rows.append(row(plant, options.rounds, data))
        except Exception as error:
            if not options.here_only:
                raise
            # On a machine that is lent for minutes, one fault must not cost the other rows.
            traceback.print_exc()
            failed = f"failed: {type(error).__name__}"
            rows.append((plant.name, f"`{plant.finding}`", plant.advice, failed, *NO_FIGURES))
        print(*rows[-1], sep=" | ", flush=True)
        if not options.only:
            write_page(options.results, page(options.rounds, rows))


def page(rounds: int, rows: list[tuple[str, ...]]) -> str:
    """Return the page with the rows measured so far."""
    where = device_name() if torch.cuda.is_available() else f"{device_name()}, one thread where no other number is said"
    heads = ("fault", "finding", "advice followed", "named", "step, ms", "predicted saving, ms")
    return (
        f"# Planted faults\n\nWritten by `python -m benchmarks.savings.planted`, method {METHOD}: trainings with a "
        f"fault, and with the advice of the finding followed. {rounds} fits of each, alternating; {where}; load "
        f"average {load_average()} at the end, this benchmark's own part in it. {versions_text()}.\n\n"
        f"{markdown_table((*heads, 'gain, ms (95 % interval)', 'inside'), rows)}\n"
    )


if __name__ == "__main__":
    main()
