"""Weights that autocast's cache serves from before the optimizer's step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from lightning_perf.run_files.numerics.precision import PrecisionMistake

_CAST = "ToCopyBackward0"
_LEAF = "torch::autograd::AccumulateGrad"


class StaleCasts:
    """Looks in autograd's graph for casts of weights that are older than the step that changed those weights.

    autograd numbers its nodes in the order of their creation. A cast from before a step that serves an operator after
    it comes from autocast's cache.
    """

    def __init__(self, parameters: Mapping[int, str], report: Callable[[PrecisionMistake], None]) -> None:
        self.step = 0
        """Number of the current step."""
        self._parameters = parameters
        self._report = report
        self._stepped: dict[int, int] = {}

    def on_batch_start(self) -> None:
        """A training batch starts: Lightning's autocast begins again, with an empty cache."""
        self._stepped = {}

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """An optimizer is about to step."""
        number = torch._C._autograd._get_sequence_nr()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._stepped[id(parameter)] = number

    def on_before_backward(self, loss: torch.Tensor) -> None:
        """A backward pass starts."""
        if not self._stepped or not isinstance(loss, torch.Tensor):
            return
        stale: set[int] = set()
        seen, stack = {loss.grad_fn}, [loss.grad_fn]
        while stack:
            node: Any = stack.pop()
            if node is None:
                continue
            for following, _ in node.next_functions:
                if following is None:
                    continue
                if following.name() == _CAST and (weight := self._stale_weight(node, following)) is not None:
                    stale.add(weight)
                if following not in seen:
                    seen.add(following)
                    stack.append(following)

        if stale:
            self._report_stale([name for weight, name in self._parameters.items() if weight in stale] or [""])

    def _stale_weight(self, user: Any, cast: Any) -> int | None:
        """Return the ``id`` of a weight with a cast from before its optimizer's step; None for other casts."""
        leaf = cast.next_functions[0][0] if cast.next_functions else None
        if leaf is None or leaf.name() != _LEAF:
            return None
        number = self._stepped.get(id(leaf.variable))
        if number is None or not cast._sequence_nr() < number <= user._sequence_nr():
            return None
        return id(leaf.variable)

    def _report_stale(self, names: Sequence[str]) -> None:
        name = names[0]
        self._report(
            PrecisionMistake(
                "stale-autocast-cache",
                "high",
                "A forward pass uses 16-bit weights from before the optimizer's step",
                (
                    (
                        f"autocast's cache still holds the 16-bit copy of {name or 'a weight'} from before the step. "
                        "It is emptied only where the outermost autocast region ends, and in manual optimization that "
                        "is the end of training_step."
                    ),
                ),
                "Remove your own torch.autocast from training_step: Lightning's is on already and keeps no copies. If "
                "you need it, give cache_enabled=False or call torch.clear_autocast_cache() after the step.",
                layer=name.rpartition(".")[0],
                step=self.step,
            )
        )
