"""The networks of `benchmarks.savings.estimates`: fresh ones, those seen before, and those of the planted faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import DataLoader, IterableDataset
from torchvision import models

from benchmarks.savings.plants import Language, Mlp, Transformer
from recipes.signlang.training.model import build_model

CLASSES = 10


@dataclass(frozen=True)
class Network:
    """A network and how it is trained.

    Attributes:
        make: Makes it, with random weights.
        batch_size: Samples per batch.
        shape: Shape of a sample; one number for the length of a text.
        optimizer: SGD with Nesterov momentum, or AdamW.
        tokens: Size of the vocabulary of a language model, which predicts each next token; 0 for a classifier.
    """

    make: Callable[[], nn.Module]
    batch_size: int
    shape: tuple[int, ...] = (3, 64, 64)
    optimizer: Literal["sgd", "adamw"] = "adamw"
    tokens: int = 0


class Training(pl.LightningModule):
    """Trains a network on random data.

    Args:
        network: The network.
        fused: Whether the optimizer updates all parameters in one operator.
        module: Weights to share with another training; None to make the network.
    """

    def __init__(self, network: Network, *, fused: bool = False, module: nn.Module | None = None) -> None:
        super().__init__()
        self.network = module if module is not None else network.make()
        self._of, self._fused = network, fused

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:  # noqa: ARG002
        """Return the loss of a batch."""
        inputs, labels = batch
        logits = self.network(inputs)
        return functional.cross_entropy(logits.flatten(0, -2), labels.flatten())

    def configure_optimizers(self) -> Optimizer:
        """Return the optimizer of the network."""
        # A language model would learn its batch by heart, and then compute slowly with gradients close to zero.
        lr = 0.0 if self._of.tokens else 1e-5
        if self._of.optimizer == "adamw":
            return AdamW(self.parameters(), lr=lr, fused=self._fused or None)
        return SGD(self.parameters(), lr=lr, momentum=0.9, nesterov=True, fused=self._fused or None)


class RandomBatches(IterableDataset[tuple[Tensor, Tensor]]):
    """The same random batch, over and over.

    Args:
        network: The network.
        batch_size: Samples per batch.
        steps: Number of batches.
    """

    def __init__(self, network: Network, batch_size: int, steps: int) -> None:
        generator = torch.Generator().manual_seed(0)
        if network.tokens:
            text = torch.randint(network.tokens, (batch_size, network.shape[0] + 1), generator=generator)
            self._batch = text[:, :-1].contiguous(), text[:, 1:].contiguous()
        else:
            images = torch.rand(batch_size, *network.shape, generator=generator)
            self._batch = images, torch.randint(CLASSES, (batch_size,), generator=generator)
        self._steps = steps

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return repeat(self._batch, self._steps)

    def loader(self) -> DataLoader[tuple[Tensor, Tensor]]:
        """Return a loader of the batches."""
        return DataLoader(self, batch_size=None)


class Recurrent(nn.Module):
    """Two layers of an LSTM on the rows of a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.head = nn.LSTM(64, 256, 2, batch_first=True), nn.Linear(256, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Logits, ``(n, classes)``."""
        states, _ = self.rows(images.squeeze(1))
        logits: Tensor = self.head(states[:, -1])
        return logits


class RecurrentText(nn.Module):
    """A language model of two layers of gated recurrent units."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.tokens, self.states = nn.Embedding(tokens, width), nn.GRU(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, tokens)

    def forward(self, text: Tensor) -> Tensor:
        """Logits, ``(n, length, tokens)``."""
        states, _ = self.states(self.tokens(text))
        logits: Tensor = self.head(states)
        return logits


class Block(nn.Module):
    """A layer of a GPT: causal attention and an MLP, each after a layer norm and around a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, states: Tensor) -> Tensor:
        """States, ``(n, length, width)``."""
        n, length, width = states.shape
        parts = self.attention(self.norms[0](states)).view(n, length, 3, self.heads, width // self.heads)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        states = states + self.output(mixed.transpose(1, 2).reshape(n, length, width))
        final: Tensor = states + self.mlp(self.norms[1](states))
        return final


class Gpt(nn.Module):
    """A small language model like GPT-2, which shares the weights of its embedding and its output."""

    def __init__(self, tokens: int, length: int, *, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, text: Tensor) -> Tensor:
        """Logits, ``(n, length, tokens)``."""
        states = self.tokens(text) + self.places.weight[: text.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(states)))
        return logits


class GatedBlock(nn.Module):
    """A layer of a Llama: causal attention with rotated pairs, and a gated MLP, each after an RMS norm."""

    cosines: Tensor
    sines: Tensor

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        self.attention = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)
        size = width // heads
        angles = torch.arange(length)[:, None] * 1e4 ** (-torch.arange(0, size, 2) / size)
        self.register_buffer("cosines", angles.cos().repeat(1, 2))
        self.register_buffer("sines", angles.sin().repeat(1, 2))

    def _rotate(self, states: Tensor) -> Tensor:
        first, second = states.chunk(2, dim=-1)
        return states * self.cosines + torch.cat((-second, first), dim=-1) * self.sines

    def forward(self, states: Tensor) -> Tensor:
        """States, ``(n, length, width)``."""
        n, length, width = states.shape
        parts = self.attention(self.norms[0](states)).view(n, length, 3, self.heads, width // self.heads)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(
            self._rotate(queries), self._rotate(keys), values, is_causal=True
        )
        states = states + self.output(mixed.transpose(1, 2).reshape(n, length, width))
        normed = self.norms[1](states)
        final: Tensor = states + self.down(functional.silu(self.gate(normed)) * self.up(normed))
        return final


class Llama(nn.Module):
    """A small language model like Llama, with its own weights for the output."""

    def __init__(self, tokens: int, length: int, *, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(*(GatedBlock(width, heads, length) for _ in range(layers)))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, tokens, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        """Logits, ``(n, length, tokens)``."""
        logits: Tensor = self.head(self.norm(self.blocks(self.tokens(text))))
        return logits


class TextEncoder(nn.Module):
    """Encoder layers of torch over tokens, which see each other in both directions, as in BERT."""

    def __init__(self, tokens: int, length: int, *, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, tokens)

    def forward(self, text: Tensor) -> Tensor:
        """Logits, ``(n, length, tokens)``."""
        logits: Tensor = self.head(self.layers(self.tokens(text) + self.places.weight[: text.shape[1]]))
        return logits


def _torchvision(name: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model: nn.Module = models.get_model(name, num_classes=CLASSES, **options)
        return model

    return make


def _timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import timm  # an extra, and slow to import

        model: nn.Module = timm.create_model(name, pretrained=False, num_classes=CLASSES, **options)
        return model

    return make


def _convmixer() -> nn.Module:
    from timm.models.convmixer import ConvMixer

    model: nn.Module = ConvMixer(dim=256, depth=8, kernel_size=7, patch_size=4, num_classes=CLASSES)
    return model


def _vit() -> nn.Module:
    model: nn.Module = models.VisionTransformer(64, 8, 6, 6, 192, 768, num_classes=CLASSES)
    return model


SEEN: dict[str, Network] = {
    "MobileNetV3-small": Network(_torchvision("mobilenet_v3_small"), 32, optimizer="sgd"),
    "EfficientNet-B0": Network(_torchvision("efficientnet_b0"), 16, optimizer="sgd"),
    "DenseNet-121": Network(_torchvision("densenet121"), 8, optimizer="sgd"),
    "VGG-11": Network(_torchvision("vgg11_bn"), 2, optimizer="sgd"),
    "RegNetY-400MF": Network(_torchvision("regnet_y_400mf"), 16, optimizer="sgd"),
    "ConvNeXt-tiny": Network(_torchvision("convnext_tiny"), 4, optimizer="sgd"),
    "ViT, 6 layers of 192": Network(_vit, 16, optimizer="sgd"),
    "Swin-T": Network(_torchvision("swin_t"), 4, optimizer="sgd"),
    "LSTM, 2 layers of 256": Network(Recurrent, 32, (1, 64, 64), optimizer="sgd"),
    "language model, 4 layers of 192": Network(lambda: Language(CLASSES, 64, every=4), 8, (1, 64, 64), "sgd"),
    "GPT, 6 layers of 256": Network(lambda: Gpt(1000, 128, width=256, layers=6, heads=8), 4, (128,), tokens=1000),
    "GPT, 3 layers of 384, 8,000 tokens": Network(
        lambda: Gpt(8000, 64, width=384, layers=3, heads=6), 8, (64,), tokens=8000
    ),
    "ResNeSt-14": Network(_timm("resnest14d"), 8),
    "MLP-Mixer S/16": Network(_timm("mixer_s16_224", img_size=64), 8),
    "DeiT-tiny": Network(_timm("deit_tiny_patch16_224", img_size=64), 16),
    "MobileViT-XXS": Network(_timm("mobilevit_xxs"), 16),
    "GhostNet": Network(_timm("ghostnet_100"), 16),
    "PoolFormer-S12": Network(_timm("poolformer_s12"), 8),
    "ConvMixer-256/8": Network(_convmixer, 8),
    "EdgeNeXt-XXS": Network(_timm("edgenext_xx_small"), 16),
    "XCiT-nano": Network(_timm("xcit_nano_12_p16_224", img_size=64), 16),
    "RepVGG-A0": Network(_timm("repvgg_a0"), 8),
    "ShuffleNetV2": Network(_torchvision("shufflenet_v2_x1_0"), 32),
    "SqueezeNet 1.1": Network(_torchvision("squeezenet1_1"), 32),
    "ResNet-50": Network(_torchvision("resnet50"), 8, optimizer="sgd"),
    "ResNeXt-50": Network(_torchvision("resnext50_32x4d"), 8, optimizer="sgd"),
    "MNASNet 1.0": Network(_torchvision("mnasnet1_0"), 16, optimizer="sgd"),
    "GoogLeNet": Network(_torchvision("googlenet", aux_logits=False, init_weights=True), 16, optimizer="sgd"),
    "ConvNeXt V2 atto": Network(_timm("convnextv2_atto"), 8),
    "HRNet-W18-small": Network(_timm("hrnet_w18_small"), 8),
    "MobileNetV4-small": Network(_timm("mobilenetv4_conv_small"), 16),
    "ResMLP-12": Network(_timm("resmlp_12_224", img_size=64), 16),
    "gMLP-tiny": Network(_timm("gmlp_ti16_224", img_size=64), 16),
    "CaiT-XXS": Network(_timm("cait_xxs24_224", img_size=64), 8),
    "DLA-34": Network(_timm("dla34"), 8),
    "VoVNet-19": Network(_timm("ese_vovnet19b_dw"), 8),
    "Res2Net-50": Network(_timm("res2net50_14w_8s"), 4),
    "Llama, 4 layers of 256": Network(lambda: Llama(2000, 96, width=256, layers=4, heads=4), 4, (96,), tokens=2000),
    "text encoder, 3 layers of 256": Network(
        lambda: TextEncoder(1000, 64, width=256, layers=3, heads=8), 8, (64,), tokens=1000
    ),
}
"""Networks that no factor of a rule was fitted to. The errors of probed ranges come from the first 24."""

FRESH: dict[str, Network] = {
    "MobileNetV2": Network(_torchvision("mobilenet_v2"), 16, optimizer="sgd"),
    "Inception-v3": Network(_timm("inception_v3"), 4, (3, 96, 96), optimizer="sgd"),
    "SE-ResNeXt-26": Network(_timm("seresnext26d_32x4d"), 4, optimizer="sgd"),
    "NF-RegNet-B0": Network(_timm("nf_regnet_b0"), 16),
    "MobileOne-S0": Network(_timm("mobileone_s0"), 8),
    "FastViT-T8": Network(_timm("fastvit_t8"), 8),
    "ConViT-tiny": Network(_timm("convit_tiny", img_size=64), 16),
    "LeViT-128S": Network(_timm("levit_128s", img_size=64), 16),
    "Visformer-tiny": Network(_timm("visformer_tiny", img_size=64), 8),
    "GRU, 2 layers of 384": Network(lambda: RecurrentText(2000, 384), 8, (64,), tokens=2000),
}
"""Networks that no constant was fitted to. They were chosen before any of their gains or estimates was known."""

PLANTED: dict[str, Network] = {
    "CNN": Network(lambda: build_model("cnn", CLASSES, 64), 32, (1, 64, 64), "sgd"),
    "ResNet-18": Network(lambda: build_model("resnet18", CLASSES, 64), 16, (1, 64, 64), "sgd"),
    "ResNet-18, AdamW": Network(lambda: build_model("resnet18", CLASSES, 64), 8, (1, 64, 64)),
    "transformer": Network(lambda: Transformer(CLASSES, 64), 16, (1, 64, 64), "sgd"),
    "transformer, AdamW": Network(lambda: Transformer(CLASSES, 64), 8, (1, 64, 64)),
    "512 words": Network(lambda: Language(CLASSES, 64), 4, (1, 64, 64), "sgd"),
    "MLP": Network(lambda: Mlp(CLASSES, 64), 8, (1, 64, 64), "sgd"),
}
"""Networks of `benchmarks.savings.plants`, which the constants were fitted to: for calibration."""

ALL: dict[str, Network] = FRESH | SEEN | PLANTED

COMPILED: dict[str, Network] = {
    name: ALL[name]
    for name in (
        "CNN", "ResNet-18", "transformer", "MobileNetV3-small", "RegNetY-400MF", "DeiT-tiny", "GPT, 6 layers of 256",
        "GhostNet", "PoolFormer-S12", "ConvMixer-256/8", "SqueezeNet 1.1",
    )
}  # fmt: skip
"""Networks to compile."""

SETS = {"fresh": FRESH, "seen": SEEN, "planted": PLANTED, "compiled": COMPILED}
"""The networks by the names of their sets."""
