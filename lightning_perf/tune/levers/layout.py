"""The order of channels in memory, and cuDNN's choice of algorithms."""

from __future__ import annotations

import torch
from torch import nn

from lightning_perf.tune.levers.lever import Machine
from lightning_perf.tune.training import Training


class ChannelsLast:
    """Weights of 2-D convolutions in the order that convolution kernels prefer; activations follow."""

    def missing(self, training: Training, machine: Machine) -> str | None:  # noqa: ARG002
        """See `Change`."""
        convolutions = [layer for layer in training.module.modules() if isinstance(layer, nn.Conv2d)]
        if not convolutions:
            return "the module has no 2-D convolution"
        large = [layer.weight for layer in convolutions if layer.weight.shape[1] > 1 and layer.weight.shape[2] > 1]
        if large and all(weight.is_contiguous(memory_format=torch.channels_last) for weight in large):
            return "the weights are in this order already"
        return None

    def lines(self, training: Training) -> tuple[str, ...]:  # noqa: ARG002
        """See `Change`."""
        return ("module = module.to(memory_format=torch.channels_last)",)

    def apply(self, training: Training) -> None:
        """See `Change`."""
        training.module.to(memory_format=torch.channels_last)


class CudnnBenchmark:
    """cuDNN measures its algorithms for each shape and takes the fastest."""

    def missing(self, training: Training, machine: Machine) -> str | None:
        """See `Change`."""
        if machine.device != "cuda":
            return "needs a CUDA GPU"
        if training.trainer.get("deterministic"):
            return "the Trainer is deterministic"
        if not any(isinstance(layer, nn.modules.conv._ConvNd) for layer in training.module.modules()):
            return "the module has no convolution"
        return "is on already" if training.trainer.get("benchmark") or torch.backends.cudnn.benchmark else None

    def lines(self, training: Training) -> tuple[str, ...]:  # noqa: ARG002
        """See `Change`."""
        return ("Trainer(benchmark=True)",)

    def apply(self, training: Training) -> None:
        """See `Change`."""
        training.trainer["benchmark"] = True
