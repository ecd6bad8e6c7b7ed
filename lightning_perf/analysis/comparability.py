"""Comparability: whether two recordings show the same training, so that a shorter step means a faster one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from statistics import median
from typing import Literal

from msgspec import Struct

from lightning_perf.analysis.model.workload import Workload
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.units import counted, format_bytes

Aspect = Literal["steps", "device", "ranks", "model", "batch", "recording options"]

LEAST_COMMON = 0.75
"""Below this share of common layer calls, two recordings show different models. One layer padded to a multiple of 8, as
a finding advises, leaves most layers unchanged."""

SAME_COUNT = 0.02
"""Counts and sizes per step within 2 % count as the same."""

SHOWN = 3
"""Layers that a sentence names."""


class Mismatch(Struct, frozen=True):
    """One aspect in which two recordings differ so that their times are not comparable.

    Attributes:
        aspect: The aspect.
        before: Its value in the first recording, as text.
        after: Its value in the second recording.
    """

    aspect: Aspect
    before: str
    after: str


class Throughput(Struct, frozen=True):
    """Samples per second of both recordings, over all ranks.

    Attributes:
        before_samples: Samples per step in the first recording.
        after_samples: Samples per step in the second recording.
        before_per_s: Samples per second in the first recording.
        after_per_s: Samples per second in the second recording.
    """

    before_samples: int
    after_samples: int
    before_per_s: float
    after_per_s: float


class Comparability(Struct, frozen=True):
    """Whether the times of two recordings are comparable.

    Attributes:
        mismatches: The aspects that make them incomparable; empty if they are comparable as far as is known.
        unchecked: Aspects that at least one recording does not say.
        notes: Differences to know about that leave the times comparable.
        throughput: Samples per second of both, where the batch differs and both record its size; ``None`` otherwise.
    """

    mismatches: tuple[Mismatch, ...] = ()
    unchecked: tuple[Aspect, ...] = ()
    notes: tuple[str, ...] = ()
    throughput: Throughput | None = None


def check_comparable(before: RankAnalysis, after: RankAnalysis) -> Comparability:
    """Check whether two recordings show the same training on the same device with the same batch."""
    models = _models(before, after)
    checks: dict[Aspect, Mismatch | bool | None] = {
        "device": _compare("device", _device(before), _device(after)),
        "ranks": _compare("ranks", _ranks(before), _ranks(after)),
        "model": models.mismatch or models.known or None,
        "batch": _batches(before, after, models),
        "recording options": _compare("recording options", _options(before), _options(after)),
    }
    mismatches = *_steps(before, after, models), *(each for each in checks.values() if isinstance(each, Mismatch))
    differs_in_batch = isinstance(checks["batch"], Mismatch)
    return Comparability(
        mismatches=mismatches,
        unchecked=tuple(aspect for aspect, found in checks.items() if found is None),
        notes=models.notes,
        throughput=_throughput(before, after) if differs_in_batch and models.mismatch is None else None,
    )


def _compare(aspect: Aspect, before: str | None, after: str | None) -> Mismatch | bool | None:
    """How an aspect differs; True if it does not, None if a recording does not say."""
    if before is None or after is None:
        return None
    return before == after or Mismatch(aspect, before, after)


def _options(rank: RankAnalysis) -> str:
    return " and ".join(rank.workload.options) or "neither with_stack nor profile_memory"


def other_changes(before: RankAnalysis, after: RankAnalysis) -> tuple[str, ...]:
    """Name the settings other than precision that differ between two recordings, as far as both record them."""
    first, second = _settings(before), _settings(after)
    changed = [name for name, value in first.items() if None not in (value, second[name]) and value != second[name]]
    if any(name in changed for name in ("num_workers", "pin_memory", "persistent_workers")):
        changed = [name for name in changed if name != _LOADING_PROCESS]
    return tuple(name if name == _LOADING_PROCESS else f"{name} {first[name]} → {second[name]}" for name in changed)


_LOADING_PROCESS = "the process that loads batches"


def _settings(rank: RankAnalysis) -> dict[str, object]:
    """Return settings with their names in text; None for one that is not recorded."""
    loader, optimizer = rank.metadata.loader, rank.optimizer
    return {
        "num_workers": loader and loader.workers,
        "pin_memory": loader and loader.pin_memory,
        "persistent_workers": loader and loader.persistent_workers,
        _LOADING_PROCESS: rank.loading and rank.loading.loader,
        "optimizer": optimizer and optimizer.name,
        "optimizer implementation": optimizer and optimizer.implementation,
        "torch.compile": "on" if rank.workload.compiled else "off",
    }


def _device(rank: RankAnalysis) -> str | None:
    """The device that computes, as text; None where the recording does not name it."""
    if not rank.breakdown.has_device:
        processor = rank.metadata.processor
        return f"CPU ({processor.name})" if processor is not None and processor.trains and processor.name else None
    return " and ".join(rank.workload.devices) or None


def _ranks(rank: RankAnalysis) -> str:
    """The number of ranks. A recording without one is taken for a single process."""
    world = rank.metadata.world_size
    return "1 rank" if world in {None, 0, 1} else f"{world} ranks"


def _steps(before: RankAnalysis, after: RankAnalysis, models: _Models) -> Iterator[Mismatch]:
    marked = before.breakdown.marked, after.breakdown.marked
    if marked[0] != marked[1]:
        texts = ("one step" if each else "the whole recording" for each in marked)
        yield Mismatch("steps", *texts)
    elif not marked[0]:
        counts = before.workload.optimizer_steps, after.workload.optimizer_steps
        if all(counts) and not _alike(*counts):
            yield Mismatch("steps", *(f"{count} optimizer steps in the whole recording" for count in counts))
        elif not all(counts) and models.passes is not None and not _alike(1.0, models.passes):
            yield Mismatch("steps", "1 pass", f"{models.passes:.3g} times as many passes through the model")


class _Models(Struct, frozen=True):
    """Which model each of two recordings shows.

    Attributes:
        passes: Forward passes per step in the second recording, relative to the first; None if not known.
    """

    known: bool = False
    mismatch: Mismatch | None = None
    passes: float | None = None
    notes: tuple[str, ...] = ()


def _models(before: RankAnalysis, after: RankAnalysis) -> _Models:
    first, second = before.workload, after.workload
    shapes = _has_shapes(first) and _has_shapes(second)
    layers = _layers(first, shapes=shapes), _layers(second, shapes=shapes)
    found = _compare_layers(*layers, _relative_passes(before, after, *layers)) if all(layers) else _Models()
    # Compiled code hides some of its layers or all of them: only equal layers say anything.
    if (first.compiled or second.compiled) and (found.mismatch is not None or found.notes):
        found = _Models()
    return found if found.known else _compare_modules(before, after)


def _relative_passes(before: RankAnalysis, after: RankAnalysis, old: _Layers, new: _Layers) -> float:
    """Forward passes per step, or per whole recording, in the second recording relative to the first."""
    if before.breakdown.marked and after.breakdown.marked:
        micro_batches = _micro_batches(before), _micro_batches(after)
        return micro_batches[1] / micro_batches[0] if micro_batches[0] and micro_batches[1] else 1.0
    stepped = before.workload.optimizer_steps, after.workload.optimizer_steps
    if before.breakdown.marked == after.breakdown.marked and all(stepped):
        return stepped[1] / stepped[0]
    return median([new[layer] / old[layer] for layer in old.keys() & new.keys()] or [1.0])


def _compare_layers(before: _Layers, after: _Layers, passes: float) -> _Models:
    every = before.keys() | after.keys()
    calls = [(before.get(layer, 0.0), after.get(layer, 0.0) / passes) for layer in every]
    common = sum(map(min, calls)) / sum(map(max, calls))
    only = _layers_text(before, but=after), _layers_text(after, but=before)
    kinds = _kinds_text(before), _kinds_text(after)
    if common < LEAST_COMMON:
        texts = kinds if kinds[0] != kinds[1] else only
        return _Models(known=True, mismatch=Mismatch("model", *texts), passes=passes)
    if _alike(common, 1.0) and not any(only):
        return _Models(known=True, passes=passes)
    texts = (only[0] or "none", only[1] or "none") if any(only) else kinds
    note = f"The models differ in some layers. Only before: {texts[0]}. Only after: {texts[1]}."
    return _Models(known=True, passes=passes, notes=(note,))


def _compare_modules(before: RankAnalysis, after: RankAnalysis) -> _Models:
    first, second = _classes(before), _classes(after)
    if not first or not second:
        return _Models()
    common = (first & second).total() / (first | second).total()
    if common >= LEAST_COMMON:
        return _Models(known=True)
    return _Models(known=True, mismatch=Mismatch("model", _classes_text(first), _classes_text(second)))


_Layers = dict[tuple[str, tuple[int, ...] | None], float]
"""Forward calls per step by operator and shape of weight."""


def _has_shapes(workload: Workload) -> bool:
    return any(layer.weight is not None for layer in workload.layers)


def _layers(workload: Workload, *, shapes: bool) -> _Layers:
    found: _Layers = {}
    for layer in workload.layers:
        if not shapes or layer.weight is not None:
            key = layer.operator, layer.weight if shapes else None
            found[key] = found.get(key, 0.0) + layer.calls / max(workload.steps, 1)
    return found


def _kinds_text(layers: _Layers) -> str:
    calls: dict[str, float] = {}
    for (operator, _), number in layers.items():
        calls[operator] = calls.get(operator, 0.0) + number
    named = sorted(calls, key=lambda operator: -calls[operator])
    return ", ".join(f"{calls[operator]:.4g} × {operator}" for operator in named) + " per step"


def _layers_text(layers: _Layers, but: _Layers) -> str:
    named = sorted((layer for layer in layers if layer not in but), key=lambda layer: -layers[layer])
    texts = [operator if weight is None else f"{operator} {_shape_text(weight)}" for operator, weight in named[:SHOWN]]
    return ", ".join(texts) + (f" and {len(named) - SHOWN} more" if len(named) > SHOWN else "")


def _shape_text(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))


def _classes(rank: RankAnalysis) -> Counter[str]:
    """The classes of the model's modules, each as often as it has instances."""
    if rank.modules is None:
        return Counter()
    return Counter(re.sub(r"_\d+$", "", name) for name in {row.name for row in rank.modules.rows})


def _classes_text(classes: Counter[str]) -> str:
    named = classes.most_common(SHOWN)
    return ", ".join(f"{count} × {name}" for name, count in named) + (" …" if len(classes) > SHOWN else "")


def _batches(before: RankAnalysis, after: RankAnalysis, models: _Models) -> Mismatch | bool | None:
    """How the batches differ; True if they agree, None if that is not known."""
    first, second = before.workload, after.workload
    marked = before.breakdown.marked and after.breakdown.marked
    samples = [_loaded_samples(rank) for rank in (before, after)]
    loaded = None not in samples
    if loaded and samples[0] != samples[1]:
        return Mismatch("batch", *(str(each) for each in samples))
    if models.mismatch is None and first.inputs and second.inputs:
        sizes = {shape[0] for shape in first.inputs}, {shape[0] for shape in second.inputs}
        fixed = len(first.inputs) == len(second.inputs) == 1
        if (not loaded and not sizes[0] & sizes[1]) or (fixed and first.inputs != second.inputs):
            return Mismatch("batch", *(f"input {_shapes_text(each.inputs)}" for each in (first, second)))
    elif not loaded:
        if models.mismatch is None and marked and first.copied_bytes and second.copied_bytes:
            copied = first.copied_bytes / max(first.steps, 1), second.copied_bytes / max(second.steps, 1)
            if not _alike(*copied):
                texts = (f"{format_bytes(each)} copied to the device per step" for each in copied)
                return Mismatch("batch", *texts)
        return None  # equal copies are a hint, not a proof
    micro_batches = [_micro_batches(rank) for rank in (before, after)] if marked else []
    if len(set(micro_batches)) > 1 and None not in micro_batches:
        texts = (f"{counted(number or 0, 'micro-batch', 'micro-batches')} per step" for number in micro_batches)
        return Mismatch("batch", *texts)
    return True


def _loaded_samples(rank: RankAnalysis) -> int | None:
    """Samples of a batch, as the recording notes them of its loader; None if it does not."""
    loader = rank.metadata.loader
    return loader.batch_size if loader is not None and loader.batch_size else None


def _shapes_text(shapes: tuple[tuple[int, ...], ...]) -> str:
    return _shape_text(shapes[0]) + (f" and {len(shapes) - 1} other shapes" if len(shapes) > 1 else "")


def _throughput(before: RankAnalysis, after: RankAnalysis) -> Throughput | None:
    found = []
    for rank in (before, after):
        samples, micro_batches, step_ns = _loaded_samples(rank), _micro_batches(rank), rank.breakdown.wall.mean_ns
        if samples is None and len({shape[0] for shape in rank.workload.inputs}) == 1:
            samples = rank.workload.inputs[0][0]
        if samples is None or micro_batches is None or not step_ns or not rank.breakdown.marked:
            return None
        found.append((samples * micro_batches * (rank.metadata.world_size or 1), step_ns))
    (first, first_ns), (second, second_ns) = found
    return Throughput(first, second, first / first_ns * 1e9, second / second_ns * 1e9)


def _micro_batches(rank: RankAnalysis) -> int | None:
    """Batches that a rank trains on per step: by its fetches, or else by the calls of its first layer."""
    counts = []
    if rank.loading is not None and rank.loading.fetches:
        counts.append(rank.loading.fetches / max(rank.loading.steps, 1))
    if rank.workload.passes:
        counts.append(rank.workload.passes)
    for count in counts:
        if count >= 1 and _alike(count, round(count)):
            return round(count)
    return None


def _alike(first: float, second: float) -> bool:
    return abs(first - second) <= SAME_COUNT * max(abs(first), abs(second))
