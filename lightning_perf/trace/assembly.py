"""Sorts events into tables by their category and name."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from math import isfinite
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from lightning_perf.trace.column_builders import (
    FLOAT_EXACT_BELOW_US,
    InexactTimeError,
    JsonTexts,
    Names,
    RawTexts,
    Rows,
    Threads,
)
from lightning_perf.trace.columns import CODED_COLUMNS, DeviceKind, matched_part
from lightning_perf.trace.text.events import FAULTS, NO_RAW, Args, Complete, Label


class Destination(Enum):
    """The table that an event belongs to. Kernels, copies and memsets have one in common."""

    OPERATOR = "operators"
    ANNOTATION = "annotations"
    PYTHON = "python"
    RUNTIME = "runtime"
    KERNEL = "kernel"
    COPY = "copy"
    MEMSET = "memset"


# Kineto's activity names (libkineto/src/ActivityType.cpp), and those of its versions of 2020–2021, in lower case.
_CATEGORIES: dict[Destination, tuple[str, ...]] = {
    Destination.OPERATOR: ("cpu_op", "operator", "hpu_op"),
    Destination.ANNOTATION: ("user_annotation",),
    Destination.PYTHON: ("python_function", "python function"),
    Destination.RUNTIME: (
        "cuda_runtime", "cuda_driver", "runtime", "driver", "hip_runtime", "hip_driver", "xpu_runtime", "xpu_driver",
        "mtia_runtime", "privateuse1_runtime", "privateuse1_driver", "glow_runtime",
    ),
    Destination.KERNEL: ("kernel", "concurrent_kernel"),
    Destination.COPY: ("gpu_memcpy", "memcpy"),
    Destination.MEMSET: ("gpu_memset", "memset"),
}  # fmt: skip
_DESTINATIONS = {category: destination for destination, categories in _CATEGORIES.items() for category in categories}

# Before the category user_annotation existed, these ranges were written as operators (torch-tb-profiler, trace.py).
_ANNOTATION = re.compile(r"ProfilerStep#|enumerate\(DataLoader\)#|Optimizer\.(?:step|zero_grad)#")

_COLLECTIVE = re.compile(
    # NCCL and RCCL (ncclDevKernel_…, ncclKernel_…, rccl_…), MSCCL++, oneCCL, NVSHMEM and its barriers on a stream
    r"nccl|rccl|mscclpp|mscclkernel|oneccl|nvshmem|_on_stream_kernel"
    # Experts on several devices: DeepEP, mangled or not, its forks under other namespaces (DeepSeek's own recordings
    # have ``dpsk::ep::internode::dispatch``), TensorRT-LLM's and AMD's MORI
    r"|deep_ep|\b(?:intra|inter)node(?:_ll)?::\w*(?:dispatch|combine|notify|barrier)|moea2a"
    r"|ep(?:dispatch|combine)(?:intra|inter)node"
    # PyTorch's symmetric memory (torch/csrc/distributed/c10d/CUDASymmetricMemoryOps.cu) and TensorRT-LLM's, vLLM's
    r"|multimem_(?:all|one_shot|reduce)|(?:one|two)_shot_all_(?:reduce|gather)|cross_device_reduce|oneshotallreduce"
    r"|twoshotallreduce|allreduce_fusion_kernel|quickreduce|lamport|(?:put|wait)_signal_kernel"
    # Any function named after a collective, before its template arguments. Inductor's ``triton_poi_fused_all_reduce``
    # copies the result of a collective.
    r"|^(?!triton_)(?:void )?(?:\(anonymous namespace\)|[^<(])*?"
    r"(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)",
    re.IGNORECASE,
)

# CUPTI's `Memcpy HtoD`, AMD's `HostToDevice`, Intel's `Memcpy M2D` (M: host memory that the driver did not allocate).
_DIRECTION = re.compile(r"(?P<source>Host|Device|[HDPM])(?:To|to|2)(?P<target>Host|Device|[HDPM])")
_DIRECTIONS = {
    "HD": DeviceKind.H2D,
    "MD": DeviceKind.H2D,
    "DH": DeviceKind.D2H,
    "DM": DeviceKind.D2H,
    "DD": DeviceKind.D2D,
    "PP": DeviceKind.P2P,
}


_NO_WORK = frozenset({
    "trace", "gpu_user_annotation", "cuda_sync", "cuda_profiler_range", "cpu_instant_event", "collective_comm",
    "external_correlation", "python_gc",
})  # fmt: skip
"""Categories of Kineto that describe other events, or copies of the host's marks on the timeline of the device."""

_OVERHEAD = "overhead"


@lru_cache
def destination(category: str) -> Destination | None:
    """Return the table for a category, old or new, in any case; None for one without a table."""
    return _DESTINATIONS.get(category.lower())


def is_annotation_name(name: str) -> bool:
    """Return whether an operator of this name is really a range that the framework marked (in old recordings)."""
    return _ANNOTATION.match(matched_part(name)) is not None


def device_kind(destination: Destination, name: str, direction: str) -> DeviceKind:
    """Classify a piece of device work. The arguments of AMD's copies give the direction."""
    if destination is Destination.MEMSET:
        return DeviceKind.MEMSET
    name, direction = matched_part(name), matched_part(direction)
    if destination is Destination.KERNEL:
        return DeviceKind.COLLECTIVE if _COLLECTIVE.search(name) else DeviceKind.COMPUTE
    found = _DIRECTION.search(name) or _DIRECTION.search(direction)
    return _DIRECTIONS.get(found["source"][0] + found["target"][0], DeviceKind.COPY) if found else DeviceKind.COPY


LONGEST_VALUES_BYTES = 4096
"""Longer lists of input values are left out: the memory of a trace must not grow with them."""

_DEVICE = (Destination.KERNEL, Destination.COPY, Destination.MEMSET)

# The formats of torch.profiler for counters (torch/profiler/_cuspy/trace.py) and for regions of CUDA graphs
# (torch/profiler/_chrome_trace_export.py), from torch 2.15 on.
_COUNTERS = re.compile(r"GPU (\d{1,4}) Counters")
_BACKWARD = msgspec.Raw(b'"backward"')


def _decoded(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw) if raw else None
    except FAULTS:
        return None


def _region(args: Args) -> str:
    """Return the name of the innermost region around a node of a CUDA graph; empty if it has none."""
    name = _decoded(args.region)
    if name is None and (regions := _decoded(args.regions)) is not None:
        if isinstance(regions, str) and regions.startswith("["):
            regions = _decoded(msgspec.Raw(regions.encode()))
        named = [each.get("name") for each in regions if isinstance(each, dict)] if isinstance(regions, list) else []
        name = next((each for each in reversed(named) if each), None) if named else regions
    return name if isinstance(name, str) else ""


def _stream(event: Complete) -> Label:
    """Return the stream of device work. ``graph_lanes="all"`` moves work of graphs to other streams for display."""
    args = event.args
    if args.original_stream is not None:
        return args.original_stream
    return event.tid if args.stream is None else args.stream


_CODED = CODED_COLUMNS | {"grid": "sizes", "block": "sizes", "direction": "directions"}
"""Columns of codes, and the list that has the meaning of each code."""

_HOST = {"name": "i", "thread": "i"}
_INPUTS = {"input_types": "i", "input_shapes": "i"}
_TABLES: dict[str, dict[str, str]] = {
    "operators": _HOST | _INPUTS | {"input_strides": "i", "input_values": "i"},
    "annotations": _HOST | _INPUTS | {"finished": "b"},
    "python": _HOST,
    "runtime": _HOST,
    "device": {
        "name": "i", "destination": "b", "direction": "i", "device": "i", "stream": "q", "grid": "i", "block": "i",
        "blocks_per_sm": "f", "occupancy_percent": "f",
    },
    "memory": {"thread": "i"},
    "counters": {"name": "i", "device": "i", "value": "d"},
}  # fmt: skip
"""The columns of each table with their types. Those of `_INTEGERS` come after them."""

_INTEGERS: dict[str, dict[str, tuple[str, int]]] = {
    "operators": {"sequence": ("q", -1), "forward_thread": ("i", 0), "flops": ("q", 0)},
    "runtime": {"correlation": ("q", -1)},
    "device": {"correlation": ("q", -1), "bytes": ("q", 0), "registers": ("i", -1), "shared_bytes": ("i", -1)},
    "memory": {
        "device_type": ("i", -1), "device": ("i", -1), "address": ("q", 0), "bytes": ("q", 0),
        "allocated_bytes": ("q", -1), "reserved_bytes": ("q", -1),
    },
}  # fmt: skip
"""Columns of integers that are fields of an event's arguments, with their types and the values of missing ones."""


class AssemblyPart(msgspec.Struct):
    """The rows of some successive pieces, from another process."""

    tables: dict[str, tuple[int, dict[str, bytes]]]
    lists: dict[str, list[Any]]
    thread_names: list[tuple[str, str, str]]
    collectives: list[tuple[int, list[bytes]]]
    regions: list[tuple[int, int, bool]]
    others: list[tuple[str, Any, int]]
    processes: list[tuple[Any, str]]


class Assembly:
    """Collects a recording's events, piece by piece.

    Attributes:
        value_lists: Interned values of inputs that are no tensors.
        sizes: Interned grids and blocks of kernels, as raw text.
        directions: Interned ``kind`` of copies, as raw text.
        operators: Operators; in old recordings annotations as well.
        device: Device work; ``destination`` is a position in `DESTINATIONS`.
        collectives: Facts about collectives in device rows: the row, and the raw texts of name, dtype, group, elements
            in and out, and group size.
        regions: Named regions of CUDA graphs: the device row, the name's code, and whether it is backward work.
    """

    DESTINATIONS = _DEVICE

    def __init__(self, exact: bool) -> None:
        self._exact = exact
        self.names = Names()
        self.threads = Threads()
        self.type_lists = JsonTexts()
        self.shape_lists = JsonTexts()
        self.stride_lists = JsonTexts()
        self.value_lists = JsonTexts()
        self.sizes = RawTexts()
        self.directions = RawTexts()
        rows = {
            table: Rows(exact, **columns, **{name: code for name, (code, _) in _INTEGERS.get(table, {}).items()})
            for table, columns in _TABLES.items()
        }
        self.operators, self.annotations, self.python = rows["operators"], rows["annotations"], rows["python"]
        self.runtime, self.device = rows["runtime"], rows["device"]
        self.memory, self.counters = rows["memory"], rows["counters"]
        self.collectives: list[tuple[int, list[bytes]]] = []
        self.regions: list[tuple[int, int, bool]] = []
        self._others: Counter[tuple[str, object]] = Counter()
        self._processes: dict[object, str] = {}

    def add(self, events: Sequence[Any]) -> None:
        """Sort decoded events into rows.

        Raises:
            InexactTimeError: The file's times have to be read as decimals.
        """
        groups: defaultdict[str, list[Any]] = defaultdict(list)
        for event in events:
            groups[event.cat].append(event)
        for category, group in groups.items():
            if category == "instant":
                self._add_memory([event for event in group if event.name == "[memory]"])
            elif category == "counter":
                self._add_counters(group)
            elif category == "metadata":
                self._add_thread_names(group)
            elif (target := destination(category)) is not None:
                self._add_group(target, group)
            elif category != "other" and category.lower() not in _NO_WORK:
                self._others.update((category.lower(), event.pid) for event in group)

    def part(self) -> AssemblyPart:
        """Return everything that was collected, for `extend` in another process."""
        return AssemblyPart(
            tables={name: (len(rows), rows.encoded()) for name in _TABLES if len(rows := getattr(self, name))},
            lists={name: list(getattr(self, name).strings()) for name in sorted(set(_CODED.values()))},
            thread_names=self.threads.names(),
            collectives=self.collectives,
            regions=self.regions,
            others=[(category, process, count) for (category, process), count in self._others.items()],
            processes=list(self._processes.items()),
        )

    def extend(self, part: AssemblyPart) -> None:
        """Add the rows of the pieces that follow, as if this had collected them itself."""
        first_row = len(self.device)
        codes = {name: np.array(getattr(self, name).codes(found), np.int32) for name, found in part.lists.items()}
        of_column = {column: codes[name] for column, name in _CODED.items()}
        for name, (rows, columns) in part.tables.items():
            getattr(self, name).extend(rows, columns, of_column)
        for named in part.thread_names:
            self.threads.name(*named)
        self.collectives += [(first_row + row, args) for row, args in part.collectives]
        self.regions += [(first_row + row, int(codes["names"][name]), back) for row, name, back in part.regions]
        self._others.update({(category, process): count for category, process, count in part.others})
        self._processes.update(part.processes)

    def unread(self) -> dict[str, Any]:
        """Return the fields of `Problems` about events of unknown categories.

        Those in a process with host events are marks that somebody added. Others are work of a device with a recorder
        of its own: ``trace_view.json`` of torch_npu leaves the category empty, and names its processes.
        """
        found: Counter[str] = Counter()
        for (category, process), count in self._others.items():
            if category != _OVERHEAD and not len(self.device) and not self.threads.has_process(process):
                found[category or self._processes.get(process) or f"process {process}"] += count
        return {
            "unread_events": found.total(),
            "unread_in": tuple(sorted(found)),
            "overhead_events": sum(count for (category, _), count in self._others.items() if category == _OVERHEAD),
        }

    def _add_thread_names(self, events: list[Any]) -> None:
        for event in events:
            if event.name == "thread_name":
                self.threads.name(event.pid, event.tid, str(event.args.get("name") or ""))
            elif event.name == "process_name":
                self._processes[event.pid] = str(event.args.get("name") or "")

    def _add_group(self, target: Destination, group: list[Any]) -> None:
        rows: Rows = self.device if target in _DEVICE else getattr(self, target.value)
        if rows is self.runtime:
            _add_integers(rows, "runtime", [e.args for e in group])
        times = [e.ts for e in group]
        if not self._exact and times[0] is not None and abs(times[0]) >= FLOAT_EXACT_BELOW_US:
            raise InexactTimeError
        first_row = len(rows)
        rows.add_times(times, [e.dur for e in group])
        names = self.names
        rows.add_codes("name", [names[e.name] for e in group])
        if rows is self.device:
            self._add_device(target, group, first_row)
            return
        self._add_threads(rows, group)
        if rows is self.operators:
            self._add_operators(group)
        elif rows is self.annotations:
            # libkineto's activity profiler writes this for a range that was open when it stopped.
            rows.add_codes("finished", [bytes(e.args.finished).strip(b'"') != b"false" for e in group])
            self._add_inputs(rows, [e.args for e in group])

    def _add_threads(self, rows: Rows, group: list[Any]) -> None:
        processes = {e.pid for e in group}
        if len(processes) == 1:
            codes = self.threads.of_process(processes.pop())
            rows.add_codes("thread", [codes[e.tid] for e in group])
        else:
            rows.add_codes("thread", [self.threads.of_process(e.pid)[e.tid] for e in group])

    def _add_operators(self, group: list[Any]) -> None:
        rows, strides, values = self.operators, self.stride_lists, self.value_lists
        args = [e.args for e in group]
        self._add_inputs(rows, args)
        rows.add_codes("input_strides", [0 if (s := a.strides) is NO_RAW else strides[bytes(s)] for a in args])
        rows.add_codes(
            "input_values", [0 if len(v := bytes(a.values)) > LONGEST_VALUES_BYTES else values[v] for a in args]
        )
        _add_integers(rows, "operators", args)

    def _add_inputs(self, rows: Rows, args: list[Any]) -> None:
        types, shapes = self.type_lists, self.shape_lists
        # Half of the operators carry no inputs. Old recordings use another key for their dimensions.
        rows.add_codes("input_types", [0 if (t := a.types) is NO_RAW else types[bytes(t)] for a in args])
        rows.add_codes(
            "input_shapes",
            [
                shapes[bytes(d)]
                if (d := a.dims) is not NO_RAW
                else 0
                if (d := a.old_dims) is NO_RAW
                else shapes[bytes(d)]
                for a in args
            ],
        )

    def _add_device(self, target: Destination, group: list[Any], first_row: int) -> None:
        rows, sizes, directions = self.device, self.sizes, self.directions
        args = [e.args for e in group]
        rows.add_codes("destination", [_DEVICE.index(target)] * len(group))
        is_copy = target is Destination.COPY
        rows.add_codes("direction", [directions[bytes(a.kind)] for a in args] if is_copy else [0] * len(group))
        rows.add_integers("device", [e.pid if a.device is None else a.device for e, a in zip(group, args)], 0)  # noqa: B905
        rows.add_integers("stream", [_stream(e) for e in group], -1)
        rows.add_codes("grid", [sizes[bytes(a.grid)] for a in args])
        rows.add_codes("block", [sizes[bytes(a.block)] for a in args])
        rows.add_floats("blocks_per_sm", [a.blocks_per_sm for a in args])
        rows.add_floats("occupancy_percent", [a.occupancy_percent for a in args])
        _add_integers(rows, "device", args)
        for row, a in enumerate(args, first_row):
            if a.collective is not NO_RAW:
                raw = (a.collective, a.dtype, a.group, a.in_elements, a.out_elements, a.group_size)
                self.collectives.append((row, [bytes(value) for value in raw]))
            if a.graph_node and (name := _region(a)):
                self.regions.append((row, self.names[name], a.autograd_phase == _BACKWARD))

    def _add_counters(self, events: list[Any]) -> None:
        found = []
        for event in events:
            process = _COUNTERS.fullmatch(str(event.pid))
            values = _decoded(event.args)
            value = next(iter(values.values()), None) if isinstance(values, dict) else None
            if process is not None and isinstance(value, int | float) and isfinite(value):
                found.append((event.ts, self.names[event.name], int(process[1]), float(value)))
        if found:
            times, names, devices, values = zip(*found, strict=True)
            self.counters.add_times(list(times), [0] * len(found))
            self.counters.add_codes("name", list(names))
            self.counters.add_codes("device", list(devices))
            self.counters.add_floats("value", list(values))

    def _add_memory(self, events: list[Any]) -> None:
        rows = self.memory
        rows.add_times([e.ts for e in events], [0] * len(events))
        self._add_threads(rows, events)
        _add_integers(rows, "memory", [e.args for e in events])


def _add_integers(rows: Rows, table: str, args: list[Any]) -> None:
    for name, (_, default) in _INTEGERS[table].items():
        rows.add_integers(name, list(map(attrgetter(name), args)), default)
