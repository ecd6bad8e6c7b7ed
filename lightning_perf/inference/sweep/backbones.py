"""Make backbones of torchvision and timm by name, with random weights, without downloading anything."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

from torch import nn

from lightning_perf.inference.counting.count import count_model
from lightning_perf.inference.counting.document import Count
from lightning_perf.inference.errors import InferenceError, VariantError
from lightning_perf.project import install_command

__all__ = ["DEFAULT_BACKBONES", "make_backbone"]

DEFAULT_BACKBONES = (
    "resnet18",
    "resnet34",
    "resnet50",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "mobilenet_v3_large",
    "efficientnet_b0",
    "shufflenet_v2_x1_0",
    "squeezenet1_1",
    "mnasnet1_0",
    "regnet_y_400mf",
    "densenet121",
)
"""Default backbones: small to medium networks of torchvision."""

_SLOW_START = frozenset({"googlenet", "inception_v3"})
"""Networks of torchvision with a slow initialization of weights that can be skipped."""


Maker = Callable[[], nn.Module]
Shape = tuple[int, int, int]


def make_backbone(name: str, input_shape: Shape, classes: int, batch: int = 1) -> tuple[nn.Module, Count]:
    """Make an untrained backbone for your shape of inputs and number of classes.

    Args:
        name: A classification model of torchvision or timm. Use ``timm:NAME`` for a name that both have.
        input_shape: Channels, height and width.
        classes: Number of outputs.
        batch: Batch size for the counts.

    Returns:
        The network in eval mode, and the counts of its forward pass.

    Raises:
        VariantError: The name is unknown, its package is missing, or the network does not take such inputs.
    """
    as_published, for_this_size = _makers(name, input_shape, classes)
    try:
        module = as_published()
    except Exception as error:  # constructors of hundreds of networks raise anything
        raise VariantError(f"it cannot be built ({type(error).__name__}: {error})") from error
    try:
        return module.eval(), count_model(module, input_shape, batch)
    except InferenceError as error:
        problem = error
    try:  # transformers are built for one size of images
        module = for_this_size()
        return module.eval(), count_model(module, input_shape, batch)
    except Exception as error:
        raise VariantError(f"it does not take such inputs: {problem}") from error


def _makers(name: str, shape: Shape, classes: int) -> tuple[Maker, Maker]:
    """Return a function that makes the network as published, and one that makes it for images of this size."""
    package, _, model = name.rpartition(":")
    if package not in ("", "timm", "torchvision"):
        raise VariantError(f"unknown source {package!r}: choose from torchvision, timm")
    channels, height, width = shape
    if package != "timm" and find_spec("torchvision") is not None:
        models = importlib.import_module("torchvision.models")
        if model in models.list_models(module=models):
            more = {"init_weights": False} if model in _SLOW_START else {}
            make = partial(_make_torchvision, models, model, channels, num_classes=classes, **more)
            return make, partial(make, image_size=height)
    if package != "torchvision" and find_spec("timm") is not None:
        timm = importlib.import_module("timm")
        if timm.is_model(model):
            make = partial(timm.create_model, model, pretrained=False, in_chans=channels, num_classes=classes)
            return make, partial(make, img_size=(height, width))
    missing = [one for one in ("torchvision", "timm") if find_spec(one) is None and package in ("", one)]
    install = (
        f". Not installed: {', '.join(missing)}. Install with: {install_command('recipes,timm')}" if missing else ""
    )
    nobody = f"{package} has no" if package else "neither torchvision nor timm has a"
    raise VariantError(f"{nobody} model {model!r}{install}")


def _make_torchvision(models: Any, model: str, channels: int, **settings: Any) -> nn.Module:
    """Make a network of torchvision with another number of input channels; all of them take three."""
    module: nn.Module = models.get_model(model, weights=None, **settings)
    if channels == 3:
        return module
    for parent in module.modules():
        for name, layer in parent.named_children():
            if isinstance(layer, nn.Conv2d) and layer.in_channels == 3:
                first = nn.Conv2d(
                    channels,
                    layer.out_channels,
                    layer.kernel_size,  # type: ignore[arg-type]  # two numbers
                    stride=layer.stride,  # type: ignore[arg-type]
                    padding=layer.padding,  # type: ignore[arg-type]
                    bias=layer.bias is not None,
                )
                setattr(parent, name, first)
                return module
    raise ValueError(f"{model} has no convolution with 3 input channels to replace")
