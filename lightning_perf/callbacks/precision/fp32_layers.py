"""Layers kept in FP32 inside a mixed-precision forward pass."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils import _pytree as pytree

from lightning_perf.callbacks.lightning_compat import Module
from lightning_perf.callbacks.precision.switch import PrecisionError

LayerPattern: TypeAlias = type[nn.Module] | str
"""A layer's name, with ``*``, ``?`` and ``[…]`` as in a shell (``*`` takes dots too), or a class of layers."""

_HALF = (torch.float16, torch.bfloat16)
_CONTAINERS = (nn.ModuleList, nn.ModuleDict)


class Fp32Layers:
    """Runs layers in FP32: autocast is off inside them, and their inputs are cast to FP32.

    They return FP32, and the next layers handle it like any FP32 input under autocast. Parameters, buffers and the keys
    of the state dict stay unchanged.

    Raises:
        PrecisionError: A pattern matches no layer, or a layer with a `forward` that is never called.
    """

    def __init__(self, module: Module, patterns: Sequence[LayerPattern], device_type: str) -> None:
        layers = find_layers(module, patterns)
        self.names = tuple(layers)
        """Names of the layers, in the module's order."""
        # The entry of None means that the instance had no forward of its own.
        self._originals: list[tuple[nn.Module, Callable[..., Any] | None]] = []
        for layer in layers.values():
            self._originals.append((layer, vars(layer).get("forward")))
            # On the instance, and not as a hook: hooks break torch.compile(fullgraph=True).
            layer.forward = partial(_fp32_forward, layer.forward, device_type)

    def undo(self) -> None:
        """Give the layers their own forward back. Does nothing the second time."""
        for layer, original in self._originals:
            if original is None:
                del layer.forward
            else:
                layer.forward = original
        self._originals = []


def find_layers(module: Module, patterns: Iterable[LayerPattern]) -> dict[str, nn.Module]:
    """Find the layers that patterns ask for.

    A list or dict of layers, which has no forward of its own, stands for the layers in it.
    """
    named = {layer_name(name): layer for name, layer in module.named_modules() if name}
    found: set[str] = set()
    for pattern in patterns:
        if isinstance(pattern, str):
            matches, shown = set(fnmatch.filter(named, pattern)), repr(pattern)
        else:
            matches = {name for name, layer in named.items() if isinstance(layer, pattern)}
            shown = f"{pattern.__module__}.{pattern.__qualname__}"
        if not matches:
            raise PrecisionError(f"keep_fp32 pattern {shown} matches no layer", _suggestion(pattern, named))
        found |= matches
    for name in list(found):
        if isinstance(named[name], _CONTAINERS):
            found |= {inner for inner in named if inner.startswith(f"{name}.")}
    kept = {name: layer for name, layer in named.items() if name in found and not isinstance(layer, _CONTAINERS)}
    for name, layer in kept.items():
        _check_can_be_kept(name, layer, named)
    return kept


def layer_name(name: str) -> str:
    """A layer's name as in the user's model, without the parts that `torch.compile` puts between.

    Example:
        >>> layer_name("net._orig_mod.fc")
        'net.fc'
    """
    return ".".join(part for part in name.split(".") if part != "_orig_mod") if "_orig_mod" in name else name


def _fp32_forward(forward: Callable[..., Any], device_type: str, *args: Any, **kwargs: Any) -> Any:
    with torch.autocast(device_type, enabled=False):
        args, kwargs = pytree.tree_map(_to_fp32, (args, kwargs))
        return forward(*args, **kwargs)


def _to_fp32(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in _HALF else value


def _suggestion(pattern: LayerPattern, named: dict[str, nn.Module]) -> str:
    if isinstance(pattern, str):
        # The most common mistake is to omit the name of the network inside the LightningModule.
        near = [name for name in named if fnmatch.fnmatchcase(name, f"*.{pattern}")]
        near = near or difflib.get_close_matches(pattern, named, n=3)
        if near:
            return f"Names are those of named_modules(): did you mean {' or '.join(map(repr, near[:3]))}"
        return f"The model's layers are {', '.join(map(repr, list(named)[:8]))}{', …' if len(named) > 8 else ''}"
    classes = sorted({type(layer).__name__ for layer in named.values()})
    return f"The model's layers are of the classes {', '.join(classes[:12])}{', …' if len(classes) > 12 else ''}"


def _check_can_be_kept(name: str, layer: nn.Module, named: dict[str, nn.Module]) -> None:
    if isinstance(layer, torch.jit.ScriptModule):
        raise PrecisionError(
            f"{name} is a TorchScript module, which stays as it was compiled", "Leave it out of keep_fp32"
        )
    parent, _, last = name.rpartition(".")
    if last == "out_proj" and isinstance(named.get(parent), nn.MultiheadAttention):
        raise PrecisionError(
            f"{name} is never called: nn.MultiheadAttention uses its weights directly",
            f"Keep the whole attention in FP32: keep_fp32=[{parent!r}]",
        )
