"""Backbones by their names, from torchvision and timm, with random weights: nothing is downloaded."""

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
"""Swept when none are named: small to middling networks of torchvision."""

_SLOW_START = frozenset({"googlenet", "inception_v3"})
"""Networks of torchvision that take long to draw their first weights, and can do without."""


Maker = Callable[[], nn.Module]
Shape = tuple[int, int, int]


def make_backbone(name: str, input_shape: Shape, classes: int, batch: int = 1) -> tuple[nn.Module, Count]:
    """Make an untrained backbone for other inputs and classes than it was published for.

    Args:
        name: A classification model of torchvision or timm; ``timm:NAME`` where both have one.
        input_shape: Channels, height and width.
        classes: Outputs.
        batch: Inputs in the batch to count for.

    Returns:
        The network in eval mode, and what a forward pass takes.

    Raises:
        VariantError: There is none of this name, its package is missing, or it does not take such inputs.
    """
    as_published, for_this_size = _makers(name, input_shape, classes)
    try:
        module = as_published()
    except Exception as error:  # constructors of hundreds of networks raise anything
        raise VariantError(f"it cannot be made ({type(error).__name__}: {error})") from error
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
    """What makes a network as it was published, and what makes it for images of this size."""
    package, _, model = name.rpartition(":")
    if package not in ("", "timm", "torchvision"):
        raise VariantError(f"{package} is no source of backbones: torchvision and timm are")
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
    install = f"; not installed: {', '.join(missing)} (lightning-perf[recipes,timm])" if missing else ""
    nobody = f"{package} has no" if package else "neither torchvision nor timm has a"
    raise VariantError(f"{nobody} model {model!r}{install}")


def _make_torchvision(models: Any, model: str, channels: int, **settings: Any) -> nn.Module:
    """A network of torchvision, all of which take colours, for another number of channels."""
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
    raise ValueError(f"{model} has no convolution of 3 channels to replace")
