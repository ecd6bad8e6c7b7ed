"""What a window records, and the torch profiler that records it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from torch.profiler import ProfilerActivity, profile

from lightning_perf.processor import processor_facts
from lightning_perf.trace.metadata import PROCESSOR_KEY

__all__ = ["RecordingOptions", "new_recorder"]

_ACTIVITIES = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU}


@dataclass(frozen=True, kw_only=True)
class RecordingOptions:
    """What `torch.profiler.profile` records beside times; the names are its own.

    Attributes:
        record_shapes: Shapes and types of operator inputs.
        profile_memory: Allocations and frees.
        with_stack: The Python code that called each operator.
        with_flops: Floating-point operations of matrix products and convolutions, by formula.
    """

    record_shapes: bool = True
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False


def new_recorder(options: RecordingOptions, device_type: str, page_faults: float | None = None) -> profile:
    """Make a profiler for one window, with no schedule of its own.

    Args:
        options: What to record.
        device_type: Type of the device that trains (``"cpu"``, ``"cuda"``, …); beside the host, it is recorded where
            torch has a recorder for it.
        page_faults: Of a step before, where they were counted.

    Returns:
        The profiler, at rest.
    """
    # It logs each start and stop, and that a machine has no GPU, as if they were errors.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    # Without it CUPTI stays attached after the window and slows down every later step (pytorch#144455).
    os.environ.setdefault("TEARDOWN_CUPTI", "1")
    device = [_ACTIVITIES[device_type]] if device_type in _ACTIVITIES else []
    recorder = profile(
        activities=[ProfilerActivity.CPU, *device],
        record_shapes=options.record_shapes,
        profile_memory=options.profile_memory,
        with_stack=options.with_stack,
        with_flops=options.with_flops,
    )
    processor = processor_facts(trains=device_type == "cpu", page_faults=page_faults)
    recorder.preset_metadata_json(PROCESSOR_KEY, json.dumps(processor))
    return recorder
