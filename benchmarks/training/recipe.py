"""Measure accuracy and throughput of the sign-language recipe, for ``benchmarks/results/recipe.md``.

Run ``python -m benchmarks.training.recipe [--real FOLDER …] [--epochs N]``. It trains on the synthetic data first,
with a linear model in addition to the networks. Then it trains on each real
dataset, holding out whole captures and random pictures.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import lightning
import torch
import torchvision

from benchmarks.options import make_parser, markdown_table, write_page
from benchmarks.processes import load_average
from lightning_perf.machine.environment import cpu_name
from recipes.signlang.data.image_set import ImageSet, read_image_set
from recipes.signlang.data.split import Split, split_images
from recipes.signlang.settings import SplitKind, TrainSettings
from recipes.signlang.synthetic.dataset import SyntheticSet, default_cache_dir, ensure_synthetic
from recipes.signlang.training.train import train

METHOD_VERSION = 1
RESULT = Path(__file__).parents[1] / "results" / "recipe.md"
STORE = RESULT.with_suffix(".json")


@dataclass(frozen=True)
class Row:
    """One training."""

    data: str
    model: str
    split: str
    epochs: int
    accuracy: str
    wall_s: float
    cpu_s: float
    environment: str


def linear_accuracy(images: ImageSet, split: Split) -> float:
    """Held-out accuracy of a logistic regression on standardised pixels, fitted by L-BFGS."""
    pixels = torch.from_numpy(images.pictures).flatten(1).float()
    labels = torch.from_numpy(images.labels)
    training = torch.from_numpy(split.training)
    mean, deviation = pixels[training].mean(0), pixels[training].std(0) + 1
    features = (pixels - mean) / deviation / pixels.shape[1] ** 0.5
    model = torch.nn.Linear(pixels.shape[1], len(images.classes))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=100)

    def loss() -> float:
        optimizer.zero_grad()
        fit = torch.nn.functional.cross_entropy(model(features[training]), labels[training])
        total = fit + 1e-3 * model.weight.square().sum()
        total.backward()  # type: ignore[no-untyped-call]
        return float(total.detach())

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    held_out = torch.from_numpy(split.held_out)
    with torch.no_grad():
        return float((model(features[held_out]).argmax(1) == labels[held_out]).float().mean())


def measure(settings: TrainSettings, name: str) -> Row:
    """Train once."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = train(settings)
    if result is None:
        raise KeyboardInterrupt
    seconds = time.perf_counter() - wall, time.process_time() - cpu
    split, where = settings.split.value, environment(settings.precision)
    return Row(name, settings.model, split, settings.epochs, result.accuracy, *seconds, where)


def main() -> None:
    """Measure everything and write the table."""
    parser = make_parser(__doc__)
    parser.add_argument("--real", type=Path, nargs="*", default=[], help="folders or zips of real pictures")
    parser.add_argument("--epochs", type=int, default=6, help="epochs on the real data sets")
    parser.add_argument("--precision", default="16-mixed")
    parser.add_argument("--skip-embedded", action="store_true")
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as logs:
        base = TrainSettings(precision=options.precision, log_dir=Path(logs))
        if not options.skip_embedded:
            rows.append(measure(base, "embedded (synthetic)"))
            folder = ensure_synthetic(SyntheticSet(size=base.image_size), default_cache_dir())
            images = read_image_set(folder, base.image_size)
            wall, cpu = time.perf_counter(), time.process_time()
            share = linear_accuracy(images, split_images(images, base.split, base.validation_fraction, base.seed))
            seconds = time.perf_counter() - wall, time.process_time() - cpu
            figures = f"{100 * share:.1f} %", *seconds, environment("32-true")
            rows.append(Row("embedded (synthetic)", "linear", "capture", 0, *figures))
        for path in options.real:
            for kind in SplitKind:
                settings = TrainSettings(
                    precision=base.precision, log_dir=base.log_dir, data=path, split=kind, epochs=options.epochs
                )
                rows.append(measure(settings, path.name))
    write(rows)


def write(rows: list[Row]) -> None:
    """Merge rows into those of earlier runs, and write the table of all."""
    STORE.parent.mkdir(exist_ok=True)
    kept = [Row(**row) for row in json.loads(STORE.read_text())] if STORE.exists() else []
    merged = {(row.data, row.model, row.split): row for row in [*kept, *rows]}
    STORE.write_text(json.dumps([asdict(row) for row in merged.values()], indent=1) + "\n")
    cells = [
        (
            *(row.data, row.model, row.split, row.epochs or "–", row.accuracy),
            *(f"{row.wall_s:.0f}", f"{row.cpu_s:.0f}", row.environment),
        )
        for row in merged.values()
    ]
    heads = ("data", "model", "held out", "epochs", "held-out accuracy", "wall s", "CPU s", "measured on")
    write_page(
        RESULT,
        f"# Accuracy of the sign-language recipe\n\n{markdown_table(heads, cells)}\n\n"
        "Accuracy is that of the last epoch on the held-out pictures; its interval counts captures where whole\n"
        "captures were held out. Wall and CPU seconds are those of the whole training: reading the data, validation,\n"
        f"profiling and report. Settings not named are the recipe's defaults. Method version {METHOD_VERSION}.\n",
    )


def environment(precision: str) -> str:
    """Hardware, versions and load, in one line."""
    return (
        f"{cpu_name()}, {torch.get_num_threads()} of {os.cpu_count()} cores, load {load_average()}, "
        f"{precision}; Python {platform.python_version()}, torch {torch.__version__}, "
        f"torchvision {torchvision.__version__}, lightning {lightning.__version__}"
    )


if __name__ == "__main__":
    main()
