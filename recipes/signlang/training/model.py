"""Build the networks: ResNets with fresh weights, the small CNN, and the classifier to deploy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torchvision
from torch import Tensor, nn


class SmallCNN(nn.Sequential):
    """The article's CNN: Conv32-pool-Conv64-pool-Conv64-Dropout .25-Dense128-Dropout .5.

    Convolutions are 3×3 without padding, as in Keras by default. In addition to the article's layers, the first layer
    scales grey values to mean 0 and variance 1, with statistics from the training. Without it, the network stayed at
    chance for 16 epochs on low-contrast photographs, with grey values of 0.70 ± 0.08. It takes ``(n, 1, image_size,
    image_size)`` and returns ``(n, classes)`` logits.

    Args:
        classes: Number of labels.
        image_size: Width and height of the pictures in pixels; at least 18.
        normalised: Whether a batch norm follows each convolution: it trains faster, and distillation stays stable.
    """

    def __init__(self, classes: int, image_size: int, *, normalised: bool = False) -> None:
        side = _side(image_size)
        super().__init__(
            nn.BatchNorm2d(1, affine=False),
            *_convolution(1, 32, normalised),
            nn.MaxPool2d(2),
            *_convolution(32, 64, normalised),
            nn.MaxPool2d(2),
            *_convolution(64, 64, normalised),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(64 * side * side, 128),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(128, classes),
        )


def _convolution(channels: int, filters: int, normalised: bool) -> tuple[nn.Module, ...]:
    norms = (nn.BatchNorm2d(filters),) if normalised else ()
    return nn.Conv2d(channels, filters, 3, bias=not normalised), *norms, nn.ReLU(inplace=True)


def _side(image_size: int) -> int:
    """Return the width in pixels after three convolutions and two poolings."""
    side = ((image_size - 2) // 2 - 2) // 2 - 2
    if side < 1:
        raise ValueError(f"the small CNN needs pictures of at least 18 pixels, got {image_size}")
    return side


def _resnet(constructor: Callable[..., torchvision.models.ResNet]) -> Callable[[int, int], nn.Module]:
    """Return a builder of a ResNet for one channel, with the article's dropout of 0.25 before the classifier."""

    def build(classes: int, image_size: int) -> nn.Module:  # noqa: ARG001
        network = constructor(weights=None)
        network.conv1 = nn.Conv2d(1, 64, kernel_size=7, stride=2, padding=3, bias=False)
        nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
        features = network.fc.in_features
        network.fc = nn.Sequential(nn.Dropout(0.25), nn.Linear(features, classes))
        finished: nn.Module = network
        return finished

    return build


MODELS: dict[str, Callable[[int, int], nn.Module]] = {
    "resnet18": _resnet(torchvision.models.resnet18),
    "resnet34": _resnet(torchvision.models.resnet34),
    "resnet50": _resnet(torchvision.models.resnet50),
    "cnn": SmallCNN,
    "cnn-bn": partial(SmallCNN, normalised=True),
}


def build_model(name: str, classes: int, image_size: int) -> nn.Module:
    """Build a network with fresh weights.

    Args:
        name: A key of `MODELS`.
        classes: Number of labels.
        image_size: Width and height of the pictures in pixels.

    Returns:
        A network from pictures ``(n, 1, image_size, image_size)`` in 0…1 to logits ``(n, classes)``.
    """
    return MODELS[name](classes, image_size)


class SignClassifier(nn.Module):
    """A network that takes grey values as decoded, because it contains their scaling.

    It takes ``(n, 1, size, size)`` grey values of 0…255, as float32 or uint8, and returns ``(n, classes)`` logits: the
    same logits as `recipes.signlang.training.module.SignModule` for bytes.

    Args:
        network: From grey values of 0…1 to logits.
        untrained: Whether the network has fresh weights; an untrained student trains longer than a changed model.
    """

    def __init__(self, network: nn.Module, *, untrained: bool = False) -> None:
        super().__init__()
        self.network = network
        self.untrained = untrained

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the logits, ``(n, classes)``."""
        logits: Tensor = self.network(pictures / 255)
        return logits
