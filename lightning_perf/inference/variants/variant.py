"""`Variant`: a chain of transforms and a runtime, parsed from its name, and the models that chains make."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import nn

from lightning_perf.errors import reason_of
from lightning_perf.inference.errors import InferenceError, VariantError
from lightning_perf.inference.model import Subject
from lightning_perf.inference.runtimes.base import Runtime
from lightning_perf.inference.runtimes.registry import RUNTIME_NAMES, find_runtime
from lightning_perf.inference.transforms import Distil, FineTune, Prune, Separable, Share, Sparsify, Transform

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


class Storage(Struct, frozen=True):
    """Sizes of a model's weights and buffers.

    Attributes:
        gzip_bytes: Size after compression with zlib, level 6, as gzip uses it: zeros and repeated values compress well.
    """

    dense_bytes: int
    gzip_bytes: int


def measure_storage(module: nn.Module) -> Storage:
    """Measure the size of a model's weights, dense and compressed. Shared weights count once.

    Args:
        module: The model, on any device.

    Returns:
        Both sizes, in bytes.

    Example:
        >>> module = torch.nn.Linear(64, 64, bias=False)
        >>> _ = torch.nn.init.zeros_(module.weight)
        >>> storage = measure_storage(module)
        >>> storage.dense_bytes, storage.gzip_bytes < 100
        (16384, True)
    """
    state = module.state_dict().values()
    distinct = {(tensor.data_ptr(), tensor.shape): tensor for tensor in state if tensor.numel()}
    compressor = zlib.compressobj(6)
    dense = compressed = 0
    for tensor in distinct.values():
        data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        dense += len(data)
        compressed += len(compressor.compress(data))
    return Storage(dense, compressed + len(compressor.flush()))


@dataclass
class Chains:
    """Applies chains of transforms and keeps the resulting models.

    A transform may fine-tune for minutes, so ``prune-50+onnxruntime`` and ``prune-50+onnxruntime-int8`` share a model.
    Without training data, there is nothing to `fine_tune` with.
    """

    subject: Subject
    fine_tune: FineTune | None
    work: Path
    on_progress: Callable[[str], None]

    def __post_init__(self) -> None:
        self._modules: dict[str, nn.Module | VariantError] = {"": self.subject.module}
        self._files: dict[tuple[str, int], Path] = {}

    def module(self, transforms: Sequence[Transform]) -> nn.Module:
        """Return the changed model, or raise the `VariantError` of the transform that cannot be applied."""
        chain = _name(transforms)
        if chain not in self._modules:
            self._modules[chain] = self._apply(transforms)
        made = self._modules[chain]
        if isinstance(made, VariantError):
            raise made
        return made

    def subject_file(self, transforms: Sequence[Transform], threads: int) -> Path:
        """Return a file with the changed model as a `Subject`, for the process that builds the variant."""
        key = _name(transforms), threads
        if key not in self._files:
            subject = replace(self.subject, module=self.module(transforms), threads=threads)
            path = self.work / f"subject{len(self._files)}.pt"
            _save_subject(subject, path)
            self._files[key] = path
        return self._files[key]

    def _apply(self, transforms: Sequence[Transform]) -> nn.Module | VariantError:
        *before, last = transforms
        try:
            module = self.module(before)
            if reason := last.missing():
                return VariantError(reason)
            self.on_progress(f"Changing the model: {_name(transforms)}")
            return last.apply(module, self.subject, self.fine_tune)
        except VariantError as error:
            return error
        except Exception as error:  # libraries and training code may raise anything; the other variants continue
            return VariantError(f"{last.name} failed ({reason_of(error)})")


def _name(transforms: Sequence[Transform]) -> str:
    return "+".join(transform.name for transform in transforms)


def _save_subject(subject: Subject, path: Path) -> None:
    homeless = sorted({type(m).__name__ for m in subject.module.modules() if type(m).__module__ == "__main__"})
    if homeless:
        raise VariantError(
            f"{', '.join(homeless)} is defined in the main script, which a fresh process cannot import. "
            "Move the class to a module."
        )
    try:
        torch.save(subject, path)
    except Exception as error:  # pickling runs code of the model's, which may raise anything
        raise VariantError(f"the model cannot be saved as a whole ({reason_of(error)})") from error
