"""int8 weights under float activations, by torchao."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.runtime import Call
from lightning_perf.inference.runtimes.faults import quietly, variant_errors
from lightning_perf.inference.runtimes.packages import missing_package, package_versions
from lightning_perf.inference.runtimes.torch_export import tracing
from lightning_perf.inference.runtimes.torch_module import load_module, module_call, save_module
from lightning_perf.inference.subject import Subject

__all__ = ["Int8WeightOnly"]


class Int8WeightOnly:
    """Linear layers keep their weights in int8 and widen them when they multiply; convolutions stay as they are.

    It saves memory, and time only where reading weights is what takes the time: large linear layers and small batches.
    The file is a pickle of the whole module, as `Eager`'s; threads are torch's own.
    """

    name = "int8-weight-only"
    summary = "int8 weights of linear layers by torchao, float32 activations"

    def missing(self, device: torch.device) -> str | None:  # noqa: ARG002
        """Say that torchao is not installed."""
        return missing_package("torchao", "lightning-perf[infer]")

    def build(self, subject: Subject, folder: Path) -> Mapping[str, str]:
        """Quantize the linear layers and write the module.

        Raises:
            VariantError: It has no linear layers.
        """
        linear = _count(subject.module, nn.Linear)
        convolutions = _count(subject.module, nn.modules.conv._ConvNd)
        if linear == 0:
            raise VariantError(
                f"torchao's weight-only int8 covers linear layers, and the model has none ({convolutions} convolutions "
                "would stay float32): use onnxruntime-int8"
            )
        with variant_errors("torchao cannot quantize this model"), tracing():
            from torchao.quantization import Int8WeightOnlyConfig, quantize_

            module = copy.deepcopy(subject.module)
            quantize_(module, Int8WeightOnlyConfig())
            for layer in module.modules():
                # torchao hangs its description on each layer, and the description cannot be pickled.
                layer.__dict__.pop("extra_repr", None)
            module_call(module)(subject.inputs[:1])
        save_module(module, folder)
        return {
            "dtype": "int8 weights, float32 activations",
            "covered": f"{linear} linear layers; {convolutions} convolutions stay float32",
            **package_versions("torchao"),
        }

    def load(self, folder: Path, device: torch.device, threads: int) -> Call:  # noqa: ARG002
        """Read the module."""
        with quietly():  # the import of torchao, which unpickling brings about, warns
            return module_call(load_module(folder, device))


def _count(module: nn.Module, kind: type[nn.Module]) -> int:
    return sum(isinstance(layer, kind) for layer in module.modules())
