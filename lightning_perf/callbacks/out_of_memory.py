"""The report of a training that ran out of memory: written at once, with little memory, before the error passes on."""

from __future__ import annotations

import re
import shlex
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, get_args

import torch
from msgspec.structs import replace

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.recording.memory_watch import Tracked, count_tensors
from lightning_perf.callbacks.recording.tensor_lists import TensorSource, list_tensors
from lightning_perf.callbacks.report import ReportLength, print_line
from lightning_perf.callbacks.steps.hang_watch import training_phase
from lightning_perf.run_files.fit.memory_growth import TensorGroup
from lightning_perf.run_files.fit.out_of_memory import MemoryPhase, OutOfMemory, write_out_of_memory
from lightning_perf.units import format_bytes
from lightning_perf.workers.limits import free_bytes

_HOST_TEXTS = ("can't allocate memory: you tried to allocate", "not enough memory: you tried to allocate")
"""Messages of torch's allocators on the host, which raise a plain RuntimeError (c10/core/impl/alloc_cpu.cpp)."""

_ASKED = re.compile(r"[Tt]ried to allocate (\d{1,20}(?:\.\d{1,6})?) (bytes|KiB|MiB|GiB)")
_DEVICE = re.compile(r"\bGPU (\d{1,3})\b")
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}

_KNOWN_PHASES: dict[str, MemoryPhase] = {phase: phase for phase in get_args(MemoryPhase)}

_ALLOWED = re.compile(r"(\d{1,20}(?:\.\d{1,6})?) (bytes|KiB|MiB|GiB) allowed;")
_MAX_MESSAGE = 1000
_MAX_GROUPS = 3
_LEAST_GROUP = 0.05
"""Groups of tensors to name at most, and the least size of one relative to the largest."""

_MAX_CAUSES = 8

_STATE_SHARE = 0.3
"""From this share of the known memory on, the state of the optimizer is worth a fix of its own."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, on the host or on a device."""
    return any(_says_so(cause) for cause in _causes(error))


def report_out_of_memory(
    error: BaseException,
    source: TensorSource,
    errors: ErrorReporter,
    *,
    show: ReportLength,
    **facts: Any,
) -> None:
    """Write and print a report if a training ran out of memory. A failure in here is reported and not raised.

    It comes first, because everything else after such an error needs memory itself. `describe_out_of_memory` gets the
    facts of the training.
    """
    try:
        if not is_out_of_memory(error):
            return
        report = describe_out_of_memory(error, source, **facts)
        path = None
        if errors.folder is not None:
            report = replace(report, snapshot=_save_snapshot(errors.folder, report.rank, report.device))
            path = write_out_of_memory(errors.folder, report)
        for line in out_of_memory_lines(report, path, name=errors.name) if show != "none" else ():
            print_line(line)
    except Exception as failure:
        errors.report("the report on missing memory is incomplete", failure)


def describe_out_of_memory(
    error: BaseException,
    source: TensorSource,
    *,
    rank: int,
    step: int | None,
    batch_size: int | None = None,
    precision: str = "",
) -> OutOfMemory:
    """Describe the state of a training at the moment of an error. A part that cannot be read is left out.

    `precision` is the Trainer's option, and empty if that is not known.
    """
    cause = next((cause for cause in _causes(error) if _says_so(cause)), error)
    text = str(cause)
    on_device = isinstance(cause, torch.OutOfMemoryError)
    found = _DEVICE.search(text)
    ordinal = int(found[1]) if found else 0
    frames = [frame for frame, _ in traceback.walk_tb(cause.__traceback__)]
    module, module_class = _module(frames, source)
    report = OutOfMemory(
        rank=rank,
        step=step,
        phase=_phase(frames),
        module=module,
        module_class=module_class,
        device=f"cuda:{ordinal}" if on_device else "cpu",
        asked_bytes=_size(_ASKED, text),
        limit_bytes=_size(_ALLOWED, text),
        message=(text.splitlines() or [type(cause).__name__])[0][:_MAX_MESSAGE],
        batch_size=batch_size,
        **_listed(source, ordinal if on_device else -1),
        **_allocator(ordinal if on_device else None),
        tensors=_largest(f"cuda:{ordinal}" if on_device else "cpu"),
    )
    return replace(report, fixes=_fixes(report, _mixed(precision), can_shard=torch.cuda.device_count() > 1))


def out_of_memory_lines(report: OutOfMemory, path: Path | None, *, name: str = "PerfCallback") -> tuple[str, ...]:
    """Return the report as a few lines of text. Without `path` it was not saved."""
    known = [f"{name} {format_bytes(size)}" for name, size in report.sizes]
    if report.batch_size is not None:
        known.append(f"batch size {report.batch_size}")
    return (
        f"{name}: {report.sentence}",
        *((f"  Memory: {', '.join(known)}.",) if known else ()),
        *((f"  {report.largest}",) if report.largest else ()),
        *(f"  Fix: {fix}" for fix in report.fixes[:1]),
        *(f"  Or: {fix}" for fix in report.fixes[1:]),
        *((f"  Saved: {path}",) if path is not None else ()),
        *(
            (f"  Who held it: lightning-perf analyze {shlex.quote(str(path.with_name(report.snapshot)))}",)
            if path is not None and report.snapshot is not None
            else ()
        ),
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Return an error and those that led to it."""
    following: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if following is not None:
            yield following
            following = following.__cause__ or following.__context__


def _says_so(error: BaseException) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _HOST_TEXTS)


def _size(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return int(float(found[1]) * _UNITS[found[2]]) if found else None


def _phase(frames: list[FrameType]) -> MemoryPhase:
    return _KNOWN_PHASES.get(training_phase(frames).partition(",")[0], "other")


def _module(frames: list[FrameType], source: TensorSource) -> tuple[str | None, str | None]:
    """Return name and class of the innermost module in its forward."""
    for frame in reversed(frames):
        owner = frame.f_locals.get(next(iter(frame.f_code.co_varnames), ""))  # whatever its name is
        if frame.f_code.co_name == "forward" and isinstance(owner, torch.nn.Module):
            model, _ = source()
            if not isinstance(model, torch.nn.Module):
                return type(owner).__name__, type(owner).__name__
            names = (name for name, module in model.named_modules() if module is owner)
            return next(names, type(owner).__name__), type(owner).__name__
    return None, None


def _listed(source: TensorSource, device: int) -> dict[str, Any]:
    try:
        lists = list_tensors(source)
    except Exception:  # parameters may be of any class
        return {}
    return {
        f"{kind}_bytes": sum({address: size for place, address, size in blocks if place == device}.values())
        for kind, blocks in lists.items()
        if kind != "lightning_perf"
    }


def _largest(device: str) -> tuple[TensorGroup, ...]:
    with suppress(Exception):  # tensors may be of any class
        groups = [each for each in count_tensors(Tracked()) if each.device == device][:_MAX_GROUPS]
        return tuple(each for each in groups if each.bytes >= _LEAST_GROUP * groups[0].bytes)
    return ()


def _allocator(ordinal: int | None) -> dict[str, Any]:
    with suppress(Exception):  # the driver may refuse any call now
        if ordinal is None:
            return {"free_bytes": free_bytes() or None}
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            free, total = torch.cuda.mem_get_info(ordinal)
            return {
                "allocated_bytes": torch.cuda.memory_allocated(ordinal),
                "reserved_bytes": torch.cuda.memory_reserved(ordinal),
                "free_bytes": free,
                "total_bytes": total,
            }
    return {}


def _save_snapshot(folder: Path, rank: int, device: str) -> str | None:
    """Save a snapshot of the GPU's allocator, and return its file name; None without a GPU or if that fails."""
    if device == "cpu" or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    path = folder / f"memory.rank{rank}.pickle"
    try:
        torch.cuda.memory._dump_snapshot(str(path))  # type: ignore[no-untyped-call]  # private, without a public equal
    except Exception:
        path.unlink(missing_ok=True)
        return None
    return path.name


def _mixed(precision: str) -> str:
    """Return the mixed precision that the device has; empty if the training has less than 32 bits already."""
    if "16" in precision or "transformer-engine" in precision:
        return ""
    device_has_bf16 = not torch.cuda.is_available() or torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16-mixed" if device_has_bf16 else "16-mixed"


def _fixes(report: OutOfMemory, mixed: str = "bf16-mixed", *, can_shard: bool = True) -> tuple[str, ...]:
    """Return the changes that reduce the memory, the most promising first. `mixed` is a precision, or empty."""
    fixes = [*_fix_of_kept(report), *_fix_of_limit(report)]
    available = report.total_bytes or report.free_bytes
    if report.asked_bytes is not None and available is not None and report.asked_bytes > available:
        fixes.append(
            f"Check the shape of this one tensor: it takes {format_bytes(report.asked_bytes)}, and only "
            f"{format_bytes(available)} {'exist' if report.total_bytes else 'are free'}."
        )
    if report.reserved_bytes is not None and report.allocated_bytes is not None and report.asked_bytes is not None:
        unused = report.reserved_bytes - report.allocated_bytes
        if unused >= report.asked_bytes:
            fixes.append(
                f"Set PYTORCH_ALLOC_CONF=expandable_segments:True: {format_bytes(unused)} are reserved, but in pieces "
                "that are too small."
            )
    kinds = (report.parameters_bytes or 0, report.gradients_bytes or 0, report.optimizer_state_bytes or 0)
    if available and kinds[2] >= _STATE_SHARE * available:
        fixes.append(
            f"Reduce the optimizer state ({format_bytes(kinds[2])}): use an 8-bit optimizer such as "
            f"torchao.optim.AdamW8bit{', or shard it with ' + FSDP if can_shard else ''}."
        )
    fixes.append(_fix_of_phase(report, mixed, can_shard=can_shard))
    return tuple(fixes)


FSDP = 'Trainer(strategy="fsdp")'

_KEPT_SHARE = 0.3
"""From this share of all tensors on, several tensors of one shape are worth a fix of their own."""


def _fix_of_kept(report: OutOfMemory) -> Iterator[str]:
    """Name tensors that the program keeps: more of one shape than model, gradients and optimizer can have."""
    trained = sum(filter(None, (report.parameters_bytes, report.gradients_bytes, report.optimizer_state_bytes)))
    for each in report.tensors[:1]:
        if each.count > 1 and each.bytes > max(trained, _KEPT_SHARE * (report.allocated_bytes or float("inf"))):
            shape = each.kind.partition(" ")[2]
            yield (
                f"Find the list or attribute that keeps {each.count:,} tensors {shape} ({format_bytes(each.bytes)}): "
                "they are not those of the model or the optimizer. If their number grows, drop them after each step."
            )


def _fix_of_limit(report: OutOfMemory) -> Iterator[str]:
    if report.limit_bytes is not None and (report.free_bytes or 0) > (report.asked_bytes or 0):
        yield (
            f"Raise the limit of this process, {format_bytes(report.limit_bytes)}: another "
            f"{format_bytes(report.free_bytes or 0)} of the device are free. "
            "See torch.cuda.set_per_process_memory_fraction."
        )


def _fix_of_phase(report: OutOfMemory, mixed: str, *, can_shard: bool) -> str:
    smaller = "Halve batch_size"
    if report.batch_size is not None and report.batch_size > 1:
        smaller += f" to {report.batch_size // 2}"
    loading = f"{smaller}, or lower prefetch_factor and num_workers in DataLoader(…)."
    use_mixed = f' use Trainer(precision="{mixed}"),' if mixed else ""
    fixes = {
        "validation": f"{smaller} of the validation loader, and do not keep outputs of validation_step.",
        "optimizer": "Use a fused optimizer such as torch.optim.AdamW(…, fused=True)"
        + (f", or shard with {FSDP}." if can_shard else "."),
        "fetch": loading,
        "transfer": loading,
        "checkpoint": f'Save sharded checkpoints: {FSDP} with state_dict_type="sharded".'
        if can_shard
        else "Save only the weights: ModelCheckpoint(save_weights_only=True).",
    }
    activations = (
        f"{smaller} and set Trainer(accumulate_grad_batches=2),{use_mixed} or checkpoint activations with "
        "torch.utils.checkpoint."
    )
    return fixes.get(report.phase, activations)
