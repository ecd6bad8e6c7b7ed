"""Recognizes whether a run followed the advice of a finding: one advised setting changed, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from lightning_perf.run_files.run_record import FactValue

Facts = Mapping[str, FactValue]
"""Facts of a run, by their names in its run record."""

_FOLLOWED_FREELY = (
    "train.seed",
    "train.first_step",
    "train.max_epochs",
    "train.max_steps",
    "train.limit_train_batches",
    "train.limit_val_batches",
    "train.check_val_every_n_epoch",
    "train.val_check_interval",
    "train.log_every_n_steps",
    "train.callbacks",
    "train.loggers",
    "model.initial_weights",
    "data.first_batch",
    "data.manifest",
    "data.length",
    "code.revision",
)
"""Facts that may differ in addition. They affect the length and the result of a run, but hardly the time of a step.

The revision of the code changes with every setting in the code. `check_comparable` finds another model.
"""

_FREE_GROUPS = ("data.val_",)


class Advice(Struct, frozen=True):
    """A change that findings advise.

    Attributes:
        is_followed: Whether the change of the fact's value follows the advice.
        by_sample: Whether the step then holds more samples, so that times are compared per sample.
    """

    name: str
    rules: tuple[str, ...]
    fact: str
    is_followed: Callable[[FactValue, FactValue], bool]
    consequences: tuple[str, ...] = ()
    by_sample: bool = False


def _is_16_bit(value: FactValue) -> bool:
    return "16" in str(value)


def _is_enabled(before: FactValue, after: FactValue) -> bool:
    return not before and bool(after)


def _is_raised(before: FactValue, after: FactValue) -> bool:
    try:
        return float(after or 0) > float(before or 0)
    except ValueError:
        return False


def _is_fused(before: FactValue, after: FactValue) -> bool:
    """Return whether only the implementation of the optimizer changed, to the fused one."""
    was, is_now = (
        [part for part in str(optimizer).split(", ") if not part.startswith("foreach=")]
        for optimizer in (before, after)
    )
    others = [[part for part in parts if not part.startswith("fused=")] for parts in (was, is_now)]
    return "fused=True" in is_now and "fused=True" not in was and others[0] == others[1]


ADVICE: tuple[Advice, ...] = (
    Advice(
        "16-bit precision",
        ("half-precision", "tensor-cores", "cpu-bf16"),
        "train.precision",
        lambda before, after: not _is_16_bit(before) and _is_16_bit(after),
    ),
    Advice(
        "TF32",
        ("tf32-off",),
        "flags.tf32_matmul",
        lambda before, after: before not in (True, "tf32") and after in (True, "tf32"),
        ("flags.tf32_cudnn",),
    ),
    Advice("channels last", ("channels-last", "cpu-channels-last"), "model.channels_last", _is_enabled),
    Advice("fused optimizer", ("unfused-optimizer",), "train.optimizer", _is_fused),
    Advice("more threads", ("cpu-threads",), "device.threads", _is_raised, ("env.OMP_NUM_THREADS",)),
    Advice(
        "more workers",
        ("input-bound",),
        "data.num_workers",
        _is_raised,
        ("data.persistent_workers", "data.prefetch_factor"),
    ),
    Advice("pinned memory", ("pageable-copies",), "data.pin_memory", _is_enabled),
    Advice("torch.compile", ("launch-bound", "small-kernels"), "model.compiled", _is_enabled),
    Advice("cuDNN benchmark", ("cudnn-benchmark",), "flags.cudnn_benchmark", _is_enabled),
    Advice(
        "kept memory",
        ("cpu-page-faults",),
        "env.MALLOC_TRIM_THRESHOLD_",
        _is_enabled,
        ("env.MALLOC_MMAP_MAX_",),
    ),
    Advice("larger batch", ("cpu-overhead", "memory-spare"), "train.batch_size", _is_raised, by_sample=True),
)
"""Every change that a run record shows. Advice without a row, such as on synchronization, changes the user's code."""


RULES = {advice.name: advice.rules for advice in ADVICE}
"""The rules that advise each change."""


class Followed(Struct, frozen=True):
    """The one advice that a run followed.

    Attributes:
        setting: The change, e.g. ``train.precision 32-true → bf16-mixed``.
        time_factor: Factor of the second run's step time that makes both times those of as many samples.
    """

    advice: Advice
    setting: str
    time_factor: float = 1.0


def find_followed(before: Facts, after: Facts) -> Followed | None:
    """Return the advice that the second run followed.

    Returns:
        The advice. ``None`` if no advised setting changed, or if another setting changed too: the gain of two changes
        cannot be divided among them.
    """
    names = {
        name
        for name in before.keys() | after.keys()
        if before.get(name) != after.get(name) and name not in _FOLLOWED_FREELY and not name.startswith(_FREE_GROUPS)
    }
    for advice in ADVICE:
        if advice.fact not in names or names - {advice.fact, *advice.consequences}:
            continue
        was, is_now = before.get(advice.fact), after.get(advice.fact)
        if not advice.is_followed(was, is_now):
            return None
        factor = float(was or 1) / float(is_now or 1) if advice.by_sample else 1.0
        return Followed(advice, f"{advice.fact} {_text(was)} → {_text(is_now)}", factor)
    return None


def _text(value: FactValue) -> str:
    return "off" if value is None or value is False else "on" if value is True else str(value)
