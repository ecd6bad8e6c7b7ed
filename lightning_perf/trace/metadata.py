"""Reads a recording's description of itself into `Metadata`."""

from __future__ import annotations

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
    ranks = document.get("distributedInfo")
    ranks = ranks if isinstance(ranks, dict) else {}
    devices = document.get("deviceProperties")
    base = _integer(document, "baseTimeNanoseconds") or 0
    return Metadata(
        devices=tuple(
            device
            for position, value in enumerate(devices if isinstance(devices, list) else [])
            if (device := _device(value, position)) is not None
        ),
        rank=_integer(ranks, "rank"),
        world_size=_integer(ranks, "world_size"),
        backend=_text(ranks, "backend"),
        hostname=_text(document, "host_name"),
        base_time_ns=base if abs(base) < _LARGEST_BASE_NS else 0,
        record_shapes=_flag(document, "record_shapes"),
        with_stack=_flag(document, "with_stack"),
        profile_memory=_flag(document, "profile_memory"),
        with_flops=_flag(document, "with_flops"),
        with_modules=_flag(document, "with_modules"),
        runtime_version=_integer(document, "cuda_runtime_version") or _integer(document, "hip_runtime_version"),
        is_hip=any(key in document for key in ("hip_runtime_version", "hip_driver_version", "roctracer_version")),
        processor=_processor(document.get(PROCESSOR_KEY)),
        loader=_loader(document.get(LOADER_KEY)),
        loop=_loop(document.get(LOOP_KEY)),
        tokens=_tokens(document.get(TOKENS_KEY)),
        batch=_batch(document.get(BATCH_KEY)),
    )


def _device(value: Any, position: int) -> DeviceProperties | None:
    if not isinstance(value, dict):
        return None
    ordinal = _integer(value, "id")
    return DeviceProperties(
        ordinal=position if ordinal is None else ordinal,
        name=_text(value, "name"),
        total_memory_bytes=_integer(value, "totalGlobalMem"),
        compute_major=_integer(value, "computeMajor"),
        compute_minor=_integer(value, "computeMinor"),
        sm_count=_integer(value, "numSms"),
        warp_size=_integer(value, "warpSize"),
        max_threads_per_sm=_integer(value, "maxThreadsPerMultiprocessor"),
    )


def _processor(value: Any) -> Processor | None:
    if not isinstance(value, dict):
        return None
    bf16 = value.get("bf16")
    return Processor(
        name=_text(value, "name"),
        cores=_integer(value, "cores"),
        threads=_integer(value, "threads"),
        bf16=tuple(part for part in bf16 if isinstance(part, str)) if isinstance(bf16, list) else None,
        trains=_flag(value, "trains"),
        load=_number(value, "load"),
        page_faults=_number(value, "page_faults"),
        page_fault_ns=_number(value, "page_fault_ns"),
        allocator=_text(value, "allocator"),
        cpus=_integer(value, "cpus"),
        machine_cpus=_integer(value, "machine_cpus"),
        core_wait=_number(value, "core_wait"),
        free_bytes=_positive(value, "free_bytes"),
        used_bytes=_positive(value, "used_bytes"),
    )


def _loader(value: Any) -> DataLoading | None:
    if not isinstance(value, dict) or not value:
        return None
    return DataLoading(
        kind=_text(value, "kind"),
        workers=_integer(value, "workers"),
        batch_size=_integer(value, "batch_size"),
        pin_memory=_flag(value, "pin_memory"),
        persistent_workers=_flag(value, "persistent_workers"),
        in_memory=_flag(value, "in_memory"),
        batched=_flag(value, "batched"),
        uses_model=_flag(value, "uses_model"),
        dataset=_text(value, "dataset"),
        collate=_text(value, "collate"),
        batches_per_epoch=_positive(value, "batches_per_epoch"),
    )


def _batch(value: Any) -> Batch | None:
    if not isinstance(value, dict):
        return None
    counts = [_integer(value, name) for name in ("tensors", "tensor_bytes", "objects", "object_bytes")]
    tensors, tensor_bytes, objects, object_bytes = (0 if count is None else count for count in counts)
    if None in counts or min(tensors, tensor_bytes, objects, object_bytes) < 0:
        return None
    return Batch(tensors, tensor_bytes, objects, object_bytes, complete=_flag(value, "complete") is not False)


def _loop(value: Any) -> TrainingLoop | None:
    if not isinstance(value, dict) or not value:
        return None
    hooks, loggers = value.get("hooks_ns"), value.get("loggers")
    return TrainingLoop(
        steps=_integer(value, "steps"),
        hooks=(
            tuple(HookTime(name, time_ns) for name in hooks if (time_ns := _integer(hooks, name)) is not None)
            if isinstance(hooks, dict)
            else None
        ),
        loggers=tuple(name for name in loggers if isinstance(name, str)) if isinstance(loggers, list) else (),
        log_every_n_steps=_integer(value, "log_every_n_steps"),
    )


def _tokens(value: Any) -> Tokens | None:
    if not isinstance(value, dict):
        return None
    steps, tokens = _positive(value, "steps"), _positive(value, "tokens")
    if steps is None or tokens is None:
        return None
    counted = _positive(value, "counted")
    padding, beyond_longest = (_integer(value, name) or 0 for name in ("padding", "beyond_longest"))
    if counted is None or not 0 <= beyond_longest <= padding <= counted:
        counted = None
    return Tokens(
        parameters=_positive(value, "parameters"),
        steps=steps,
        tokens=tokens,
        counted=counted,
        padding=0 if counted is None else padding,
        beyond_longest=0 if counted is None else beyond_longest,
    )


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
