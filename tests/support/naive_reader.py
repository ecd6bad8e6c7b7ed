"""A second reader, written for clarity alone: the standard library's JSON, one event at a time, no NumPy until the end.

It shares no code with the real one but the column types, and is what that one is compared with on real traces.
"""

import gzip
import json
import os
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from lightning_perf.trace.columns import (
    Annotations,
    Collectives,
    Counters,
    DeviceEvents,
    DeviceKind,
    GraphRegions,
    MemoryEvents,
    Operators,
    RuntimeCalls,
    Spans,
    Thread,
)
from lightning_perf.trace.description import DeviceProperties, Metadata, Problems
from lightning_perf.trace.trace import Trace

__all__ = ["read_naively"]

_OPERATOR = {"cpu_op", "operator"}
_RUNTIME = {"cuda_runtime", "cuda_driver", "runtime"}
_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
_MARK = re.compile(r"ProfilerStep#|enumerate\(DataLoader\)#|Optimizer\.(?:step|zero_grad)#")
_COLLECTIVE = re.compile(
    r"nccl|rccl|multimem_(?:all|one)|(?:one|two)_shot_all|cross_device_reduce|nvshmem|mscclpp", re.I
)
_DIRECTION = {
    "HtoD": DeviceKind.H2D,
    "DtoH": DeviceKind.D2H,
    "DtoD": DeviceKind.D2D,
    "PtoP": DeviceKind.P2P,
}


class _Codes(dict[Any, int]):
    def __missing__(self, key: Any) -> int:
        self[key] = code = len(self)
        return code


def _ns(value: Decimal | int) -> int:
    return round(value * 1000)


def _int(value: Any, default: int = -1) -> int:
    if isinstance(value, bool):
        return default
    if isinstance(value, int | Decimal):
        return int(value)
    if isinstance(value, str):
        digits = re.search(r"-?\d+$", value)
        return int(digits.group()) if digits else default
    return default


def _kind(name: str, cat: str, args: dict[str, Any]) -> DeviceKind:
    if "memset" in cat:
        return DeviceKind.MEMSET
    if "memcpy" in cat:
        found = re.search(r"(Hto[DH]|Dto[HD]|PtoP)", f"{name} {args.get('kind', '')}")
        return _DIRECTION.get(found.group(1), DeviceKind.COPY) if found else DeviceKind.COPY
    return DeviceKind.COLLECTIVE if _COLLECTIVE.search(name) else DeviceKind.COMPUTE


def _packed(sizes: list[int] | None) -> int:
    x, y, z = [*(sizes or []), 1, 1, 1][:3]
    return x << 32 | y << 16 | z if sizes and min(x, y, z) > 0 and max(y, z) < 1 << 16 else 0


def _table(cls: Any, fields: dict[str, Any], rows: list[tuple[Any, ...]]) -> Any:
    rows.sort(key=lambda row: (row[0], -row[1]))
    columns: list[Any] = list(zip(*rows, strict=True)) or [[] for _ in fields]
    return cls(**{name: np.array(c, dtype=t) for (name, t), c in zip(fields.items(), columns, strict=True)})


_SPAN = {"start_ns": np.int64, "end_ns": np.int64, "name": np.int32, "thread": np.int32}


def read_naively(path: str | os.PathLike[str]) -> Trace:
    """Read a sound trace file."""
    data = Path(path).read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    document = json.loads(data.decode("utf-8-sig"), strict=False, parse_float=Decimal)
    top: Any = {"traceEvents": document} if isinstance(document, list) else document
    events = top.get("traceEvents") if isinstance(top, dict) else None
    assert isinstance(events, list)
    base = int(top.get("baseTimeNanoseconds") or 0)
    names, threads = _Codes(), _Codes()
    types, shapes, stride_lists = _Codes({"": 0}), _Codes({"": 0}), _Codes({"": 0})
    value_lists = _Codes({"": 0})
    thread_names: dict[tuple[str, str], str] = {}
    ops: list[Any] = []
    spans: list[Any] = []
    python: list[Any] = []
    runtime: list[Any] = []
    device: list[Any] = []
    memory: list[Any] = []
    bad = 0

    def inputs(args: dict[str, Any]) -> tuple[int, int]:
        dims, kinds = args.get("Input Dims") or args.get("Input dims"), args.get("Input type")
        return (
            types[json.dumps(kinds, separators=(",", ":"))] if kinds else 0,
            shapes[json.dumps(dims, separators=(",", ":"))] if dims else 0,
        )

    for event in events:
        if not isinstance(event, dict):
            bad += 1
            continue
        ph, cat, name = event.get("ph"), str(event.get("cat") or "").lower(), str(event.get("name") or "")
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        key = (str(event.get("pid")), str(event.get("tid")))
        if ph == "M" and name == "thread_name":
            thread_names[key] = str(args.get("name") or "")
        elif ph == "i" and name == "[memory]":
            kind = {6: 1}.get(_int(args.get("Device Type")), _int(args.get("Device Type")))
            memory.append(
                (
                    _ns(event["ts"]) + base, 0, threads[key], kind, _int(args.get("Device Id")),
                    _int(args.get("Addr"), 0), _int(args.get("Bytes"), 0), _int(args.get("Total Allocated")),
                    _int(args.get("Total Reserved")),
                )
            )  # fmt: skip
        elif ph == "X" and cat in _OPERATOR | _RUNTIME | _DEVICE | {"user_annotation", "python_function"}:
            ts, dur = event.get("ts"), event.get("dur")
            if not isinstance(ts, int | Decimal) or not isinstance(dur, int | Decimal) or dur < 0:
                bad += 1
                continue
            start = _ns(ts) + base
            end = start + _ns(dur)
            if cat in _DEVICE:
                grid = args.get("grid") or [0]
                occupancy = args.get("est. achieved occupancy %")
                device.append(
                    (
                        start, end, names[name], _kind(name, cat, args), _int(args.get("device", event.get("pid")), 0),
                        _int(args.get("stream", event.get("tid"))), _int(args.get("correlation")),
                        _int(args.get("bytes"), 0), int(np.prod(grid)),
                        float(args.get("blocks per SM", "nan")), float("nan" if occupancy is None else occupancy) / 100,
                        _packed(args.get("grid")), _packed(args.get("block")),
                        _int(args.get("registers per thread")), _int(args.get("shared memory")), args,
                    )
                )  # fmt: skip
                continue
            span = (start, end, names[name], threads[key])
            if cat in _RUNTIME:
                runtime.append((*span, _int(args.get("correlation"))))
            elif cat == "user_annotation" or (cat in _OPERATOR and _MARK.match(name)):
                spans.append((*span, args.get("finished", True) not in (False, "false"), *inputs(args)))
            elif cat == "python_function":
                python.append(span)
            else:
                strides = args.get("Input Strides")
                values = args.get("Concrete Inputs")
                ops.append(
                    (
                        *span,
                        *inputs(args),
                        stride_lists[json.dumps(strides, separators=(",", ":"))] if strides else 0,
                        value_lists[json.dumps(values, separators=(",", ":"))] if values else 0,
                        _int(args.get("Sequence number")), _int(args.get("Fwd thread id"), 0),
                        _int(args.get("flops", args.get("Flops")), 0),
                    )
                )  # fmt: skip
    device.sort(key=lambda row: (row[0], -row[1]))
    carried = [row[-1] for row in device]
    device = [row[:-1] for row in device]
    collectives = [
        (
            row, names[str(args["Collective name"])], names[str(args.get("dtype", ""))],
            names[str(args.get("Process Group Name", ""))], _int(args.get("In msg nelems"), 0),
            _int(args.get("Out msg nelems"), 0), _int(args.get("Group size"), 0),
        )
        for row, args in enumerate(carried)
        if "Collective name" in args
    ]  # fmt: skip
    nothing: Any = np.empty(0, dtype=np.int64)
    i64, i32, i16, f32 = np.int64, np.int32, np.int16, np.float32
    memory_columns: list[Any] = list(zip(*sorted(memory), strict=True)) or [[]] * 9
    memory_columns.pop(1)
    collective_columns: list[Any] = list(zip(*collectives, strict=True)) or [[]] * 7
    return Trace(
        sources=(str(path),),
        names=tuple(names),
        threads=tuple(Thread(process, thread, thread_names.get((process, thread), "")) for process, thread in threads),
        type_lists=tuple(types),
        shape_lists=tuple(shapes),
        stride_lists=tuple(stride_lists),
        value_lists=tuple(value_lists),
        operators=_table(
            Operators,
            _SPAN
            | {
                "input_types": i32,
                "input_shapes": i32,
                "input_strides": i32,
                "input_values": i32,
                "sequence": i64,
                "forward_thread": i32,
                "flops": i64,
            },
            ops,
        ),
        annotations=_table(Annotations, _SPAN | {"finished": np.bool_, "input_types": i32, "input_shapes": i32}, spans),
        python=_table(Spans, _SPAN, python),
        runtime=_table(RuntimeCalls, _SPAN | {"correlation": i64}, runtime),
        device=_table(
            DeviceEvents,
            {
                "start_ns": i64,
                "end_ns": i64,
                "name": i32,
                "kind": np.uint8,
                "device": i16,
                "stream": i64,
                "correlation": i64,
                "bytes": i64,
                "grid_blocks": i64,
                "blocks_per_sm": f32,
                "occupancy": f32,
                "grid": i64,
                "block": i64,
                "registers": i32,
                "shared_bytes": i32,
            },
            device,
        ),
        collectives=Collectives(
            *(
                np.array(c, dtype=t)
                for c, t in zip(collective_columns, [i32, i32, i32, i32, i64, i64, i32], strict=True)
            )
        ),
        memory=MemoryEvents(
            *(
                np.array(c, dtype=t)
                for c, t in zip(memory_columns, [i64, i32, i16, i16, i64, i64, i64, i64], strict=True)
            )
        ),
        regions=GraphRegions(*[nothing] * 3),
        counters=Counters(*[nothing] * 4),
        metadata=_metadata(top, base),
        problems=Problems(bad_durations=bad),
    )


def _metadata(top: dict[str, Any], base: int) -> Metadata:
    ranks = top.get("distributedInfo") or {}
    return Metadata(
        devices=tuple(
            DeviceProperties(
                ordinal=d["id"],
                name=d.get("name"),
                total_memory_bytes=d.get("totalGlobalMem"),
                compute_major=d.get("computeMajor"),
                compute_minor=d.get("computeMinor"),
                sm_count=d.get("numSms"),
                warp_size=d.get("warpSize"),
                max_threads_per_sm=d.get("maxThreadsPerMultiprocessor"),
            )
            for d in top.get("deviceProperties") or []
        ),
        rank=ranks.get("rank"),
        world_size=ranks.get("world_size"),
        backend=ranks.get("backend"),
        hostname=top.get("host_name"),
        base_time_ns=base,
        record_shapes=bool(top["record_shapes"]) if "record_shapes" in top else None,
        with_stack=bool(top["with_stack"]) if "with_stack" in top else None,
        profile_memory=bool(top["profile_memory"]) if "profile_memory" in top else None,
        with_flops=bool(top["with_flops"]) if "with_flops" in top else None,
        with_modules=bool(top["with_modules"]) if "with_modules" in top else None,
        runtime_version=top.get("cuda_runtime_version", top.get("hip_runtime_version")),
        is_hip="hip_runtime_version" in top or "roctracer_version" in top,
    )
