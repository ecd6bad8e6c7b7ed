"""`Variant`: a chain of transforms and a runtime, by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.runtimes.base import Runtime
from lightning_perf.inference.runtimes.registry import find_runtime
from lightning_perf.inference.transforms.base import Transform
from lightning_perf.inference.transforms.registry import find_transform

if TYPE_CHECKING:
    from torch import nn

__all__ = ["BASELINE", "Variant", "default_variants", "parse_variant", "parse_variants"]

BASELINE = "eager"
"""The original as PyTorch runs it: what all others are compared with."""

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
        "aot-inductor",
        "fp16",
        "bf16",
        "onnxruntime",
        "tensorrt-fp16",
        "tensorrt-int8",
    ),
}


def default_variants(device_type: str) -> tuple[str, ...]:
    """Variants that are measured when none are named: they need no training and take minutes, not hours.

    Args:
        device_type: ``cpu`` or ``cuda``.
    """
    return _DEFAULTS[device_type]


@dataclass(frozen=True)
class Variant:
    """One way to run a model.

    Attributes:
        name: Transforms and runtime joined by ``+``, as ``prune-50+onnxruntime-int8``.
        transforms: What changes the model, in order.
        runtime: What executes it.
    """

    name: str
    transforms: tuple[Transform, ...]
    runtime: Runtime


def parse_variant(text: str, students: Mapping[str, Callable[[], nn.Module]] | None = None) -> Variant:
    """Read a variant's name.

    Args:
        text: Names joined by ``+``: transforms, then a runtime; ``eager`` when only transforms are named.
        students: What makes each student to distil to, untrained, by its name.

    Returns:
        The variant; its name is spelled out.

    Raises:
        InferenceError: A part is unknown or stands in the wrong place; the message lists what there is.

    Example:
        >>> parse_variant("prune-50").name
        'prune-50+eager'
    """
    parts = [part.strip() for part in text.split("+")]
    if "" in parts:
        raise InferenceError(
            f"Variant {text!r}: a name is empty. Join transforms and a runtime by +, as prune-50+eager."
        )
    *before, last = parts
    runtime, problem = _find_runtime(last)
    if runtime is None:
        before, runtime = parts, find_runtime(BASELINE)
    transforms = []
    for position, name in enumerate(before):
        if _find_runtime(name)[0] is not None:
            raise InferenceError(f"Variant {text}: {name} is a runtime. There is one, and it comes last.")
        try:
            transforms.append(find_transform(name, students))
        except InferenceError as error:
            might_be_runtime = problem if problem is not None and position == len(before) - 1 else ""
            raise InferenceError(f"Variant {text}: {might_be_runtime} {error}".replace("  ", " ")) from None
    names = [transform.name for transform in transforms] + [runtime.name]
    return Variant("+".join(names), tuple(transforms), runtime)


def parse_variants(
    names: Iterable[str], students: Mapping[str, Callable[[], nn.Module]] | None = None
) -> tuple[Variant, ...]:
    """Read the names of variants: the baseline comes first, whether it is named or not, and nothing comes twice.

    Args:
        names: The names.
        students: What makes each student to distil to, untrained, by its name.

    Raises:
        InferenceError: A name is unknown.
    """
    variants = {variant.name: variant for variant in (parse_variant(name, students) for name in (BASELINE, *names))}
    return tuple(variants.values())


def _find_runtime(name: str) -> tuple[Runtime | None, InferenceError | None]:
    try:
        return find_runtime(name), None
    except InferenceError as error:
        return None, error
