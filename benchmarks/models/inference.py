"""Measure accuracy, latency and size of every variant of the recipe's networks, for ``results/inference.md``.

Run ``python -m benchmarks.models.inference [--resnet FILE] [--cnn FILE] [--data FOLDER]``. If a checkpoint is missing,
it is
trained first, which needs ``--data``. Every variant that this machine can run is measured with one thread; the others
have a row with the reason. Use a quiet machine: the result contains the load.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.options import make_parser
from lightning_perf import Tradeoff
from lightning_perf.inference.runtimes.registry import RUNTIMES
from recipes.signlang.inference.variants import InferSettings, infer, student_variants
from recipes.signlang.settings import TrainSettings
from recipes.signlang.training.checkpoint import load_checkpoint
from recipes.signlang.training.train import train

METHOD_VERSION = 2
"""Increase it with every change that makes figures incomparable with older ones."""

RESULTS = Path(__file__).parents[1] / "results"
TEACHER, STUDENT = "resnet18", "cnn-bn"

TRANSFORMED = (  # of the large network; the small one is itself the small variant
    "prune-50+onnxruntime",
    "prune-50+onnxruntime-int8",
    "prune-50+distil+onnxruntime-int8",
    "prune-50+distil+openvino-int8",
    "sparsify-50",
    "share-5bit",
    "separable",
)
TRAININGS = {
    "resnet18": TrainSettings(model="resnet18", epochs=8, accelerator="cpu"),
    "cnn": TrainSettings(model="cnn", epochs=12, batch_size=8, accelerator="cpu"),
}
"""Trainings of missing checkpoints; all other settings are the recipe's defaults."""


def main() -> None:
    """Measure and write the results."""
    options = _options()
    with tempfile.TemporaryDirectory() as scratch:
        checkpoints = {
            name: getattr(options, name) or _train(name, options.data, Path(scratch)) for name in ("resnet18", "cnn")
        }
        documents = [_study(name, path, options) for name, path in checkpoints.items()]
    _write(documents, options.results)


def _options() -> argparse.Namespace:
    parser = make_parser(__doc__, RESULTS)
    parser.add_argument("--resnet", dest="resnet18", type=Path, metavar="FILE", help="checkpoint of a ResNet-18")
    parser.add_argument("--cnn", type=Path, metavar="FILE", help="checkpoint of the small CNN")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="where the pictures are (default: as trained)")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each variant and batch size (default: 1)")
    parser.add_argument("--seeds", type=int, default=2, help="students of each kind (default: 2)")
    parser.add_argument("--variants", nargs="+", help="only these (default: all)")
    return parser.parse_args()


def _train(name: str, data: Path | None, folder: Path) -> Path:
    if data is None:
        sys.exit(f"Give --data to train the {name}, or a checkpoint of it.")
    finished = train(replace(TRAININGS[name], data=data, log_dir=folder / name))
    if finished is None or finished.best_checkpoint is None:
        sys.exit(f"The training of the {name} did not finish.")
    return finished.best_checkpoint


def _study(name: str, checkpoint: Path, options: argparse.Namespace) -> Tradeoff:
    variants = options.variants
    student = None
    if variants is None:
        variants = [runtime.name for runtime in RUNTIMES]
        if name == TEACHER:
            student = STUDENT
            variants += [*TRANSFORMED, *student_variants(STUDENT)]
    settings = InferSettings(
        data=options.data,
        student=student,
        seeds=options.seeds,
        variants=tuple(variants),
        batch_sizes=(1, 32),
        threads=(1,),
        seconds=options.seconds,
        max_accuracy_drop=1.0,
    )
    return infer(load_checkpoint(checkpoint), settings, lambda line: print(line, flush=True))


def _write(documents: list[Tradeoff], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    told = (
        f"Written by `python -m benchmarks.models.inference`, method {METHOD_VERSION}, torch {torch.__version__}. "
        "[docs/inference.md](../../docs/inference.md) describes the method. All variants were tried; the ones that did "
        "not run have a reason. The recommendation is the fastest variant that loses at most one point of accuracy."
    )
    parts = ["# Inference", "", told]
    for document in documents:
        stem = f"inference_{document.model.removeprefix('signlang-')}"
        (folder / f"{stem}.json").write_bytes(document.to_json(indent=1).encode())
        document.save_plot(folder / f"{stem}.png")
        parts += ["", f"![Accuracy against latency]({stem}.png)", "", _one_level_down(document.to_markdown())]
    (folder / "inference.md").write_text("\n".join(parts).rstrip() + "\n", encoding="utf-8")


def _one_level_down(markdown: str) -> str:
    return "\n".join(f"#{line}" if line.startswith("#") else line for line in markdown.splitlines())


if __name__ == "__main__":
    main()
