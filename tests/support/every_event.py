"""A trace with every kind of event."""

from __future__ import annotations

import json
from typing import Any

from tests.support.trace_builder import TraceBuilder


def everything(origin_us: float = 0.25) -> str:
    """A trace with every kind of event, whose names, threads and texts first occur at different places."""
    builder = TraceBuilder().rank(1, 2).gpu("NVIDIA A100")
    for number in range(400):
        at = origin_us + 100 * number
        thread = 1 + number % 7
        builder.step(number, at, 90, thread=1).thread_name(f"thread {number % 11}", thread=thread)
        inputs: dict[str, Any] = {"types": ["float", f"T{number % 5}"], "dims": [[number % 9, 3], []]}
        strides: dict[str, Any] = {"Input Strides": [[number % 4, 1]], "Concrete Inputs": ["", str(number % 6)]}
        builder.op(f"aten::op{number % 97}", at + 1, 9, thread=thread, sequence=number, **inputs, **strides)
        builder.python(f"f{number // 3}", at, 5, thread=thread).annotation(f"mark {number % 13}", at + 2, 3)
        nccl: dict[str, Any] = {
            "Collective name": "allreduce",
            "dtype": "Float",
            "In msg nelems": number,
            "Group size": 2,
        }
        region: dict[str, Any] = {"graph node id": number + 1, "annotation": [{"name": f"region {number % 4}"}]}
        name = "ncclDevKernel" if number % 3 == 0 else f"kernel {number % 31}"
        builder.launch(
            name,
            call_us=at + 4,
            call_duration_us=2,
            start_us=at + 9,
            duration_us=7,
            grid=[number % 8 + 1, 1, 1],
            block=[32, 1, 1],
            **region,
            **(nccl if number % 3 == 0 else {}),
        )
        builder.memcpy("HtoD", at + 20, 3, bytes=number).memory(at + 6, 512 + number, thread=thread)
        builder.event(ph="C", name="Power (W)", pid="GPU 0 Counters", ts=at, args={"Power (W)": number / 7})
        builder.event(ph="X", cat=f"odd{number % 3}", name="?", pid=f"p{number % 2}", tid=1, ts=at, dur=1)
        builder.event(ph="M", name="process_name", pid=f"p{number % 2}", args={"name": f"process {number}"})
    return json.dumps(builder.document())
