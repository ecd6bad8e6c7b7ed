"""Reads a recording's description of itself into `Metadata`."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from lightning_perf.trace.description import (
    Batch,
    DataLoading,
    DeviceProperties,
    HookTime,
    Metadata,
    Processor,
    Tokens,
    TrainingLoop,
)
from lightning_perf.trace.salvage import lenient_json

__all__ = ["BATCH_KEY", "LOADER_KEY", "LOOP_KEY", "PROCESSOR_KEY", "TOKENS_KEY", "read_metadata"]

BATCH_KEY = "lightning_perf.batch"
PROCESSOR_KEY = "lightning_perf.processor"
LOADER_KEY = "lightning_perf.loader"
LOOP_KEY = "lightning_perf.loop"
TOKENS_KEY = "lightning_perf.tokens"
"""Keys under which `PerfCallback` notes facts about a batch, the processor, the data loader, the loop and the
tokens."""

_LARGEST_BASE_NS = 2**61


def read_metadata(header: bytes, trailer: bytes) -> Metadata:
    """Read the text before and after the events. Missing fields, and those of another type, are left out.

    Args:
        header: JSON text of an object.
        trailer: JSON text of an object. If both have a key, this one counts.
    """
    document: dict[str, Any] = {}
    for text in (header, trailer):
        part = lenient_json(text)
        if isinstance(part, dict):
            document.update(part)
    ranks, devices = document.get("distributedInfo"), document.get("deviceProperties")
    ranks = ranks if isinstance(ranks, dict) else {}
    facts = document | {key: ranks.get(key) for key in ("rank", "world_size", "backend")}
    read = _fields(Metadata, facts, hostname="host_name", runtime_version="cuda_runtime_version")
    base = _integer(document, "baseTimeNanoseconds") or 0
    read |= {
        "devices": tuple(
            _device(value, position)
            for position, value in enumerate(devices if isinstance(devices, list) else [])
            if isinstance(value, dict)
        ),
        "base_time_ns": base if abs(base) < _LARGEST_BASE_NS else 0,
        "runtime_version": read["runtime_version"] or _integer(document, "hip_runtime_version"),
        "is_hip": any(key in document for key in ("hip_runtime_version", "hip_driver_version", "roctracer_version")),
    }
    for name, key, kind in (
        ("processor", PROCESSOR_KEY, _processor),
        ("loader", LOADER_KEY, _loader),
        ("loop", LOOP_KEY, _loop),
        ("tokens", TOKENS_KEY, _tokens),
        ("batch", BATCH_KEY, _batch),
    ):
        value = document.get(key)
        read[name] = kind(value) if isinstance(value, dict) else None
    return Metadata(**read)


def _device(values: dict[str, Any], position: int) -> DeviceProperties:
    read = _fields(
        DeviceProperties,
        values,
        total_memory_bytes="totalGlobalMem",
        compute_major="computeMajor",
        compute_minor="computeMinor",
        sm_count="numSms",
        warp_size="warpSize",
        max_threads_per_sm="maxThreadsPerMultiprocessor",
    )
    ordinal = _integer(values, "id")
    return DeviceProperties(ordinal=position if ordinal is None else ordinal, **read)


def _processor(values: dict[str, Any]) -> Processor:
    bf16 = values.get("bf16")
    read = _fields(Processor, values)
    read["bf16"] = _texts(bf16) if isinstance(bf16, list) else None
    return Processor(**read | {name: _positive(values, name) for name in ("free_bytes", "used_bytes")})


def _loader(values: dict[str, Any]) -> DataLoading | None:
    read = _fields(DataLoading, values)
    return DataLoading(**read | {"batches_per_epoch": _positive(values, "batches_per_epoch")}) if values else None


def _batch(values: dict[str, Any]) -> Batch | None:
    counts = [_integer(values, name) for name in ("tensors", "tensor_bytes", "objects", "object_bytes")]
    tensors, tensor_bytes, objects, object_bytes = (-1 if count is None else count for count in counts)
    if min(tensors, tensor_bytes, objects, object_bytes) < 0:
        return None
    return Batch(tensors, tensor_bytes, objects, object_bytes, complete=_flag(values, "complete") is not False)


def _loop(values: dict[str, Any]) -> TrainingLoop | None:
    if not values:
        return None
    hooks, loggers = values.get("hooks_ns"), values.get("loggers")
    read = _fields(TrainingLoop, values)
    if isinstance(hooks, dict):
        times = {name: _integer(hooks, name) for name in hooks}
        read["hooks"] = tuple(HookTime(name, time_ns) for name, time_ns in times.items() if time_ns is not None)
    return TrainingLoop(**read, loggers=_texts(loggers) if isinstance(loggers, list) else ())


def _tokens(values: dict[str, Any]) -> Tokens | None:
    steps, tokens = _positive(values, "steps"), _positive(values, "tokens")
    if steps is None or tokens is None:
        return None
    found = Tokens(_positive(values, "parameters"), steps, tokens)
    counted = _positive(values, "counted")
    padding, beyond_longest = (_integer(values, name) or 0 for name in ("padding", "beyond_longest"))
    if counted is None or not 0 <= beyond_longest <= padding <= counted:
        return found
    return replace(found, counted=counted, padding=padding, beyond_longest=beyond_longest)


def _texts(values: list[Any]) -> tuple[str, ...]:
    return tuple(value for value in values if isinstance(value, str))


def _positive(values: dict[str, Any], key: str) -> int | None:
    value = _integer(values, key)
    return value if value is not None and value > 0 else None


def _integer(values: dict[str, Any], key: str) -> int | None:
    value = values.get(key)
    if isinstance(value, str) and value.lstrip("-").isdecimal() and len(value) < 20:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None


def _number(values: dict[str, Any], key: str) -> float | None:
    value = values.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9 else None


def _text(values: dict[str, Any], key: str) -> str | None:
    value = values.get(key)
    return value if isinstance(value, str) else None


def _flag(values: dict[str, Any], key: str) -> bool | None:
    value = values.get(key)
    return bool(value) if isinstance(value, int) else None


_READERS = {"int | None": _integer, "float | None": _number, "str | None": _text, "bool | None": _flag}


def _fields(kind: type[Any], values: dict[str, Any], **keys: str) -> dict[str, Any]:
    """Read the fields of a dataclass that are a number, a text or a flag. `keys` names those with another key."""
    return {
        field.name: _READERS[field.type](values, keys.get(field.name, field.name))
        for field in fields(kind)
        if field.type in _READERS
    }
