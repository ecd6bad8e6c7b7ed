"""A second step-time breakdown, straight from the JSON: a sweep over all begins and ends with counters.

It shares no code with the real one: neither the reader, nor the links, nor the windows, nor the tables of names.
"""

import gzip
import json
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

__all__ = ["naive_breakdown"]

ORDER = (
    "device_compute", "communication", "memcpy_h2d", "memcpy_d2h", "memcpy_d2d", "memcpy_p2p", "memcpy_unknown",
    "memset", "input", "kernel_launch", "runtime_sync", "runtime_alloc", "runtime_other", "host_compute", "host_other",
)  # fmt: skip

_LAUNCH_WORDS = ("LaunchKernel", "LaunchCooperativeKernel", "GraphLaunch", "ModuleLaunch")
_ALLOC_WORDS = ("Malloc", "Free", "HostAlloc", "HostRegister", "HostUnregister", "MemCreate", "MemMap", "MemUnmap",
                "MemSetAccess", "MemRelease", "MemAddress")  # fmt: skip
_COMMUNICATION_WORDS = ("nccl", "multimem_all_reduce")
_FETCHES = ("enumerate(DataLoader)", "perf::fetch")
_COPY_WORDS = {"HtoD": "h2d", "HostToDevice": "h2d", "DtoH": "d2h", "DeviceToHost": "d2h", "DtoD": "d2d",
               "DeviceToDevice": "d2d", "PtoP": "p2p"}  # fmt: skip


def naive_breakdown(path: Path) -> list[tuple[int, int, dict[str, int]]]:
    """Begin, end and nanoseconds by category of each step of a sound trace file."""
    data = path.read_bytes()
    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    read = json.loads(text, strict=False, parse_float=Decimal)
    document: dict[str, Any] = {"traceEvents": read} if isinstance(read, list) else read
    base = int(document.get("baseTimeNanoseconds") or 0)
    events: defaultdict[str, list[tuple[int, int, str, dict[str, Any], Any]]] = defaultdict(list)
    for event in document["traceEvents"]:
        if event.get("ph") == "X" and event.get("dur") is not None and event["dur"] >= 0:
            begin = round(Decimal(event["ts"]) * 1000) + base
            end = begin + round(Decimal(event["dur"]) * 1000)
            thread = event.get("pid"), event.get("tid")
            found = begin, end, event["name"], event.get("args") or {}, thread
            events[_table(event.get("cat") or "", event["name"])].append(found)
    runtime, device = events["runtime"], events["kernel"] + events["memcpy"] + events["memset"]
    calls: defaultdict[int, list[int]] = defaultdict(list)
    for row, call in enumerate(runtime):
        calls[int(call[3].get("correlation", 0))].append(row)
    calls.pop(0, None)
    started_by = {}
    for row, work in enumerate(device):
        candidates = sorted(calls.get(int(work[3].get("correlation", 0)), []), key=lambda call: runtime[call][0])
        earlier = [call for call in candidates if runtime[call][0] <= work[0]]
        if candidates:
            started_by[row] = earlier[-1] if earlier else candidates[0]
    windows, thread = _windows(events, runtime, device, started_by)
    copies = range(len(events["kernel"]), len(events["kernel"]) + len(events["memcpy"]))
    launching = {call for row, call in started_by.items() if row not in copies}
    copying = {call for row, call in started_by.items() if row in copies}
    active = [
        *((b, e, _kernel(name)) for b, e, name, _, _ in events["kernel"]),
        *((b, e, "memcpy_" + _direction(name, args)) for b, e, name, args, _ in events["memcpy"]),
        *((b, e, "memset") for b, e, *_ in events["memset"]),
        *((b, e, "input") for b, e, name, _, by in events["mark"] if name.startswith(_FETCHES) and by == thread),
        *((b, e, "host_compute") for b, e, *_ in events["operator"]),
    ]
    blocking = {call for row, call in started_by.items() if device[row][2].endswith("-> Pageable)")}
    for row, (begin, end, name, _, _) in enumerate(runtime):
        if row in blocking:
            active.append((begin, end, "runtime_sync"))
            continue
        starts_work = row in launching or (row not in copying and any(word in name for word in _LAUNCH_WORDS))
        active.append((begin, end, "kernel_launch" if starts_work else _call(name)))
    return _sweep(active, windows)


def _table(category: str, name: str) -> str:
    category = category.lower()
    if category in ("cpu_op", "operator", "user_annotation"):
        mark = re.match(r"ProfilerStep#|enumerate\(DataLoader\)|Optimizer\.", name) or category == "user_annotation"
        return "mark" if mark else "operator"
    if category in ("cuda_runtime", "cuda_driver", "runtime"):
        return "runtime"
    return category.removeprefix("gpu_") if category.removeprefix("gpu_") in ("kernel", "memcpy", "memset") else "other"


def _kernel(name: str) -> str:
    known = any(word in name.lower() for word in _COMMUNICATION_WORDS)
    return "communication" if known else "device_compute"


def _direction(name: str, args: dict[str, Any]) -> str:
    text = f"{name} {args.get('kind', '')}"
    return next((short for word, short in _COPY_WORDS.items() if word in text), "unknown")


def _call(name: str) -> str:
    blocking_copy = "Memcpy" in name and not name.endswith("Async")
    if name.endswith("Synchronize") or blocking_copy:
        return "runtime_sync"
    return "runtime_alloc" if any(word in name for word in _ALLOC_WORDS) else "runtime_other"


def _windows(
    events: dict[str, list[Any]], runtime: list[Any], device: list[Any], started_by: dict[int, int]
) -> tuple[list[tuple[int, int]], Any]:
    marks = sorted((b, e, by) for b, e, name, _, by in events["mark"] if re.fullmatch(r"ProfilerStep#\d+", name))
    if not marks:
        worked = events["operator"] + device
        thread = next((by for _, _, name, _, by in events["mark"] if name.startswith("Optimizer.")), None)
        return [(min(row[0] for row in worked), max(row[1] for row in worked))], thread
    begins = [begin for begin, _, _ in marks]
    own: defaultdict[int, list[int]] = defaultdict(list)
    for row, call in started_by.items():
        step = bisect_right(begins, runtime[call][0]) - 1
        if step >= 0 and runtime[call][0] <= marks[step][1]:
            own[step].append(row)
    launched = {row for rows in own.values() for row in rows}
    first = min((device[row][0] for row in own[0]), default=None)
    last = 0
    if first is not None:
        last = max((w[1] for row, w in enumerate(device) if row not in launched and w[0] < first), default=0)
    windows = []
    for step, (begin, end, _) in enumerate(marks):
        begin = max(begin, last)
        last = max(end, begin, *(device[row][1] for row in own[step]))
        windows.append((begin, last))
    return windows, marks[0][2]


def _sweep(active: list[tuple[int, int, str]], windows: list[tuple[int, int]]) -> list[tuple[int, int, dict[str, int]]]:
    changes: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for begin, end, category in active:
        if end > begin:
            changes[begin][category] += 1
            changes[end][category] -= 1
    for begin, end in windows:
        changes[begin], changes[end]  # a moment to look at, even if nothing changes
    moments = sorted(changes)
    spent = [dict.fromkeys(ORDER, 0) for _ in windows]
    now: Counter[str] = Counter()
    step = 0
    for moment, following in zip(moments, [*moments[1:], moments[-1]], strict=True):
        now.update(changes[moment])
        while step < len(windows) and windows[step][1] <= moment:
            step += 1
        if step < len(windows) and windows[step][0] <= moment:
            spent[step][next((name for name in ORDER if now[name] > 0), "host_other")] += following - moment
    return [(begin, end, times) for (begin, end), times in zip(windows, spent, strict=True)]
