"""`Variant`: a chain of transforms and a runtime, parsed from its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct
from torch import nn

from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.runtimes.base import Runtime
from lightning_perf.inference.runtimes.registry import RUNTIME_NAMES, find_runtime
from lightning_perf.inference.transforms.base import Distil, Transform
from lightning_perf.inference.transforms.layers import Prune, Separable, Share, Sparsify

if TYPE_CHECKING:
    from torch import nn


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


BASELINE = "eager"
"""The original as PyTorch runs it. All other variants are compared with it."""

_DEFAULTS = {
    "cpu": (
        "eager",
        "channels-last",
        "channels-last-fused",
        "compile",
        "aot-inductor",
        "onnxruntime",
        "onnxruntime-int8",
        "openvino",
        "openvino-int8",
    ),
    "cuda": (
        "eager",
        "channels-last",
        "compile",
        "compile-reduce-overhead",
        "aot-inductor",
        "fp16",
        "bf16",
        "onnxruntime",
        "tensorrt-fp16",
        "tensorrt-int8",
    ),
}


def default_variants(device_type: str) -> tuple[str, ...]:
    """Return the variants to measure by default: they need no training and take minutes, not hours.

    Args:
        device_type: ``cpu`` or ``cuda``.
    """
    return _DEFAULTS[device_type]


class Variant(Struct, frozen=True):
    """One way to run a model.

    Attributes:
        name: Transforms and runtime joined by ``+``, e.g. ``prune-50+onnxruntime-int8``.
        transforms: Transforms that change the model, in order.
    """

    name: str
    transforms: tuple[Transform, ...]
    runtime: Runtime

    @property
    def chain(self) -> tuple[str, ...]:
        """Names of the transforms."""
        return tuple(transform.name for transform in self.transforms)

    @property
    def summary(self) -> str:
        """Description of its parts."""
        return "; ".join([*(transform.summary for transform in self.transforms), self.runtime.summary])


def parse_variant(text: str, students: Mapping[str, Callable[[], nn.Module]] | None = None) -> Variant:
    """Parse the name of a variant."""
    parts = [part.strip() for part in text.split("+")]
    if "" in parts:
        raise InferenceError(
            f"Variant {text!r}: a part is empty. Join transforms and a runtime with +, e.g. prune-50+eager."
        )
    *before, last = parts
    problem = ""
    try:
        runtime = find_runtime(last)
    except InferenceError as error:  # the last part is a transform, or a mistake
        before, runtime, problem = parts, find_runtime(BASELINE), f" {error}"
    transforms = []
    for position, name in enumerate(before, 1):
        if name in RUNTIME_NAMES:
            raise InferenceError(f"Variant {text}: {name} is a runtime. Give one runtime, as the last part.")
        try:
            transforms.append(find_transform(name, students))
        except InferenceError as error:
            might_be_runtime = problem if position == len(before) else ""
            raise InferenceError(f"Variant {text}:{might_be_runtime} {error}") from None
    names = [transform.name for transform in transforms] + [runtime.name]
    return Variant("+".join(names), tuple(transforms), runtime)


def parse_variants(
    names: Iterable[str], students: Mapping[str, Callable[[], nn.Module]] | None = None
) -> tuple[Variant, ...]:
    """Parse the names of variants; the baseline always comes first, and duplicates are dropped.

    Args:
        names: The names.
        students: Functions that make untrained students for distillation, by name.

    Raises:
        InferenceError: A name is unknown.
    """
    variants = {variant.name: variant for variant in (parse_variant(name, students) for name in (BASELINE, *names))}
    return tuple(variants.values())
