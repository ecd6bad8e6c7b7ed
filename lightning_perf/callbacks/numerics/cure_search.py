"""Finds the smallest list of layers that must compute in FP32, by trying lists one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from lightning_perf.callbacks.lightning_compat import Module
from lightning_perf.callbacks.precision.fp32_layers import layer_name

MAX_TRIALS = 64
MAX_SECONDS = 60.0
"""Limits of a search. It then returns the best list so far."""


class _OutOfBudgetError(Exception):
    """The search has used up its trials or its time."""


class CureSearch:
    """Searches the layers of a module for a minimal list that cures a batch.

    No layer of the result can be left out. A container is replaced by layers inside it, as long as those suffice.
    `cures` tells whether a batch is sound with these layers in FP32.

    Example:
        >>> from torch import nn
        >>> net = nn.ModuleDict({"body": nn.Sequential(nn.Linear(2, 2), nn.ReLU()), "head": nn.Linear(2, 2)})
        >>> CureSearch(net, lambda names: "body" in names or "body.1" in names).find("")
        ('body.1',)
    """

    def __init__(
        self,
        module: Module,
        cures: Callable[[tuple[str, ...]], bool],
        *,
        max_trials: int = MAX_TRIALS,
        max_seconds: float = MAX_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.trials = 0
        """Lists tried so far."""
        self._cures = cures
        self._max_trials = max_trials
        self._until = clock() + max_seconds
        self._clock = clock
        self._known: dict[frozenset[str], bool] = {}
        self._best: tuple[str, ...] | None = None
        self._children: dict[str, list[str]] = {}
        for name, layer in module.named_modules():
            self._children[layer_name(name)] = [
                ".".join(part for part in (layer_name(name), layer_name(child)) if part)
                for child, _ in layer.named_children()
                if child != "_orig_mod"
            ]
        self._order = {name: number for number, name in enumerate(self._children)}

    def find(self, suspect: str) -> tuple[str, ...] | None:
        """Return a minimal list in the module's order; None if not even all layers in FP32 cure the batch.

        The layer `suspect` is tried first, with the layers around it.
        """
        try:
            for name in _with_parents(suspect):
                if name in self._children and self._test((name,)):
                    return self._refined((name,))
            top = tuple(self._children[""])
            if not self._test(top):
                return None
            return self._refined(self._reduced(top, ()))
        except _OutOfBudgetError:
            return self._best

    def _test(self, names: Sequence[str]) -> bool:
        key = frozenset(names)
        if key not in self._known:
            if self.trials >= self._max_trials or self._clock() > self._until:
                raise _OutOfBudgetError
            self.trials += 1
            self._known[key] = bool(names) and self._cures(self._sorted(names))
            if self._known[key] and (self._best is None or len(names) <= len(self._best)):
                self._best = self._sorted(names)
        return self._known[key]

    def _sorted(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(sorted(names, key=lambda name: self._order.get(name, 0)))

    def _reduced(self, names: tuple[str, ...], fixed: tuple[str, ...]) -> tuple[str, ...]:
        """Return a minimal part of `names` that cures together with `fixed`.

        This is delta debugging (Zeller and Hildebrandt, *Simplifying and Isolating Failure-Inducing Input*, 2002).
        """
        parts = 2
        while len(names) > 1:
            pieces = _pieces(names, parts)
            for piece in pieces:
                rest = tuple(name for name in names if name not in piece)
                if self._test((*fixed, *piece)):
                    names, parts = piece, 2
                    break
                if len(pieces) > 2 and self._test((*fixed, *rest)):
                    names, parts = rest, max(parts - 1, 2)
                    break
            else:
                if parts >= len(names):
                    break
                parts = min(2 * parts, len(names))
        return names

    def _refined(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Replace containers by layers inside them."""
        done: tuple[str, ...] = ()
        left = list(names)
        while left:
            name = left.pop(0)
            children = tuple(self._children.get(name, ()))
            others = (*done, *left)
            if children and self._test((*others, *children)):
                left = [*self._reduced(children, others), *left]
            else:
                done = (*done, name)
        return self._sorted(done)


def _with_parents(name: str) -> Iterator[str]:
    while name:
        yield name
        name = name.rpartition(".")[0]


def _pieces(names: tuple[str, ...], count: int) -> list[tuple[str, ...]]:
    size = -(-len(names) // count)
    return [names[start : start + size] for start in range(0, len(names), size)]
