"""Counts the tokens of the recorded steps and the padding among them, for the metadata of a recording."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lightning_perf.callbacks.host_copy import HostCopy
from lightning_perf.callbacks.steps.batch_parts import Padding, count_padding, find_sequences
from lightning_perf.callbacks.steps.fit_state import FitState

MOST_BATCHES = 16
"""Batches of a window in which padding is counted."""


class TokenCounter:
    """Counts tokens while the profiler runs. It adds no operator to the recording, and never waits for a device.

    The padding of batches on the host is counted in recorded steps and during the warm-up. Batches on a device are
    copied to the host during the warm-up only, because the copies would be in the recording.

    Args:
        parameters: Counts the parameters of the model that products use, by `product_parameters`; None if unknown. A
            model may have many layers, so nothing is counted before there are tokens.
    """

    def __init__(self, state: FitState, parameters: Callable[[], int | None]) -> None:
        self._state = state
        self._parameters = parameters
        self.start()

    def start(self) -> None:
        """Start to count for a new window."""
        self._steps = 0
        self._tokens = 0
        self._open_tokens: int | None = 0
        self._marks: list[tuple[HostCopy, bool]] = []

    def add_batch(self, batch: Any) -> None:
        """Count a batch of the open step, if the profiler runs."""
        if not self._state.profiling:
            return
        try:
            found = find_sequences(batch)
        except Exception:  # a batch may be any object, even one that contains itself
            found = None
        if found is None:
            self._open_tokens = None
            return
        if self._open_tokens is not None:
            self._open_tokens += found.tokens
        marks = found.mask if found.mask is not None else found.labels
        if not isinstance(marks, torch.Tensor) or len(self._marks) >= MOST_BATCHES:
            return
        if marks.device.type == "cpu" or (marks.device.type == "cuda" and not self._state.recording):
            self._marks.append((HostCopy(marks.detach()), found.mask is None))

    def on_step_start(self) -> None:
        """Start a step."""
        self._open_tokens = 0

    def on_step_end(self) -> None:
        """Add the step if it was recorded."""
        if self._state.recording and self._open_tokens:
            self._steps += 1
            self._tokens += self._open_tokens
        self._open_tokens = 0

    def facts(self) -> dict[str, int | None] | None:
        """Return the counts of the window, as `lightning_perf.trace.description.Tokens` reads them."""
        if not self._steps:
            return None
        padding = sum((count_padding(copy.read().numpy(), labels=labels) for copy, labels in self._marks), Padding())
        facts: dict[str, int | None] = {
            "parameters": self._parameters(),
            "steps": self._steps,
            "tokens": self._tokens,
        }
        # Labels without any ignored one may be padded with another token. That is no evidence of a lack of padding.
        if padding.padding or any(not labels for _, labels in self._marks):
            facts |= {
                "counted": padding.tokens,
                "padding": padding.padding,
                "beyond_longest": padding.beyond_longest,
            }
        return facts


def product_parameters(module: torch.nn.Module) -> int:
    """Count the parameters that each token meets in a product: all but the tables of embeddings.

    The table of an embedding is read and not multiplied. If the output layer shares it (tied weights), it counts.
    """
    counted = {
        id(parameter): parameter.numel()
        for part in module.modules()
        if not isinstance(part, torch.nn.Embedding | torch.nn.EmbeddingBag)
        for parameter in part.parameters(recurse=False)
        if not torch.nn.parameter.is_lazy(parameter)
    }
    return sum(counted.values())
