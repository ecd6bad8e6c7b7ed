"""Find transforms by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from torch import nn

from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.transforms.base import Distil, Transform
from lightning_perf.inference.transforms.layers import Prune, Separable
from lightning_perf.inference.transforms.weights import Share, Sparsify

TRANSFORM_NAMES = (
    "prune-25",
    "prune-50",
    "prune-75",
    "sparsify-50",
    "sparsify-90",
    "share-5bit",
    "share-4bit",
    "separable",
    "distil",
)
"""Names to show. Numbers may vary: ``prune-N`` from 1 to 95, ``sparsify-N`` from 1 to 99, ``share-Nbit`` from 1 to
8."""

_NUMBERED: tuple[tuple[str, int, Callable[[int], Transform]], ...] = (
    (r"prune-(\d+)", 95, Prune),
    (r"sparsify-(\d+)", 99, Sparsify),
    (r"share-(\d+)bit", 8, Share),
)


def find_transform(name: str, students: Mapping[str, Callable[[], nn.Module]] | None = None) -> Transform:
    """Find a transform by its name."""
    for pattern, most, make in _NUMBERED:
        if match := re.fullmatch(pattern, name):
            number = int(match[1])
            if not 1 <= number <= most:
                raise InferenceError(f"{name}: the number must be from 1 to {most}, got {number}.")
            return make(number)
    plain: list[Transform] = [Separable(), Distil()]
    taught = [
        Distil(student, make_student, has_teacher=has_teacher)
        for student, make_student in (students or {}).items()
        for has_teacher in (True, False)
    ]
    for transform in (*plain, *taught):
        if transform.name == name:
            return transform
    names = [*TRANSFORM_NAMES, *(transform.name for transform in taught)]
    raise InferenceError(f"Unknown transform {name!r}. Choose from {', '.join(names)}.")
