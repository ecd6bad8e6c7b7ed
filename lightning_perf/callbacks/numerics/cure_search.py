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
        self._children: dict[str, tuple[str, ...]] = {}
        for name, layer in module.named_modules():
            inner = [child for child, _ in layer.named_children() if child != "_orig_mod"]
            self._children[layer_name(name)] = tuple(layer_name(f"{name}.{child}".lstrip(".")) for child in inner)
        self._order = {name: number for number, name in enumerate(self._children)}

    def find(self, suspect: str) -> tuple[str, ...] | None:
        """Return a minimal list in the module's order; None if not even all layers in FP32 cure the batch.

        The layer `suspect` is tried first, with the layers around it.
        """
        try:
            found = self._find(suspect)
            return found if found is None or self._test(found) else self._best
        except _OutOfBudgetError:
            return self._best

    def _find(self, suspect: str) -> tuple[str, ...] | None:
        for name in _with_parents(suspect):
            if name in self._children and self._test((name,)):
                return self._refined((name,))
        top = self._children[""]
        return self._refined(self._minimal(top, ())) if self._test(top) else None

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

    def _minimal(self, names: tuple[str, ...], fixed: tuple[str, ...], *, grown: bool = False) -> tuple[str, ...]:
        """Return a minimal part of `names` that cures together with `fixed`, which may suffice if it has grown.

        This is QuickXplain (Junker, *QuickXplain: Preferred Explanations and Relaxations for Over-Constrained
        Problems*, AAAI 2004).
        """
        if grown and self._test(fixed):
            return ()
        if len(names) == 1:
            return names
        first, second = names[: len(names) // 2], names[len(names) // 2 :]
        kept = self._minimal(second, (*fixed, *first), grown=True)
        return (*self._minimal(first, (*fixed, *kept), grown=bool(kept)), *kept)

    def _refined(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Replace containers by layers inside them."""
        done: tuple[str, ...] = ()
        left = list(names)
        while left:
            name = left.pop(0)
            children, others = self._children.get(name, ()), (*done, *left)
            if children and self._test((*others, *children)):
                left = [*self._minimal(children, others), *left]
            else:
                done = (*done, name)
        return self._sorted(done)


def _with_parents(name: str) -> Iterator[str]:
    while name:
        yield name
        name = name.rpartition(".")[0]
