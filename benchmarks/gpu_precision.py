"""Measure precisions on a GPU: FP32, TF32, fp16 and bf16 for ResNets, batch sizes and memory formats.

Each combination has two trainings on one batch that stays on the device. The first runs without any profiler, for
images per second and peak memory. The second is short and has `PerfCallback`. Its recording shows the arithmetic by
device time, the share of Tensor Cores and, in FP32, the predicted gain of mixed precision. The table has the prediction
next to the measured gain.

Run as ``python -m benchmarks.gpu_precision`` on a host with a CUDA GPU. Each row is written as soon as it is measured,
to ``benchmarks/results/gpu_precision.jsonl``. The table at the end goes to ``gpu_precision.md`` in the same folder.
``--device cpu --tiny`` only checks that the code runs.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
import torch
import torchvision
from torch import nn
from torch.utils.data import TensorDataset

import lightning_perf
from benchmarks.options import make_parser, markdown_table
from benchmarks.quiet import QUIET_TRAINER, be_quiet
from benchmarks.step_clock import StepClock
from benchmarks.versions import known_versions, versions_text
from lightning_perf import PerfCallback, PrecisionCallback, read_trace
from lightning_perf.analysis.precision.amp_gain import AmpGain, amp_gain
from lightning_perf.analysis.rank import analyze_rank
from lightning_perf.callbacks.precision_callback import Precision
from lightning_perf.units import format_bytes, format_share

RESULTS = Path(__file__).parent / "results" / "gpu_precision"
METHOD = 2
"""Version of the method: figures of different versions are not comparable."""

ARMS: dict[str, tuple[Precision, Literal["on", "off"]]] = {
    "TF32": ("32-true", "on"),
    "fp16": ("16-mixed", "off"),
    "bf16": ("bf16-mixed", "off"),
    "FP32": ("32-true", "off"),
}
"""The slowest comes last: where time runs out, the others are measured."""


@dataclass(frozen=True)
class Size:
    """Extent and duration of the measurement.

    Attributes:
        models: torchvision's names.
        batches: Batch sizes.
        image: Height and width of the images.
        warmup: Steps left out of the time.
        steps: Steps timed.
    """

    models: tuple[str, ...]
    batches: tuple[int, ...]
    image: int
    warmup: int
    steps: int


FULL = Size(("resnet50",), (128, 256), 224, 8, 24)
TINY = Size(("resnet18",), (2,), 32, 1, 2)


@dataclass(frozen=True)
class Row:
    """One combination.

    Attributes:
        model: torchvision's name.
        batch: Batch size.
        channels_last: Memory format of model and images.
        arm: Key of `ARMS`.
        ran_as: Precision that it ran in, and which FP32.
        images_per_s: Images a second, without a profiler; None if the combination failed.
        peak_memory_bytes: Most memory allocated; None on a CPU.
        arithmetic: Share of device compute time by arithmetic; empty on a CPU.
        tensor_cores: Share of device compute time on Tensor Cores.
        predicted_speedup: For FP32 and TF32: least and most speed-up by mixed precision.
        skipped_steps: Optimizer steps skipped by the scaler.
        run: File name of the profiled run, if it is kept.
        error: Why it failed, e.g. for lack of memory; the other combinations are still measured.
    """

    model: str
    batch: int
    channels_last: bool
    arm: str
    ran_as: str
    images_per_s: float | None = None
    peak_memory_bytes: int | None = None
    arithmetic: dict[str, float] = field(default_factory=dict)
    tensor_cores: float | None = None
    predicted_speedup: tuple[float, float] | None = None
    skipped_steps: int | None = None
    run: str | None = None
    error: str | None = None


class Classifier(pl.LightningModule):
    """A ResNet that trains on one batch, which stays on the device."""

    images: torch.Tensor
    labels: torch.Tensor

    def __init__(self, name: str, images: torch.Tensor, labels: torch.Tensor) -> None:
        super().__init__()
        self.net = torchvision.models.get_model(name, num_classes=25)
        self.register_buffer("images", images, persistent=False)
        self.register_buffer("labels", labels, persistent=False)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:  # noqa: ARG002
        """The loss; the batch that the loop brings is the number of the step."""
        loss: torch.Tensor = nn.functional.cross_entropy(self.net(self.images), self.labels)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The article's optimizer."""
        return torch.optim.SGD(self.parameters(), 0.01, momentum=0.9, nesterov=True)


def measure(
    size: Size,
    device: torch.device,
    model: str,
    batch: int,
    arm: str,
    *,
    channels_last: bool,
    runs_to: Path | None = None,
) -> Row:
    """Measure one combination.

    Args:
        size: Image size, number of steps.
        device: The device.
        model: torchvision's name.
        batch: Batch size.
        arm: Key of `ARMS`.
        channels_last: Memory format of model and images.
        runs_to: Folder that keeps the profiled run as an archive; without it the run is deleted.
    """
    precision, tf32 = ARMS[arm]
    options: dict[str, Any] = {"accelerator": "gpu" if device.type == "cuda" else "cpu"}

    def train(callbacks: list[pl.Callback], steps: int, folder: str) -> None:
        torch.manual_seed(0)
        layout = torch.channels_last if channels_last else torch.contiguous_format
        images = torch.randn(batch, 3, size.image, size.image).to(memory_format=layout)
        module = Classifier(model, images, torch.randint(0, 25, (batch,)))
        module.net.to(memory_format=layout)
        trainer = pl.Trainer(
            default_root_dir=folder,
            max_epochs=1,
            devices=1,
            benchmark=True,
            callbacks=callbacks,
            **QUIET_TRAINER,
            **options,
        )
        trainer.fit(module, torch.utils.data.DataLoader(TensorDataset(torch.arange(steps)), batch_size=1))

    with tempfile.TemporaryDirectory() as folder:
        if device.type == "cuda":
            gc.collect()  # the previous Trainer is a reference cycle: its memory would count for this one
            torch.cuda.empty_cache()
        clock = StepClock(size.warmup)
        callback = PrecisionCallback(precision, tf32=tf32, underflow_every_n_steps=0)
        train([clock, callback], size.warmup + size.steps, folder)
        memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
        assert callback.setting is not None
        profiled = PrecisionCallback(precision, tf32=tf32, underflow_every_n_steps=0, dirpath=Path(folder) / "numbers")
        traces = Path(folder) / "profile"
        perf = PerfCallback(skip_first=size.warmup, warmup=2, active=3, report="none", dirpath=traces)
        train([profiled, perf], size.warmup + 6, folder)
        report = lightning_perf.analyze(traces)
        arithmetic = report.ranks[0].arithmetic
        gain = _predict(traces) if precision == "32-true" else None
        kept = None
        if runs_to is not None:
            kept = Path(shutil.make_archive(str(runs_to / f"run-{arm.lower()}"), "gztar", traces)).name
    return Row(
        model=model,
        batch=batch,
        channels_last=channels_last,
        arm=arm,
        ran_as=f"{callback.setting.precision}, {callback.setting.fp32}",
        images_per_s=batch * size.steps / clock.seconds,
        peak_memory_bytes=memory,
        arithmetic={row.name: row.share for row in arithmetic.rows if row.share} if arithmetic is not None else {},
        tensor_cores=arithmetic.tensor_core_share if arithmetic is not None else None,
        predicted_speedup=gain.speedup if gain is not None else None,
        skipped_steps=callback.loss_scale.skipped_steps if callback.loss_scale is not None else None,
        run=kept,
    )


def table(rows: list[Row]) -> str:
    """Return the rows as a Markdown table."""
    arms = {(r.model, r.batch, r.channels_last, r.arm): r for r in rows}
    cells = []
    for row in rows:
        shares = sorted(row.arithmetic.items(), key=lambda item: -item[1])
        bases = (arms.get((row.model, row.batch, row.channels_last, base)) for base in ("FP32", "TF32"))
        cells.append(
            (
                *(row.model, row.batch, _layout(row.channels_last), row.arm, row.ran_as),
                *(row.error or f"{row.images_per_s:.1f}", *(cell for base in bases for cell in _against(row, base))),
                format_bytes(row.peak_memory_bytes),
                ", ".join(f"{name} {format_share(share)}" for name, share in shares) or "–",
                format_share(row.tensor_cores),
            )
        )
    heads = (
        "model",
        "batch",
        "layout",
        "arm",
        "ran as",
        "images/s",
        "over FP32",
        "predicted",
        "over TF32",
        "predicted",
    )
    return markdown_table((*heads, "peak memory", "arithmetic", "on Tensor Cores"), cells)


def _layout(channels_last: bool) -> str:
    return "channels-last" if channels_last else "contiguous"


def _against(row: Row, base: Row | None) -> tuple[str, str]:
    """Return the speed-up over another arm, and its prediction with whether it held."""
    if base is None or base.images_per_s is None or row.images_per_s is None:
        return "–", "–"
    speed_up = row.images_per_s / base.images_per_s
    predicted = base.predicted_speedup if row.arm in ("fp16", "bf16") else None
    if predicted is None:
        return f"{speed_up:.2f}×", "–"
    held = "held" if predicted[0] <= speed_up <= predicted[1] else "**missed**"
    return f"{speed_up:.2f}×", f"{predicted[0]:.2f}× – {predicted[1]:.2f}×, {held}"


def _predict(traces: Path) -> AmpGain | None:
    trace = read_trace(min(traces.glob("*.pt.trace.json.gz")))
    analysis = analyze_rank(trace)
    return amp_gain(trace, analysis.breakdown, analysis.launches, analysis.host_pace)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and write.

    Args:
        arguments: Command line; None for the process's own.

    Returns:
        The exit code: 1 if a combination failed, 2 without the device.
    """
    parser = make_parser(__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a size that only shows that it runs")
    parser.add_argument("--models", nargs="+", help=f"torchvision's names (default: {' '.join(FULL.models)})")
    parser.add_argument("--batches", nargs="+", type=int, help="batch sizes (default: 128 256)")
    parser.add_argument("--channels-last-only", action="store_true", help="leave out the contiguous format")
    parser.add_argument("--keep-runs", action="store_true", help="keep one profiled run per arm next to the results")
    parser.add_argument("--out", type=Path, default=RESULTS, help="path of the results, without suffix")
    given = parser.parse_args(arguments)
    if given.device == "cuda" and not torch.cuda.is_available():
        print("This measures a CUDA GPU, and torch finds none. Try --device cpu --tiny to see it run.", file=sys.stderr)
        return 2
    if given.device == "cpu" and not given.tiny:
        print("On a CPU this would take hours and tell nothing: add --tiny to see it run.", file=sys.stderr)
        return 2
    size, device = TINY if given.tiny else FULL, torch.device(given.device)
    size = replace(size, models=tuple(given.models or size.models), batches=tuple(given.batches or size.batches))
    if given.tiny:
        size = replace(size, models=TINY.models, batches=TINY.batches)
    layouts = (True,) if given.channels_last_only else (False, True)
    runs_to = given.out.parent if given.keep_runs else None
    be_quiet()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    facts = {"method": METHOD, "device": _device_name(device), **known_versions()}
    rows: list[Row] = []
    with given.out.with_suffix(".jsonl").open("w", encoding="utf-8") as file:
        file.write(json.dumps(facts) + "\n")
        for model, batch, channels_last, arm in itertools.product(size.models, size.batches, layouts, ARMS):
            try:
                row = measure(size, device, model, batch, arm, channels_last=channels_last, runs_to=runs_to)
            except Exception as error:  # a device without bfloat16, too little memory: the other rows still count
                reason = str(error).partition("\n")[0].replace("|", "/")[:120]
                row = Row(model, batch, channels_last, arm, "–", error=f"{type(error).__name__}: {reason}")
            rows.append(row)
            file.write(json.dumps(asdict(row)) + "\n")
            file.flush()
            os.fsync(file.fileno())
            print(
                f"{model} {batch} {_layout(channels_last)} {arm}: {row.error or f'{row.images_per_s:.1f}/s'}",
                flush=True,
            )
            given.out.with_suffix(".md").write_text(_page(size, device, rows), encoding="utf-8")
    print(table(rows))
    return 1 if any(row.error for row in rows) else 0


def _page(size: Size, device: torch.device, rows: list[Row]) -> str:
    return (
        f"# Precision of ResNets at {size.image} × {size.image}\n\nWritten by `python -m benchmarks.gpu_precision`, "
        f"method {METHOD}, on {_device_name(device)}. {size.steps} steps timed after {size.warmup}. "
        f"{versions_text()}.\n\n{table(rows)}\n"
    )


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"


if __name__ == "__main__":
    sys.exit(main())
