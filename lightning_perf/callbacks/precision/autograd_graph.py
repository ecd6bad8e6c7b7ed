"""Reads from autograd's graph how a forward pass cast the parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from msgspec import Struct

CAST = "ToCopyBackward0"
LEAF = "torch::autograd::AccumulateGrad"
_COMPILED = "CompiledFunctionBackward"


class GradientGraph(Struct, frozen=True):
    """The parameters that a loss reaches.

    Attributes:
        casts: Casts of each parameter in this forward pass, by the parameter's ``id``; 0 for one used without a cast.
            The graph does not contain the operations inside reentrant checkpoints and other custom functions.
        compiled: Whether part of the graph is compiled, so that casts inside it do not show.
    """

    casts: dict[int, int]
    compiled: bool


def read_graph(loss: torch.Tensor) -> GradientGraph:
    """Count the casts of each parameter.

    Under autocast a parameter that is computed with in half precision is cast, and autograd notes the cast. With the
    weight cache it is cast once however often it is used.
    """
    casts: dict[int, int] = {}
    compiled = False
    for node, following in graph_edges(loss):
        name = node.name()
        compiled = compiled or name.startswith(_COMPILED)
        if following.name() == LEAF:
            parameter = id(following.variable)
            casts[parameter] = casts.get(parameter, 0) + (name == CAST)
    return GradientGraph(casts, compiled)


def graph_edges(loss: torch.Tensor) -> Iterator[tuple[Any, Any]]:
    """Yield each node of the graph of a loss with each node that follows it in the backward pass."""
    seen: set[Any] = {loss.grad_fn}
    stack: list[Any] = [loss.grad_fn]
    while stack:
        node = stack.pop()
        for following, _ in node.next_functions if node is not None else ():
            if following is None:
                continue
            yield node, following
            if following not in seen:
                seen.add(following)
                stack.append(following)
