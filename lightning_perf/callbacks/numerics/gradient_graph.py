"""What autograd's graph tells of a loss: which parameters it reaches, and which were cast by autocast on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["GradientGraph", "read_graph"]

_CAST = "ToCopyBackward0"
_COMPILED = "CompiledFunctionBackward"
_LEAF = "torch::autograd::AccumulateGrad"


@dataclass(frozen=True)
class GradientGraph:
    """The parameters that a loss reaches.

    Attributes:
        casts: Casts of each parameter in this forward pass, by the parameter's ``id``; 0 for one used as it is. What
            reentrant checkpoints and other functions of their own compute is not in the graph.
        compiled: Whether part of the graph is compiled, so that casts inside it do not show.
    """

    casts: dict[int, int]
    compiled: bool

    @property
    def total_casts(self) -> int:
        """Casts of parameters in the forward pass."""
        return sum(self.casts.values())


def read_graph(loss: torch.Tensor) -> GradientGraph:
    """Walk the graph of a loss.

    Under autocast a parameter that is computed with in half precision is cast, and autograd notes the cast. With the
    weight cache it is cast once however often it is used.

    Args:
        loss: A tensor with a graph.

    Example:
        >>> layer = torch.nn.Linear(2, 2)
        >>> with torch.autocast("cpu", dtype=torch.bfloat16):
        ...     loss = layer(layer(torch.ones(1, 2))).sum()
        >>> read_graph(loss).total_casts  # weight and bias, each once for two uses
        2
    """
    casts: dict[int, int] = {}
    compiled = False
    seen = {loss.grad_fn}
    stack: list[Any] = [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is None:
            continue
        name = node.name()
        compiled = compiled or name.startswith(_COMPILED)
        for following, _ in node.next_functions:
            if following is None:
                continue
            if following.name() == _LEAF:
                parameter = id(following.variable)
                casts[parameter] = casts.get(parameter, 0) + (name == _CAST)
            elif following not in seen:
                seen.add(following)
                stack.append(following)
    return GradientGraph(casts, compiled)
