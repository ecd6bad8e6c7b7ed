"""Check predictions on networks that did not shape them.

The constants of the findings for processors come from the networks that ``docs/findings.md`` names. This benchmark uses
other networks of torchvision and torch. Each is profiled as a user would do it, and each advice is followed, even if
the report does not give it. If it does, the gain is compared with the prediction. If not, the gain shows whether a user
would have missed something.

Run as ``python -m benchmarks.unseen_models`` on a quiet machine without a GPU. It takes about 40 minutes, prints a
table, and writes it to ``benchmarks/results/unseen_models.md``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision import models

from benchmarks.options import make_parser
from benchmarks.planted import IMAGE_SIZE, PictureData, holds, in_turns, picture_data, profile, step_ms
from benchmarks.plants import Language, Plant, Setup
from benchmarks.quiet import be_quiet
from benchmarks.versions import device_name, versions_text
from lightning_perf.findings.finding import Finding
from lightning_perf.statistics.location import interval, paired_difference
from lightning_perf.statistics.values import Estimate

RESULTS = Path(__file__).parent / "results" / "unseen_models.md"
METHOD = 1
"""Version of the method: figures of different versions are not comparable."""

FIT_SECONDS = 2.5
"""How long the timed steps of a fit take, about."""

WORTH = 0.05
"""A gain of more than this part of the step is one that advice should not have missed."""


class Coloured(nn.Module):
    """A network for colour pictures on grey ones."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Logits, ``(n, classes)``."""
        logits: Tensor = self.network(images.expand(-1, 3, -1, -1))
        return logits


class Recurrent(nn.Module):
    """Two layers of an LSTM on the rows of a picture."""

    def __init__(self, classes: int, image_size: int) -> None:
        super().__init__()
        self.rows, self.head = nn.LSTM(image_size, 256, 2, batch_first=True), nn.Linear(256, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits, ``(n, classes)``."""
        states, _ = self.rows(images.squeeze(1))
        logits: Tensor = self.head(states[:, -1])
        return logits


def _vit(classes: int, image_size: int) -> nn.Module:
    return Coloured(models.VisionTransformer(image_size, 8, 6, 6, 192, 768, num_classes=classes))


def _language(classes: int, image_size: int) -> nn.Module:
    return Language(classes, image_size, every=4)


def _of_torchvision(name: str) -> Callable[[int, int], nn.Module]:
    return lambda classes, _: Coloured(models.get_model(name, num_classes=classes))


NETWORKS: dict[str, tuple[Callable[[int, int], nn.Module], int]] = {
    "MobileNetV3-small": (_of_torchvision("mobilenet_v3_small"), 32),
    "EfficientNet-B0": (_of_torchvision("efficientnet_b0"), 16),
    "DenseNet-121": (_of_torchvision("densenet121"), 16),
    "VGG-11": (_of_torchvision("vgg11_bn"), 8),
    "RegNetY-400MF": (_of_torchvision("regnet_y_400mf"), 16),
    "ConvNeXt-tiny": (_of_torchvision("convnext_tiny"), 8),
    "ViT, 6 layers of 192": (_vit, 16),
    "Swin-T": (_of_torchvision("swin_t"), 8),
    "LSTM, 2 layers of 256": (Recurrent, 32),
    "language model, 4 layers of 192": (_language, 8),
}
"""Each with its batch size."""

ADVICE: dict[str, tuple[str, dict[str, Any]]] = {
    "bf16-mixed": ("cpu-bf16", {"precision": "bf16-mixed"}),
    "channels last": ("cpu-channels-last", {"channels_last": True}),
    "two threads": ("cpu-threads", {"threads": 2}),
    "twice the batch": ("cpu-overhead", {}),
}


@dataclass(frozen=True)
class Outcome:
    """The result of one advice on one network.

    Attributes:
        found: The finding that gives it; None where none does.
        before_ms: Mean step as it was.
        gain_ms: Gain a step, for as many samples.
    """

    found: Finding | None
    before_ms: float
    gain_ms: Estimate

    @property
    def verdict(self) -> str:
        """Whether the prediction holds, or the cost of a missing one."""
        gain = self.gain_ms
        if self.found is None:
            return "missed" if (gain.low or 0) > WORTH * self.before_ms else "no certain gain"
        above = (gain.value or 0) > (self.found.saving_high_ms or 0)
        outside = "**above**" if above else "**below**"
        return {True: "inside", False: outside, None: "cannot be told"}[holds(self.found, gain)]


def outcome(plant: Plant, findings: tuple[Finding, ...], rounds: int, data: PictureData) -> Outcome:
    """Follow one advice, alternating fits with and without it."""
    found = next((finding for finding in findings if finding.kind == plant.finding), None)
    before, after = in_turns(rounds, lambda part: step_ms(plant, part, data))
    return Outcome(found, sum(before) / len(before), interval(paired_difference(after, before)))


def rows(name: str, rounds: int, data: PictureData, only: str = "") -> list[tuple[str, Outcome]]:
    """Return the results of all advice on one network, or only of pairs that contain a text."""
    asked = [advice for advice in ADVICE if only in f"{name}, {advice}"]
    if not asked:
        return []
    network, batch_size = NETWORKS[name]
    setup = Setup(model=name, batch_size=batch_size, network=network)
    trial = Plant(name, "", "", setup, setup, "cpu", warm_up=2, steps=2)
    steps = max(3, min(200, round(FIT_SECONDS * 1e3 / step_ms(trial, "before", data))))
    findings = profile(replace(trial, warm_up=min(steps, 10)), data)
    found = []
    for advice in asked:
        kind, change = ADVICE[advice]
        advised = change or {"batch_size": 2 * setup.batch_size}
        plant = Plant(name, kind, advice, setup, replace(setup, **advised), "cpu", warm_up=min(steps, 10), steps=steps)
        if kind == "cpu-channels-last" and not any(
            isinstance(part, nn.Conv2d) for part in network(len(data[2]), IMAGE_SIZE).modules()
        ):
            continue
        found.append((advice, outcome(plant, findings, rounds, data)))
        print(line(name, *found[-1]), flush=True)
    return found


def line(name: str, advice: str, result: Outcome) -> str:
    """One row of the table."""
    found, gain = result.found, result.gain_ms
    predicted = "–"
    if found is not None and found.saving_low_ms is not None and found.saving_high_ms is not None:
        predicted = f"{found.saving_low_ms:.1f} – {found.saving_high_ms:.1f}"
    return (
        f"| {name} | {advice} | {result.before_ms:.1f} | {predicted} "
        f"| {gain.value:.1f} ({gain.low:.1f} – {gain.high:.1f}) | {result.verdict} |"
    )


def summary(results: list[Outcome]) -> str:
    """Counts of all verdicts."""
    given = [one for one in results if one.found is not None]
    spared = [one for one in results if one.found is None]
    inside = sum(one.verdict == "inside" for one in given)
    apart = sum(one.verdict.startswith("**") for one in given)
    missed = sum(one.verdict == "missed" for one in spared)
    slower = sum((one.gain_ms.high or 0) < 0 for one in given)
    return (
        f"{len(given)} predictions: {inside} gains inside, {apart} clearly outside, {len(given) - inside - apart} "
        f"cannot be told. {slower} of the given advice made the training slower. {len(spared)} times the report gave "
        f"no advice. In {missed} of these cases, the advice would have saved more than {WORTH:.0%} of the step."
    )


def main() -> None:
    """Measure, print and write."""
    parser = make_parser(__doc__, RESULTS)
    parser.add_argument("--rounds", type=int, default=5, help="fits of each setup (default: 5)")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only rows with TEXT in the network or advice; writes no file"
    )
    options = parser.parse_args()
    if torch.cuda.is_available():
        parser.error("the advice is for processors: hide the GPU (CUDA_VISIBLE_DEVICES=)")
    be_quiet()
    data = picture_data()
    table, results = [], []
    for name in NETWORKS:
        for advice, result in rows(name, options.rounds, data, options.only):
            table.append(line(name, advice, result))
            results.append(result)
    if not results:
        parser.error(f"no network or advice contains {options.only!r}: {', '.join((*NETWORKS, *ADVICE))}")
    text = (
        f"# Predictions on unseen networks\n\nWritten by `python -m benchmarks.unseen_models`, method {METHOD}: "
        f"{options.rounds} fits of each setup, alternating; {device_name()}, one thread where no other number is said; "
        f"load average {os.getloadavg()[0]:.1f} at the end, this benchmark's own part in it. {versions_text()}.\n\n"
        f"{summary(results)}\n\n"
        "| network | advice | step, ms | predicted saving, ms | gain, ms (95 % interval) | |\n"
        "|---|---|---|---|---|---|\n" + "\n".join(table) + "\n"
    )
    print(text)
    if not options.only:
        options.results.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
