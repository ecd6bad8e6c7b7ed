"""`Predictor`: pictures to labels, from a checkpoint or from any exported variant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_perf.inference import InferenceError, VariantError, load_artefact, read_artefact
from recipes.signlang.checkpoint import load_checkpoint
from recipes.signlang.errors import RecipeError
from recipes.signlang.infer import SOURCE

__all__ = ["Predictor", "artefact_predictor", "checkpoint_predictor"]


@dataclass(frozen=True, eq=False)
class Predictor:
    """A network that is ready to classify.

    Attributes:
        name: What it is and where it came from.
        labels: The labels, in the order of the outputs.
        image_size: Width and height of its pictures in pixels.
        call: ``(n, 1, size, size)`` grey values of 0…255 as float32 to logits ``(n, labels)``.
    """

    name: str
    labels: tuple[str, ...]
    image_size: int
    call: Callable[[Tensor], Tensor]

    def probabilities(self, pictures: NDArray[np.uint8]) -> NDArray[np.float64]:
        """How probable each label is, by softmax.

        Args:
            pictures: ``(n, size, size)`` grey values.

        Returns:
            ``(n, labels)``; rows sum to 1.

        Raises:
            RecipeError: The variant fails.
        """
        try:
            with torch.inference_mode():
                logits = self.call(torch.from_numpy(pictures).unsqueeze(1).float())
        except (InferenceError, VariantError, RuntimeError) as error:
            raise RecipeError(self.name, f"fails on these pictures ({error})", "Export the variant again") from error
        probabilities: NDArray[np.float64] = logits.double().softmax(dim=1).numpy()
        return probabilities


def checkpoint_predictor(path: Path) -> Predictor:
    """A checkpoint's network, as PyTorch runs it.

    Raises:
        RecipeError: It is none of this recipe's.
    """
    trained = load_checkpoint(path)
    return Predictor(f"{trained.model} of {path}", trained.classes, trained.image_size, trained.classifier)


def artefact_predictor(folder: Path, device: str = "cpu", threads: int = 1) -> Predictor:
    """An exported variant. Some run code from their folder: load only what you trust.

    Args:
        folder: What ``infer --out`` wrote for the variant.
        device: Where to run.
        threads: CPU threads.

    Raises:
        RecipeError: It is no exported variant of this recipe's, is damaged, or cannot run here.
    """
    try:
        artefact = read_artefact(folder)
    except InferenceError as error:
        inside = sorted(path.parent.name for path in folder.glob("*/artefact.json"))
        action = f"Name one of the variants in it: {', '.join(inside)}" if inside else "Export it with infer --out"
        raise RecipeError(folder, f"no exported variant ({str(error).rstrip('.')})", action) from error
    shape = artefact.input_shape
    if not artefact.source.startswith(SOURCE) or len(shape) != 3 or shape[0] != 1 or shape[1] != shape[2]:
        problem = f"a variant of {artefact.source}, which is no network of this recipe's"
        raise RecipeError(folder, problem, "Export one with python -m recipes.signlang infer --out")
    if artefact.output_shape != (len(artefact.labels),):
        problem = f"it tells {len(artefact.labels)} labels for {artefact.output_shape} outputs"
        raise RecipeError(folder, problem, "Export it again")
    try:
        call = load_artefact(folder, device, threads)
    except (InferenceError, VariantError, RuntimeError) as error:
        raise RecipeError(folder, f"cannot be loaded here ({error})", "Choose another variant") from error
    name = f"{artefact.variant} of {artefact.source}"
    return Predictor(name, artefact.labels, shape[1], lambda pictures: call(pictures.to(device)).cpu())
