"""Transforms: prune channels, replace convolutions, distil, or make weights smaller when they are compressed."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from math import prod
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import prune

from lightning_perf.inference.errors import VariantError, missing_package, variant_errors
from lightning_perf.inference.model import Subject

FineTune = Callable[[nn.Module, "nn.Module | None"], nn.Module]
"""A function that trains a changed model on real training data and returns it in eval mode on the CPU. Its second
argument is a teacher to distil from, or None."""


class Transform(ABC):
    """One way to change a model.

    Attributes:
        name: Name in tables and in ``--variants``, e.g. ``prune-50``; transforms and a runtime are joined by ``+``.
        needs_training: Whether the changed model is useless without fine-tuning.
        has_teacher: Whether it is trained on the outputs of the original.
    """

    name: str
    summary: str
    needs_training = True
    has_teacher = False

    def missing(self) -> str | None:
        """Return which package is missing, or None. Imports nothing heavy."""
        return None

    def apply(self, module: nn.Module, subject: Subject, fine_tune: FineTune | None) -> nn.Module:
        """Make a changed copy, and train it if it needs that.

        Args:
            fine_tune: Trains the copy; None without training data.

        Raises:
            VariantError: The model is not suitable, or the transform lacks training data.
        """
        if self.needs_training and fine_tune is None:
            raise VariantError(f"{self.name} needs training data: without training its outputs are useless")
        changed = self.change(module, subject)
        if self.needs_training and fine_tune is not None:
            changed = fine_tune(self._checked(changed, subject), subject.module if self.has_teacher else None)
        return self._checked(self.finish(changed), subject)

    @abstractmethod
    def change(self, module: nn.Module, subject: Subject) -> nn.Module:
        """Return a changed copy of the model, or another model in its place."""

    def finish(self, module: nn.Module) -> nn.Module:
        """Finish a changed model after its training."""
        return module

    def _checked(self, changed: nn.Module, subject: Subject) -> nn.Module:
        """Check that a changed model still takes the inputs and returns finite outputs of the same shape."""
        changed = changed.eval().cpu()
        inputs = subject.inputs[:2]
        with torch.inference_mode():
            expected = subject.module(inputs.clone()).shape
            try:
                outputs = changed(inputs.clone())
            except Exception as error:
                raise VariantError(f"after {self.name} the model does not run ({error})") from error
        if outputs.shape != expected:
            raise VariantError(
                f"after {self.name} the outputs have shape {tuple(outputs.shape)}, not {tuple(expected)}"
            )
        if not torch.isfinite(outputs).all():
            raise VariantError(f"after {self.name} the outputs are NaN or infinite")
        return changed


def copy_module(module: nn.Module) -> nn.Module:
    """Return a copy of a model to change: in eval mode, on the CPU, with all parameters trainable."""
    try:
        changed = copy.deepcopy(module)
    except Exception as error:  # copying runs code of the model's, which may raise anything
        raise VariantError(f"{type(module).__name__} cannot be copied ({error})") from error
    return changed.eval().cpu().requires_grad_(True)


WeightLayer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
"""Layers with weights to prune."""


def weight_layers(module: nn.Module) -> list[WeightLayer]:
    """Return the linear layers and convolutions, in the order of ``modules()``."""
    return [layer for layer in module.modules() if isinstance(layer, WeightLayer)]


class Distil(Transform):
    """Trains a student, or the model that earlier transforms changed, on the outputs of the original and the labels.

    The teacher is always the original, even after other transforms. Without a teacher, the student learns from the
    labels alone. Only that row shows whether the teacher helped.
    """

    def __init__(
        self, student: str = "", make: Callable[[], nn.Module] | None = None, *, has_teacher: bool = True
    ) -> None:
        self.has_teacher = has_teacher
        self.name = f"{'distil' if has_teacher else 'alone'}{'-' if student else ''}{student}"
        lessons = "the original's outputs and the labels" if has_teacher else "the labels alone"
        self.summary = f"{student or 'the changed model'}, trained on {lessons}"
        self._make = make

    def change(self, module: nn.Module, subject: Subject) -> nn.Module:
        """Make the student, or take the changed model."""
        if self._make is not None:
            module = self._make()
        elif module is subject.module:
            raise VariantError(
                "distil needs a student: put a transform before it, e.g. prune-50+distil, or use distil-NAME"
            )
        return copy_module(module)


ROUND_TO = 8
"""Numbers of channels stay multiples of this, because vector units and Tensor Cores are fastest with them."""


class Prune(Transform):
    """Removes channels with a small norm and fine-tunes the rest of the model.

    Channels that depend on each other through residual additions and concatenations are removed together. Their
    importance is the mean L2 norm of the group's weights (DepGraph in torch-pruning: Fang et al., arXiv:2301.12900).
    The classifier keeps its outputs.

    Args:
        percent: Share of each layer's channels to remove, from 1 to 95. MACs shrink roughly with the square of the
            remaining share.
    """

    def __init__(self, percent: int) -> None:
        self.percent = percent
        self.name = f"prune-{percent}"
        self.summary = f"{percent} % of the channels removed, then fine-tuned"

    def missing(self) -> str | None:
        return missing_package("torch_pruning", extra="infer")

    def change(self, module: nn.Module, subject: Subject) -> nn.Module:
        changed, example = copy_module(module), subject.inputs[:1]
        before = sum(parameter.numel() for parameter in changed.parameters())
        import torch_pruning as tp

        # torch-pruning finds the dependencies in the graph of a backward pass.
        with variant_errors("torch-pruning cannot follow this model"), torch.enable_grad():
            tp.pruner.BasePruner(
                changed,
                example,
                importance=tp.importance.GroupMagnitudeImportance(p=2),
                pruning_ratio=self.percent / 100,
                ignored_layers=_output_layers(changed, example),
                round_to=ROUND_TO,
            ).step()
        changed.zero_grad(set_to_none=True)
        if sum(parameter.numel() for parameter in changed.parameters()) == before:
            raise VariantError(
                f"{self.name} removes nothing: no layer has enough channels, because their number stays a multiple of "
                f"{ROUND_TO}"
            )
        return changed


def _output_layers(module: nn.Module, example: Tensor) -> list[nn.Module]:
    """Return the last layer with weights in the forward pass: its channels are the model's outputs."""
    ran: list[nn.Module] = []
    with ExitStack() as hooks, torch.no_grad():
        for layer in weight_layers(module):
            hooks.callback(layer.register_forward_hook(lambda layer, *_: ran.append(layer)).remove)
        module(example.clone())
    return ran[-1:]


LEAST_INPUTS = 4
"""Convolutions with fewer input channels stay dense: they see the image itself, and a single filter per colour would
find edges in one direction only. MobileNet also keeps its first convolution dense (Howard et al., arXiv:1704.04861,
table 1)."""


Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


class Separable(Transform):
    """Replaces dense convolutions by depthwise and pointwise ones, and fine-tunes the model.

    A k×k convolution with n output channels then needs ``1/n + 1/k²`` of its MACs (Howard et al., arXiv:1704.04861,
    section 3.1).
    """

    name = "separable"
    summary = "k×k convolutions replaced by depthwise and pointwise ones, then fine-tuned"

    def change(self, module: nn.Module, subject: Subject) -> nn.Module:  # noqa: ARG002
        holder = nn.ModuleList([copy_module(module)])  # a list, because the model itself may be a convolution
        dense = {child: separate(child) for child in holder.modules() if _is_dense(child)}
        if not dense:
            raise VariantError(f"{self.name}: the model has no dense convolution with a kernel wider than 1 to replace")
        for parent in list(holder.modules()):
            for name, child in parent._modules.items():
                if child in dense:
                    parent._modules[name] = dense[child]
        return holder[0]


def separate(layer: Convolution) -> nn.Sequential:
    """Return the best depthwise and pointwise pair for a convolution, with its stride, padding, dilation and bias.

    The weights of one input channel are a matrix, outputs by kernel positions. The pair replaces each such matrix by
    one of rank 1: a filter times one factor per output. The nearest matrix of rank 1 is the first term of the singular
    value decomposition (Eckart and Young 1936, doi:10.1007/BF02288367).
    """
    kind: Any = type(layer)
    inputs, outputs = layer.in_channels, layer.out_channels
    options = {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "padding_mode")}
    depthwise = kind(inputs, inputs, layer.kernel_size, groups=inputs, bias=False, **options)
    pointwise = kind(inputs, outputs, 1, bias=layer.bias is not None)
    filters, factors = _rank_one(layer.weight.detach())
    with torch.no_grad():
        depthwise.weight.copy_(filters.reshape(depthwise.weight.shape))
        pointwise.weight.copy_(factors.reshape(pointwise.weight.shape))
        if layer.bias is not None:
            pointwise.bias.copy_(layer.bias)
    return nn.Sequential(depthwise, pointwise)


def _rank_one(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the filters ``(in, k)`` and factors ``(out, in)`` nearest to a weight ``(out, in, …)``."""
    matrices = weight.flatten(2).transpose(0, 1)  # (in, out, k)
    left, scale, right = torch.linalg.svd(matrices, full_matrices=False)
    root = scale[:, 0].sqrt()
    return right[:, 0] * root[:, None], (left[:, :, 0] * root[:, None]).T


def _is_dense(layer: nn.Module) -> TypeGuard[Convolution]:
    if type(layer) not in (nn.Conv1d, nn.Conv2d, nn.Conv3d):  # subclasses may compute something else
        return False
    assert isinstance(layer, Convolution)
    positions = prod(layer.kernel_size)
    smaller = 1 / layer.out_channels + 1 / positions < 1
    return layer.groups == 1 and positions > 1 and layer.in_channels >= LEAST_INPUTS and smaller


HARMLESS_PERCENT = 50
"""Up to this share, a trained network usually keeps its accuracy without fine-tuning (Han et al., arXiv:1506.02626,
fig. 5)."""


class Sparsify(Transform):
    """Sets the smallest weights, over all layers together, to zero.

    It is not faster, because dense kernels still multiply by the zeros. The weights get smaller when compressed
    (`measure_storage`).
    """

    def __init__(self, percent: int) -> None:
        self.percent = percent
        self.name = f"sparsify-{percent}"
        self.needs_training = percent > HARMLESS_PERCENT
        after = ", then fine-tuned" if self.needs_training else ""
        self.summary = f"{percent} % of the weights set to zero{after}: smaller when compressed, not faster"

    def change(self, module: nn.Module, subject: Subject) -> nn.Module:  # noqa: ARG002
        """Set weights of a copy to zero; training keeps them at zero."""
        changed = copy_module(module)
        layers = weight_layers(changed)
        if not layers:
            raise VariantError(f"{self.name}: {type(module).__name__} has no linear layers and no convolutions")
        prune.global_unstructured(
            [(layer, "weight") for layer in layers], pruning_method=prune.L1Unstructured, amount=self.percent / 100
        )
        return changed

    def finish(self, module: nn.Module) -> nn.Module:
        """Keep the weights only: with the masks, the model could not be copied or exported."""
        for layer in weight_layers(module):
            if prune.is_pruned(layer):
                prune.remove(layer, "weight")  # type: ignore[no-untyped-call]
                with torch.no_grad():
                    layer.weight.add_(0.0)  # turns -0.0, which does not compress like 0.0, into 0.0
        return module


MOST_ROUNDS = 300
"""Most rounds of Lloyd's algorithm; millions of weights and 32 values converge within about a hundred."""


def cluster(values: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """Find at most k numbers, ascending, that approximately minimise the squared distance of each value to its nearest.

    This is Lloyd's algorithm (Lloyd 1982, doi:10.1109/TIT.1982.1056489), started from the quantiles of the values, so
    it is deterministic. In one dimension each cluster is a range of the sorted values, so a round takes k look-ups.
    Also return the index of the nearest number for each value.
    """
    ordered = np.sort(values).astype(np.float64)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    centres = np.unique(np.quantile(ordered, (np.arange(k) + 0.5) / k))
    for _ in range(MOST_ROUNDS):
        edges = np.searchsorted(ordered, (centres[:-1] + centres[1:]) / 2, side="right")
        bounds = np.concatenate([[0], edges, [len(ordered)]])
        counts = np.diff(bounds)
        filled = counts > 0
        moved = np.diff(sums[bounds])[filled] / counts[filled]
        if np.array_equal(moved, centres):
            break
        centres = moved
    codebook = np.unique(centres.astype(np.float32))
    # Compare in single precision, so that each value gets the nearest of the stored numbers.
    middles = (codebook[:-1].astype(np.float64) + codebook[1:].astype(np.float64)) / 2
    return codebook, np.searchsorted(middles, values.astype(np.float64), side="left")


class Share(Transform):
    """Replaces each weight by the nearest of ``2**bits`` values, which k-means finds for each layer.

    It is not faster, because the kernels see ordinary weights. The weights get smaller when they are compressed
    (Han, Mao, Dally, arXiv:1510.00149, section 3). Biases and normalisation, which have one dimension, stay unchanged.

    Args:
        bits: Bits per index, from 1 to 8.
    """

    needs_training = False

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.name = f"share-{bits}bit"
        self.summary = f"k-means leaves {2**bits} distinct weights per layer: smaller when compressed, not faster"

    def change(self, module: nn.Module, subject: Subject) -> nn.Module:  # noqa: ARG002
        changed = copy_module(module)
        shared = 0
        with torch.no_grad():
            for weight in changed.parameters():
                if weight.ndim < 2 or weight.numel() <= 2**self.bits:
                    continue
                if not torch.isfinite(weight).all():
                    raise VariantError(f"{self.name}: {type(module).__name__} has NaN or infinite weights")
                codebook, indices = cluster(weight.float().flatten().numpy(), 2**self.bits)
                weight.copy_(torch.from_numpy(codebook[indices]).view_as(weight))
                shared += 1
        if not shared:
            raise VariantError(f"{self.name}: the model has no layer with more than {2**self.bits} weights")
        return changed
