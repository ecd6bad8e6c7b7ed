"""`SignClassifier`: what is deployed: from pictures to logits, without the training around it."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["SignClassifier"]


class SignClassifier(nn.Module):
    """A network behind its scaling, so that whoever loads an exported variant feeds grey values as they are decoded.

    Takes ``(n, 1, size, size)`` grey values of 0…255, as float32 or uint8, and gives ``(n, classes)`` logits: the same
    as `recipes.signlang.training.module.SignModule` on bytes.

    Args:
        network: From grey values of 0…1 to logits.
        untrained: Whether the network has fresh weights: such a student is trained longer than a changed model is.
    """

    def __init__(self, network: nn.Module, *, untrained: bool = False) -> None:
        super().__init__()
        self.network = network
        self.untrained = untrained

    def forward(self, pictures: Tensor) -> Tensor:
        """Logits, ``(n, classes)``."""
        logits: Tensor = self.network(pictures / 255)
        return logits
