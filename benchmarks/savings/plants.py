"""Faults to plant into a training of pictures, each with the advice against it, for `benchmarks.savings.planted`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import Dataset

from lightning_perf.machine.page_faults import KEEP_MEMORY
from recipes.signlang.data.data_module import Batch, MemoryPictures
from recipes.signlang.training.module import SignModule


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How pictures are trained on.

    Attributes:
        model: One of the recipe's networks, ``transformer``, ``language``, ``mlp`` or ``wide``.
        batch_size: Pictures a batch.
        seconds_a_picture: Added to the time that a picture takes to come.
        workers: Worker processes of the DataLoader.
        syncs: Whether each step asks for its loss on the host.
        compiles: Whether the network is compiled, with CUDA graphs.
        precision: The Trainer's.
        tf32: Whether FP32 products may use TF32.
        channels_last: Whether weights, and so activations, have the channels of a pixel side by side.
        threads: Threads of an operator on a CPU; one, so that other cores are left to workers.
        optimizer: ``sgd``, the recipe's own, ``adamw`` or ``sgd, plain``: without momentum.
        fused: Whether the optimizer updates each parameter in one go.
        network: Makes the network, of its classes and the side of pictures in pixels; None for that of `model`.
        pin_memory: Whether batches for a GPU come from page-locked memory.
    """

    model: str
    batch_size: int
    seconds_a_picture: float = 0.0
    workers: int = 0
    syncs: bool = False
    compiles: bool = False
    precision: str = "32-true"
    tf32: bool = True
    channels_last: bool = False
    threads: int = 1
    optimizer: Literal["sgd", "sgd, plain", "adamw"] = "sgd"
    fused: bool = False
    network: Callable[[int, int], nn.Module] | None = None
    pin_memory: bool = True


@dataclass(frozen=True)
class Plant:
    """A fault, and the training after following its advice.

    Attributes:
        name: In words.
        finding: Kind of the finding that has to name it.
        advice: The advice that is followed, in words.
        before: With the fault.
        after: With the advice followed.
        device: Where it shows.
        helps: Whether the advice is worth giving; where it is not, the finding has to stay away.
        warm_up: Steps that a fit does first.
        steps: Steps of a fit that are timed.
        environment: Environment variables that the advice sets.
        fresh: Whether every fit is a process of its own, because the cost of memory depends on memory that was freed
            earlier.
    """

    name: str
    finding: str
    advice: str
    before: Setup
    after: Setup
    device: Literal["any", "cpu", "cuda"]
    helps: bool = True
    warm_up: int = 10
    steps: int = 60
    environment: Mapping[str, str] = field(default_factory=dict)
    fresh: bool = False


def _cpu(name: str, finding: str, before: Setup, *, steps: int, helps: bool = True, **advice: object) -> Plant:
    words = ", ".join(f"{field.replace('_', ' ')} {value}" for field, value in advice.items())
    words = words.replace("precision ", "").replace("channels last True", "channels last")
    after = replace(before, **advice)  # type: ignore[arg-type]
    return Plant(name, finding, words, before, after, "cpu", helps, min(10, steps), steps)


def _unfused(name: str, setup: Setup, *, steps: int = 12, helps: bool = True) -> Plant:
    after = replace(setup, fused=True)
    return Plant(name, "unfused-optimizer", "fused=True", setup, after, "cpu", helps, steps, steps, fresh=True)


def _keeping(name: str, setup: Setup) -> Plant:
    return Plant(
        name, "cpu-page-faults", "MALLOC_… as it says", setup, setup, "cpu", True, 8, 8, KEEP_MEMORY, fresh=True
    )


PLANTS = (
    Plant(
        "slow dataset",
        "input-bound",
        "num_workers=4",
        Setup(model="cnn", batch_size=8, seconds_a_picture=0.01),
        Setup(model="cnn", batch_size=8, seconds_a_picture=0.01, workers=4),
        "any",
    ),
    Plant(
        "sync every step",
        "sync-points",
        "no .item() in the step",
        Setup(model="resnet18", batch_size=64, precision="bf16-mixed", syncs=True),
        Setup(model="resnet18", batch_size=64, precision="bf16-mixed"),
        "cuda",
    ),
    Plant(
        "tiny batches",
        "launch-bound",
        'torch.compile(mode="reduce-overhead")',
        Setup(model="resnet18", batch_size=2),
        Setup(model="resnet18", batch_size=2, compiles=True),
        "cuda",
    ),
    Plant(
        "FP32 only",
        "half-precision",
        'precision="bf16-mixed"',
        Setup(model="resnet50", batch_size=256, tf32=False),
        Setup(model="resnet50", batch_size=256, tf32=False, precision="bf16-mixed"),
        "cuda",
    ),
    Plant(
        "TF32 off",
        "tf32-off",
        'tf32="on"',
        Setup(model="wide", batch_size=4096, tf32=False),
        Setup(model="wide", batch_size=4096),
        "cuda",
    ),
    Plant(
        "channels first in bf16",
        "channels-last",
        "channels last",
        Setup(model="resnet50", batch_size=256, precision="bf16-mixed"),
        Setup(model="resnet50", batch_size=256, precision="bf16-mixed", channels_last=True),
        "cuda",
    ),
    Plant(
        "pageable copies",
        "pageable-copies",
        "pin_memory=True",
        Setup(model="mlp", batch_size=16384, workers=4, pin_memory=False),
        Setup(model="mlp", batch_size=16384, workers=4),
        "cuda",
    ),
    _cpu("FP32, CNN", "cpu-bf16", Setup(model="cnn", batch_size=32), steps=20, precision="bf16-mixed"),
    _cpu("FP32, ResNet-18", "cpu-bf16", Setup(model="resnet18", batch_size=32), steps=6, precision="bf16-mixed"),
    _cpu("FP32, transformer", "cpu-bf16", Setup(model="transformer", batch_size=16), steps=12, precision="bf16-mixed"),
    _cpu("FP32, 512 words", "cpu-bf16", Setup(model="language", batch_size=4), steps=6, precision="bf16-mixed"),
    _cpu("FP32, MLP", "cpu-bf16", Setup(model="mlp", batch_size=8), steps=300, precision="bf16-mixed", helps=False),
    _cpu("channels first, CNN", "cpu-channels-last", Setup(model="cnn", batch_size=32), steps=20, channels_last=True),
    _cpu(
        "channels first, CNN in bf16",
        "cpu-channels-last",
        Setup(model="cnn", batch_size=32, precision="bf16-mixed"),
        steps=20,
        channels_last=True,
    ),
    _cpu(
        "channels first, ResNet-18, batch 4",
        "cpu-channels-last",
        Setup(model="resnet18", batch_size=4),
        steps=20,
        helps=False,
        channels_last=True,
    ),
    _unfused("AdamW in a loop, ResNet-18", Setup(model="resnet18", batch_size=16, optimizer="adamw")),
    _unfused("AdamW in a loop, transformer", Setup(model="transformer", batch_size=8, optimizer="adamw"), steps=20),
    _unfused("SGD in a loop, ResNet-18", Setup(model="resnet18", batch_size=4)),
    _unfused("plain SGD, ResNet-18", Setup(model="resnet18", batch_size=4, optimizer="sgd, plain"), helps=False),
    _cpu("tiny batches, MLP", "cpu-overhead", Setup(model="mlp", batch_size=8), steps=300, batch_size=16),
    _cpu("tiny batches, MLP", "cpu-overhead", Setup(model="mlp", batch_size=8), steps=300, batch_size=32),
    _cpu("one of two cores, CNN", "cpu-threads", Setup(model="cnn", batch_size=32), steps=20, threads=2),
    _cpu("one of two cores, ResNet-18", "cpu-threads", Setup(model="resnet18", batch_size=32), steps=6, threads=2),
    _keeping("memory given back, CNN", Setup(model="cnn", batch_size=128)),
    _keeping("memory given back, CNN, 2 threads", Setup(model="cnn", batch_size=128, threads=2)),
)
"""Faults on a GPU come from its host. Faults on a processor come from its operations, their order and their format."""


class SlowPictures(Dataset[Batch]):
    """Pictures that take their time, as from a slow disk: waiting keeps no core busy."""

    def __init__(self, pictures: MemoryPictures, seconds_a_picture: float) -> None:
        self._pictures, self._seconds = pictures, seconds_a_picture

    def __len__(self) -> int:
        return len(self._pictures)

    def __getitem__(self, index: int) -> Batch:
        time.sleep(self._seconds)
        return self._pictures[index]

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        time.sleep(self._seconds * len(indices))
        return self._pictures.__getitems__(indices)


class PlantedModule(SignModule):
    """The recipe's module with the network of a setup; on request it asks for its loss in the middle of each step."""

    def __init__(self, setup: Setup, classes: tuple[str, ...], image_size: int) -> None:
        own = setup.network or {"transformer": Transformer, "language": Language, "mlp": Mlp, "wide": Wide}.get(
            setup.model
        )
        super().__init__("cnn" if own else setup.model, classes, image_size)
        if own is not None:
            self.network = own(len(classes), image_size)
        if setup.channels_last:
            self.to(memory_format=torch.channels_last)
        if setup.compiles:
            self.network = torch.compile(self.network, mode="reduce-overhead")  # type: ignore[assignment]
        self._setup = setup

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Loss of a batch."""
        loss = super().training_step(batch, batch_idx)
        if self._setup.syncs:
            self.latest_loss = loss.item()
        return loss

    def configure_optimizers(self) -> Optimizer:
        """The setup's."""
        if self._setup.optimizer == "adamw":
            return AdamW(self.parameters(), lr=1e-3, fused=self._setup.fused)
        plain = self._setup.optimizer != "sgd"
        momentum = 0.0 if plain else 0.9
        return SGD(self.parameters(), lr=self.lr, momentum=momentum, nesterov=not plain, fused=self._setup.fused)


class Transformer(nn.Module):
    """Two layers of 256 channels on the rows of a picture; dropout keeps attention in matrix products."""

    def __init__(self, classes: int, image_size: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
        self.rows, self.layers = nn.Linear(image_size, 256), nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(256, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits, ``(n, classes)``."""
        logits: Tensor = self.head(self.layers(self.rows(images.squeeze(1))).mean(1))
        return logits


class Language(nn.Module):
    """A causal transformer that takes pixels for words, one of 256: every fourth of a row.

    Args:
        classes: Number of classes.
        image_size: Side of the pictures in pixels.
        every: Which rows it reads; every second of 64 makes 512 words.
    """

    def __init__(self, classes: int, image_size: int, every: int = 2) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(192, 6, 768, dropout=0.0, batch_first=True, norm_first=True)
        self.words, self.layers = nn.Embedding(256, 192), nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head, self.labels, self.every = nn.Linear(192, 256), nn.Linear(256, classes), every
        words = (image_size // 4) * (image_size // every)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(words))

    def forward(self, images: Tensor) -> Tensor:
        """Logits, ``(n, classes)``."""
        words = (images.squeeze(1)[:, :: self.every, ::4] * 255).flatten(1).long()
        logits: Tensor = self.labels(self.head(self.layers(self.words(words), mask=self.mask, is_causal=True)).mean(1))
        return logits


class Mlp(nn.Sequential):
    """Three layers on every eighth pixel: a step of it is mostly Python."""

    def __init__(self, classes: int, image_size: int) -> None:
        side = image_size // 8
        super().__init__(
            nn.AvgPool2d(8),
            nn.Flatten(),
            nn.Linear(side * side, 64),
            nn.ReLU(),
            nn.Linear(64, 64),
            nn.ReLU(),
            nn.Linear(64, classes),
        )


class Wide(nn.Sequential):
    """Four layers of 4096 channels: its time is that of large matrix products."""

    def __init__(self, classes: int, image_size: int) -> None:
        layers = [part for _ in range(3) for part in (nn.Linear(4096, 4096), nn.ReLU())]
        super().__init__(
            nn.Flatten(), nn.Linear(image_size * image_size, 4096), nn.ReLU(), *layers, nn.Linear(4096, classes)
        )
