"""The networks: ResNets without pretrained weights, the small CNN of the article, and the classifier to deploy."""

from __future__ import annotations

from collections.abc import Callable

import torchvision
from torch import Tensor, nn

__all__ = ["MODELS", "SignClassifier", "SmallCNN", "build_model"]


class SmallCNN(nn.Sequential):
    """The article's CNN: Conv32-pool-Conv64-pool-Conv64-Dropout .25-Dense128-Dropout .5.

    Convolutions are 3×3 without padding, as Keras's default is. Before them, and not in the article, grey values are
    brought to mean 0 and variance 1, with the statistics of the training: on photographs of little contrast, with grey
    values of 0.70 ± 0.08, the network stayed at chance for 16 epochs without it. Takes
    ``(n, 1, image_size, image_size)`` and gives ``(n, classes)`` logits.

    Args:
        classes: Number of labels.
        image_size: Width and height of the pictures in pixels; at least 18.
    """

    def __init__(self, classes: int, image_size: int) -> None:
        side = ((image_size - 2) // 2 - 2) // 2 - 2
        if side < 1:
            raise ValueError(f"the small CNN needs pictures of at least 18 pixels, got {image_size}")
        super().__init__(
            nn.BatchNorm2d(1, affine=False),
            nn.Conv2d(1, 32, 3),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(inplace=True),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(64 * side * side, 128),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(128, classes),
        )


def _resnet(constructor: Callable[..., torchvision.models.ResNet]) -> Callable[[int, int], nn.Module]:
    """A torchvision ResNet for one channel, with the article's dropout of 0.25 before the classifier."""

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
}


def build_model(name: str, classes: int, image_size: int) -> nn.Module:
    """Build a network with fresh weights.

    Args:
        name: A key of `MODELS`.
        classes: Number of labels.
        image_size: Width and height of the pictures in pixels.

    Returns:
        A network from ``(n, 1, image_size, image_size)`` in 0…1 to ``(n, classes)`` logits.
    """
    return MODELS[name](classes, image_size)


class SignClassifier(nn.Module):
    """A network behind its scaling, so that whoever loads an exported variant feeds grey values as they are decoded.

    Takes ``(n, 1, size, size)`` grey values of 0…255, as float32 or uint8, and gives ``(n, classes)`` logits: the same
    as `recipes.signlang.training.module.SignModule` on bytes.

    Args:
        network: From grey values of 0…1 to logits.
        untrained: Whether the network has fresh weights: such a student is trained longer than a changed model is.
    """

    def __init__(self, network: nn.Module, *, untrained: bool = False) -> None:
        super().__init__()
        self.network = network
        self.untrained = untrained

    def forward(self, pictures: Tensor) -> Tensor:
        """Logits, ``(n, classes)``."""
        logits: Tensor = self.network(pictures / 255)
        return logits
