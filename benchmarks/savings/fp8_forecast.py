"""Compare the forecast of number formats with emulated trainings in those formats.

Two small networks, a CNN and a language model, train with `PerfCallback(forecast=…)` in FP32. Some of their layers get
activations with outliers of different sizes, which FP8 flushes around. Then each layer alone is replaced by one with
all three products in the format, emulated with torch's FP8 casts and a table of all E2M1 values. This code shares
nothing with the forecast's. For each pair of a layer and a format there are two measures of harm:

- gradient error: the relative change of the gradient of this layer and the layers before it, by its norm. It is taken
  at the weights at the end of the training. The replacement hurts from 25 % on.
- loss: the mean loss of the last steps of a training from the start with the replaced layer. The replacement hurts if
  it is above the 95 % prediction interval of trainings without it, with other orders of the batches.

The forecast's ratio for the layer and format is the lowest of its three products. It calls a layer unsafe below 15 dB.

Run as ``python -m benchmarks.savings.fp8_forecast``. Writes ``benchmarks/results/fp8_forecast.md``.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from scipy import stats
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.options import make_parser, markdown_table, write_page
from benchmarks.quiet import QUIET_TRAINER, be_quiet
from benchmarks.versions import device_name, versions_text
from lightning_perf import PerfCallback
from lightning_perf.analysis.precision.forecast import SAFE_DB
from lightning_perf.run_files.numerics.samples import FORECAST

RESULTS = Path(__file__).parents[1] / "results" / "fp8_forecast.md"
STEPS = 100
LAST_STEPS = 25
SEEDS = 6
HARMFUL_ERROR = 0.25
ROOT = Path(__file__).parents[2]

FACTORS = (1, 1e2, 1e3, 1e4, 1, 1e6)
"""Factors of the first channel before each layer of the CNN but the last."""

Round = Callable[[torch.Tensor, bool], torch.Tensor]
"""Rounds the rows of a matrix; the second argument says whether it is a gradient."""

_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
# A magnitude at a boundary goes to the value with the even code. Three boundaries are a bit lower for that.
_BOUNDARIES = torch.tensor([0.25, 0.75 - 2**-24, 1.25, 1.75 - 2**-23, 2.5, 3.5 - 2**-22, 5.0])


def fp8(dtype: torch.dtype, gradient_dtype: torch.dtype) -> Round:
    """FP8 with one scale per tensor."""

    def rounded(matrix: torch.Tensor, is_gradient: bool) -> torch.Tensor:
        chosen = gradient_dtype if is_gradient else dtype
        limit = torch.finfo(chosen).max
        scale = limit / matrix.abs().max().clamp(min=1e-38)
        return (matrix * scale).clamp(-limit, limit).to(chosen).float() / scale

    return rounded


def mxfp8(matrix: torch.Tensor, is_gradient: bool) -> torch.Tensor:  # noqa: ARG001
    """E4M3 in blocks of 32, with powers of two as scales."""
    return _by_block(
        matrix, 32, lambda block, scale: (block / scale).to(torch.float8_e4m3fn).float() * scale, _mx_scale
    )


def nvfp4(matrix: torch.Tensor, is_gradient: bool) -> torch.Tensor:  # noqa: ARG001
    """E2M1 in blocks of 16, with E4M3 scales and one scale per tensor."""
    whole = matrix.abs().max().clamp(min=1e-38) / (6 * 448)

    def scale_of(block: torch.Tensor) -> torch.Tensor:
        return (block.abs().amax(-1, keepdim=True) / 6 / whole).to(torch.float8_e4m3fn).float() * whole

    def rounded(block: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        relative = torch.where(scale > 0, block / scale.clamp(min=1e-45), torch.zeros_like(block))
        return torch.sign(relative) * _E2M1[torch.bucketize(relative.abs(), _BOUNDARIES)] * scale

    return _by_block(matrix, 16, rounded, scale_of)


FORMATS: dict[str, Round] = {
    "fp8": fp8(torch.float8_e4m3fn, torch.float8_e5m2),
    "e5m2": fp8(torch.float8_e5m2, torch.float8_e5m2),
    "mxfp8": mxfp8,
    "nvfp4": nvfp4,
}


class EmulatedProduct(torch.autograd.Function):
    """The product of a layer, with rounded operands in all three products."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weight: torch.Tensor, rounded: Round) -> torch.Tensor:
        """Multiply rows by a weight."""
        ctx.save_for_backward(rows, weight)
        ctx.rounded = rounded
        product: torch.Tensor = rounded(rows, False) @ rounded(weight, False).T
        return product

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Return the gradients of rows and weight."""
        rows, weight = ctx.saved_tensors
        rounded = ctx.rounded
        to_rows = rounded(gradient, True) @ rounded(weight.T.contiguous(), False).T
        to_weight = rounded(gradient.T.contiguous(), True) @ rounded(rows.T.contiguous(), False).T
        return to_rows, to_weight, None


def emulated_forward(layer: Any, rounded: Round) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a forward pass of a layer in an emulated format."""

    def linear(inputs: torch.Tensor) -> torch.Tensor:
        rows = inputs.reshape(-1, inputs.shape[-1])
        product: torch.Tensor = EmulatedProduct.apply(rows, layer.weight, rounded)
        output: torch.Tensor = product + layer.bias
        return output.reshape(*inputs.shape[:-1], -1)

    def convolution(inputs: torch.Tensor) -> torch.Tensor:
        columns = functional.unfold(inputs, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
        batch, channels = inputs.shape[:2]
        positions = columns.shape[-1]
        # Channels are the fastest, as in the channels-last layout.
        rows = columns.reshape(batch, channels, -1, positions).permute(0, 3, 2, 1).reshape(batch * positions, -1)
        weight = layer.weight.permute(0, 2, 3, 1).reshape(layer.weight.shape[0], -1)
        product: torch.Tensor = EmulatedProduct.apply(rows, weight, rounded)
        height = (inputs.shape[2] + 2 * layer.padding[0] - layer.kernel_size[0]) // layer.stride[0] + 1
        output: torch.Tensor = product + layer.bias
        output = output.reshape(batch, positions, -1).transpose(1, 2)
        return output.reshape(batch, -1, height, positions // height)

    return linear if isinstance(layer, nn.Linear) else convolution


class Outliers(nn.Module):
    """Multiplies the first channel by a factor, and leaves the others alone.

    Args:
        factor: The factor.
        dimension: The dimension of the channels.
    """

    def __init__(self, factor: float, dimension: int) -> None:
        super().__init__()
        self.factor, self.dimension = factor, dimension

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return values with outliers."""
        scale = torch.ones(values.shape[self.dimension], device=values.device)
        scale[0] = self.factor
        shape = [1] * values.dim()
        shape[self.dimension] = -1
        return values * scale.reshape(shape)


def compensate(layer: Any, factor: float) -> None:
    """Give a layer small weights for the channel with outliers, as trained models have, and keep them."""

    def mask(gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        gradient[:, 0] = 0
        return gradient

    if factor != 1:
        with torch.no_grad():
            layer.weight[:, 0] /= factor
        layer.weight.register_hook(mask)


class Network(pl.LightningModule):
    """A training with Adam that keeps its losses."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def loss(self, batch: Any) -> torch.Tensor:
        """Return the loss of a batch."""
        inputs, targets = batch
        outputs = self(inputs)
        return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:  # noqa: ARG002
        """Return the loss, and note it."""
        loss = self.loss(batch)
        self.losses.append(float(loss.detach()))
        return loss

    def configure_optimizers(self) -> Any:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), 2e-3)


class Cnn(Network):
    """Five convolutions and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, stride=2)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.conv3 = nn.Conv2d(32, 32, 3, padding=1, stride=2)
        self.conv4 = nn.Conv2d(32, 32, 3, padding=1)
        self.conv5 = nn.Conv2d(32, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * 4, 64)
        self.fc2 = nn.Linear(64, 16)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for channels in (16, 32, 32, 32, 32))
        self.outliers = nn.ModuleList(Outliers(factor, 1) for factor in FACTORS)
        layers = (self.conv1, self.conv2, self.conv3, self.conv4, self.conv5, self.fc1)
        for layer, factor in zip(layers, FACTORS, strict=True):
            compensate(layer, factor)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        layers = (self.conv1, self.conv2, self.conv3, self.conv4, self.conv5)
        for layer, norm, outliers in zip(layers, self.norms, self.outliers, strict=False):
            values = functional.relu(norm(layer(outliers(values))))
        values = functional.avg_pool2d(values, 2).flatten(1)
        values = functional.relu(functional.layer_norm(self.fc1(self.outliers[5](values)), (64,)))
        logits: torch.Tensor = self.fc2(values)
        return logits


class Block(nn.Module):
    """A transformer block.

    Args:
        width: Features.
        attention_outliers: Factor of the first channel before the attention.
        mlp_outliers: The same before the two linear layers.
    """

    def __init__(self, width: int, attention_outliers: float, mlp_outliers: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.outliers1, self.outliers2 = Outliers(attention_outliers, -1), Outliers(mlp_outliers, -1)
        compensate(self.qkv, attention_outliers)
        compensate(self.up, mlp_outliers)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return the next values."""
        q, k, v = self.qkv(self.outliers1(self.norm1(values))).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in (q, k, v))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
        values = values + self.out(attended)
        hidden: torch.Tensor = self.down(functional.gelu(self.up(self.outliers2(self.norm2(values)))))
        return values + hidden


class LanguageModel(Network):
    """A transformer of two blocks over characters."""

    def __init__(self) -> None:
        super().__init__()
        width = 32
        self.embedding, self.position = nn.Embedding(128, width), nn.Embedding(64, width)
        self.blocks = nn.Sequential(Block(width, 1, 1e2), Block(width, 1e3, 1e5))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 128)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        values = self.embedding(tokens) + self.position(torch.arange(tokens.shape[1]))
        logits: torch.Tensor = self.head(self.norm(self.blocks(values)))
        return logits


def images() -> TensorDataset:
    """Images of 16 classes: templates and noise."""
    random = torch.Generator().manual_seed(0)
    templates = torch.randn(16, 3, 16, 16, generator=random)
    targets = torch.randint(16, (1024,), generator=random)
    inputs = templates[targets] + torch.randn(1024, 3, 16, 16, generator=random)
    return TensorDataset(inputs, targets[:, None])


def text() -> TensorDataset:
    """Sequences of 16 characters from the documentation of this project."""
    pages = sorted((ROOT / "docs").glob("*.md"))
    content = "".join(page.read_text(encoding="utf-8") for page in pages).encode("ascii", "ignore")[: 1024 * 17]
    tokens = torch.tensor(list(content)).reshape(-1, 17)
    return TensorDataset(tokens[:, :-1], tokens[:, 1:])


NETWORKS: dict[str, tuple[type[Network], Callable[[], TensorDataset]]] = {
    "CNN": (Cnn, images),
    "language model": (LanguageModel, text),
}


@dataclass(frozen=True)
class Pair:
    """A layer and a format: the forecast and the harm.

    Attributes:
        network: The network.
        layer: The layer.
        format: The format.
        snr_db: The forecast's lowest signal-to-noise ratio.
        gradient_error: Relative error of the gradient.
        loss: Mean loss at the end of the training with the replaced layer.
        loss_hurts: Whether that is above the prediction interval.
    """

    network: str
    layer: str
    format: str
    snr_db: float
    gradient_error: float
    loss: float
    loss_hurts: bool

    @property
    def unsafe(self) -> bool:
        """Whether the forecast keeps the layer out."""
        return self.snr_db < SAFE_DB


def train(network: Network, data: TensorDataset, seed: int, **options: Any) -> Network:
    """Train a network for `STEPS` steps."""
    loader = DataLoader(data, 16, shuffle=True, generator=torch.Generator().manual_seed(seed))
    pl.Trainer(max_steps=STEPS, max_epochs=-1, accelerator="cpu", **QUIET_TRAINER, **options).fit(network, loader)
    return network


def make(kind: type[Network]) -> Network:
    """Make a network with the same weights every time."""
    torch.manual_seed(0)
    return kind()


def end_loss(network: Network) -> float:
    """Return the mean loss of the last steps."""
    mean = sum(network.losses[-LAST_STEPS:]) / LAST_STEPS
    return mean if math.isfinite(mean) else math.inf


def gradients(network: Network, batches: Sequence[Any], names: Sequence[str]) -> torch.Tensor:
    """Return the gradient of some parameters as a vector."""
    network.zero_grad()
    for batch in batches:
        network.loss(batch).backward()  # type: ignore[no-untyped-call]
    parameters = dict(network.named_parameters())
    return torch.cat([p.grad.flatten() for name in names if (p := parameters[name]).grad is not None])


def pairs(name: str, steps: Callable[[str], None]) -> Iterator[Pair]:
    """Compare every layer of a network in every format."""
    kind, make_data = NETWORKS[name]
    data = make_data()
    with tempfile.TemporaryDirectory() as folder:
        callback = PerfCallback(forecast=1.0, dirpath=folder, report="none", fingerprint="light")
        trained = train(make(kind), data, 0, callbacks=[callback])
        samples = FORECAST.read(FORECAST.path(Path(folder), 0))
    plain = [end_loss(trained)] + [end_loss(train(make(kind), data, seed)) for seed in range(1, SEEDS)]
    mean, deviation = float(torch.tensor(plain).mean()), float(torch.tensor(plain).std())
    limit = mean + float(stats.t.ppf(0.975, SEEDS - 1)) * deviation * math.sqrt(1 + 1 / SEEDS)
    steps(f"{name}: loss {mean:.3f}, up to {limit:.3f} by chance")
    trained.train()
    batches = [batch for batch, _ in zip(DataLoader(data, 32), range(4), strict=False)]
    order = [parameter for parameter, _ in trained.named_parameters()]
    for layer in dict.fromkeys(sample.layer for sample in samples):
        last = max(i for i, parameter in enumerate(order) if parameter.startswith(f"{layer}."))
        before = order[: last + 1]
        exact = gradients(trained, batches, before)
        for number_format, rounded in FORMATS.items():
            module = trained.get_submodule(layer)
            module.forward = emulated_forward(module, rounded)
            changed = gradients(trained, batches, before)
            del module.forward
            network = make(kind)
            replaced = network.get_submodule(layer)
            replaced.forward = emulated_forward(replaced, rounded)
            loss = end_loss(train(network, data, 0))
            products = (found for sample in samples if sample.layer == layer for found in sample.products.values())
            ratios = [ratio for found in products if (ratio := found[number_format]) is not None]
            yield Pair(
                name, layer, number_format, min(ratios),
                float((changed - exact).norm() / exact.norm()), loss, not loss <= limit,
            )  # fmt: skip
        steps(layer)


def _mx_scale(block: torch.Tensor) -> torch.Tensor:
    largest = (block.abs().amax(-1, keepdim=True) / 448).clamp(min=2.0**-126)
    return torch.exp2(torch.ceil(torch.log2(largest.double()))).float()


def _by_block(
    matrix: torch.Tensor,
    size: int,
    rounded: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    scale_of: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    padded = functional.pad(matrix, (0, -matrix.shape[1] % size))
    blocks = padded.reshape(matrix.shape[0], -1, size)
    return rounded(blocks, scale_of(blocks)).reshape(padded.shape)[:, : matrix.shape[1]]


def counts(found: Sequence[Pair], hurts: Callable[[Pair], bool]) -> tuple[int, int, int, int]:
    """Return how many unsafe pairs hurt and do not hurt, and how many safe pairs hurt and do not hurt."""
    cells = [(pair.unsafe, hurts(pair)) for pair in found]
    return (
        cells.count((True, True)),
        cells.count((True, False)),
        cells.count((False, True)),
        cells.count((False, False)),
    )


def page(found: Sequence[Pair], seconds: float) -> str:
    """Return the page of results as Markdown."""
    origin = (
        "Written by `python -m benchmarks.savings.fp8_forecast`, which describes the networks and both measures "
        f"of harm. {STEPS} steps per training, {seconds:.0f} s on {device_name()}. {versions_text()}."
    )
    meaning = (
        f"A layer is *unsafe* in a format below {SAFE_DB:g} dB. It *hurts* in the gradient from an error of "
        f"{100 * HARMFUL_ERROR:.0f} % on, and in the loss above the 95 % prediction interval of {SEEDS} FP32 trainings."
    )
    groups = [(name, [pair for pair in found if pair.network == name]) for name in NETWORKS] + [("both", list(found))]
    correlations = []
    for name, group in groups:
        ratios = [pair.snr_db for pair in group]
        by_gradient = stats.spearmanr(ratios, [pair.gradient_error for pair in group]).statistic
        by_loss = stats.spearmanr(ratios, [min(pair.loss, 1e9) for pair in group]).statistic
        correlations.append((name, len(group), f"{by_gradient:.2f}", "–" if name == "both" else f"{by_loss:.2f}"))
    outcomes = [(name, measure, *counts(group, hurts)) for name, group in groups for measure, hurts in MEASURES.items()]
    pairs = [
        (
            *(pair.network, pair.layer, pair.format, f"{pair.snr_db:.1f}"),
            *(f"{100 * pair.gradient_error:.1f} %", f"{pair.loss:.3f}"),
            " and ".join(measure for measure, hurts in MEASURES.items() if hurts(pair)) or "no",
        )
        for pair in sorted(found, key=lambda pair: pair.snr_db)
    ]
    heads = ("network", "pairs", "rank correlation: ratio and gradient error", "ratio and loss")
    cells = ("unsafe, hurts", "unsafe, does not hurt", "safe, hurts", "safe, does not hurt")
    parts = (
        "# The forecast of number formats against emulated trainings",
        origin,
        meaning,
        markdown_table(heads, correlations),
        markdown_table(("network", "measure", *cells), outcomes),
        "## Every pair",
        markdown_table(("network", "layer", "format", "ratio (dB)", "gradient error", "loss", "hurts"), pairs),
    )
    return "\n\n".join(parts) + "\n"


MEASURES: dict[str, Callable[[Pair], bool]] = {
    "gradient": lambda pair: not pair.gradient_error < HARMFUL_ERROR,
    "loss": lambda pair: pair.loss_hurts,
}
"""Whether a pair hurts, by each measure of harm."""


def main() -> None:
    """Run the comparison, and write its page."""
    arguments = make_parser(__doc__, RESULTS).parse_args()
    be_quiet()
    torch.set_num_threads(1)
    began = time.perf_counter()
    found = [pair for name in NETWORKS for pair in pairs(name, print)]
    write_page(arguments.results, page(found, time.perf_counter() - began))


if __name__ == "__main__":
    main()
