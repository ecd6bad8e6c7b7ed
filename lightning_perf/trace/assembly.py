"""Decoded events ─► the tables of a `Trace`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_perf.trace.columns import (
    BoolArray,
    Collectives,
    DeviceEvents,
    Int64Array,
    MemoryEvents,
    Operators,
    RuntimeCalls,
    Spans,
)
from lightning_perf.trace.interning import JsonTexts, Names, Products, Threads
from lightning_perf.trace.kinds import Destination, destination, device_kind, is_annotation_name
from lightning_perf.trace.tables import GrowingTable, time_order
from lightning_perf.trace.times import UNREADABLE_NS, nanoseconds

__all__ = ["Assembly"]

_SPAN = {"start_ns": np.int64, "end_ns": np.int64, "name": np.int32, "thread": np.int32}
_DEVICE_TYPE_HIP = 6  # c10/core/DeviceType.h; contract: 1, as for CUDA
_DEVICE_TYPE_CUDA = 1


class Assembly:
    """Collects a recording's events as columns.

    Attributes:
        bad_durations: Events left out for a missing or negative duration or an unreadable time.
        names: Interned names.
        threads: Interned threads.
        types: Interned input types.
        shapes: Interned input dimensions.
    """

    def __init__(self) -> None:
        self.bad_durations = 0
        self.names = Names()
        self.threads = Threads()
        self.types = JsonTexts()
        self.shapes = JsonTexts()
        self._products = Products()
        self._annotation_codes: set[int] = set()
        self._names_seen = 0
        self._kinds: dict[tuple[Destination, int, bytes], int] = {}
        self._destinations: dict[str, Destination | None] = {}
        self._operators = GrowingTable(
            _SPAN
            | {
                "input_types": np.int32,
                "input_shapes": np.int32,
                "sequence": np.int64,
                "forward_thread": np.int32,
                "flops": np.int64,
            }
        )
        self._annotations = GrowingTable(_SPAN)
        self._python = GrowingTable(_SPAN)
        self._runtime = GrowingTable(_SPAN | {"correlation": np.int64})
        self._device = GrowingTable(
            {
                "start_ns": np.int64,
                "end_ns": np.int64,
                "name": np.int32,
                "kind": np.uint8,
                "device": np.int16,
                "stream": np.int64,
                "correlation": np.int64,
                "bytes": np.int64,
                "grid_blocks": np.int64,
                "block_threads": np.int32,
                "blocks_per_sm": np.float32,
                "occupancy": np.float32,
            }
        )
        self._device_rows = 0
        self._collectives = GrowingTable(
            {
                "device_row": np.int32,
                "name": np.int32,
                "dtype": np.int32,
                "group": np.int32,
                "in_elements": np.int64,
                "out_elements": np.int64,
                "group_size": np.int32,
            }
        )
        self._memory = GrowingTable(
            {
                "time_ns": np.int64,
                "thread": np.int32,
                "device_type": np.int16,
                "device": np.int16,
                "address": np.int64,
                "bytes": np.int64,
                "allocated_bytes": np.int64,
                "reserved_bytes": np.int64,
            }
        )

    def add(self, events: Sequence[Any]) -> None:
        """Sort decoded events into the tables.

        Raises:
            InexactTimeError: If times have to be read as decimals; nothing has been added then.
        """
        groups: defaultdict[str, list[Any]] = defaultdict(list)
        for event in events:
            groups[event.cat].append(event)
        self._name_threads(groups.pop("metadata", ()))
        instants = [e for e in groups.pop("instant", ()) if e.name == "[memory]"]
        groups.pop("other", None)
        # All times first: if one is inexact, the whole piece is read again.
        memory_ns = nanoseconds([e.ts for e in instants])
        timed = []
        for category, group in groups.items():
            if (target := self._destination(category)) is not None:
                start_ns, duration_ns = nanoseconds([e.ts for e in group]), nanoseconds([e.dur for e in group])
                timed.append((target, group, start_ns, duration_ns))
        for target, group, start_ns, duration_ns in timed:
            good = (start_ns != UNREADABLE_NS) & (duration_ns >= 0)
            if not good.all():
                self.bad_durations += int(len(good) - good.sum())
                group = [event for event, is_good in zip(group, good, strict=True) if is_good]
                start_ns, duration_ns = start_ns[good], duration_ns[good]
            self._add_group(target, group, start_ns, start_ns + duration_ns)
        self._add_memory(instants, memory_ns)

    def _destination(self, category: str) -> Destination | None:
        if category not in self._destinations:
            self._destinations[category] = destination(category)
        return self._destinations[category]

    def _name_threads(self, events: Sequence[Any]) -> None:
        for event in events:
            if event.name == "thread_name":
                self.threads.name(event.pid, event.tid, str(event.args.get("name") or ""))

    def _add_group(self, target: Destination, group: list[Any], start_ns: Int64Array, end_ns: Int64Array) -> None:
        names = self.names
        name = np.array([names[e.name] for e in group], dtype=np.int32)
        if target in (Destination.KERNEL, Destination.COPY, Destination.MEMSET):
            self._add_device(target, group, start_ns, end_ns, name)
            return
        threads = self.threads
        thread = np.array([threads[e.pid, e.tid] for e in group], dtype=np.int32)
        span: dict[str, NDArray[Any]] = {"start_ns": start_ns, "end_ns": end_ns, "name": name, "thread": thread}
        if target is Destination.RUNTIME:
            self._runtime.append(**span, correlation=_integers([e.args.correlation for e in group], -1))
        elif target is Destination.ANNOTATION:
            self._annotations.append(**span)
        elif target is Destination.PYTHON:
            self._python.append(**span)
        else:
            self._add_operators(group, span)

    def _add_operators(self, group: list[Any], span: dict[str, NDArray[Any]]) -> None:
        marks = self._is_annotation(span["name"])
        if marks is not None:
            self._annotations.append(**{key: column[marks] for key, column in span.items()})
            span = {key: column[~marks] for key, column in span.items()}
            group = [event for event, is_mark in zip(group, marks, strict=True) if not is_mark]
        args = [e.args for e in group]
        types, shapes = self.types, self.shapes
        self._operators.append(
            **span,
            input_types=[types[bytes(a.types)] for a in args],
            input_shapes=[shapes[bytes(a.dims) or bytes(a.old_dims)] for a in args],
            sequence=_integers([a.sequence for a in args], -1),
            forward_thread=_clipped(_integers([a.forward_thread for a in args], 0), np.int32),
            flops=_integers([a.flops for a in args], 0),
        )

    def _is_annotation(self, codes: NDArray[Any]) -> BoolArray | None:
        """Which operators are ranges in truth; None when none is."""
        if self._names_seen < len(self.names):
            new = list(self.names)[self._names_seen :]
            self._annotation_codes.update(
                code for code, name in enumerate(new, self._names_seen) if is_annotation_name(name)
            )
            self._names_seen = len(self.names)
        if not self._annotation_codes:
            return None
        marks = np.isin(codes, list(self._annotation_codes))
        return marks if marks.any() else None

    def _add_device(
        self, target: Destination, group: list[Any], start_ns: Int64Array, end_ns: Int64Array, name: NDArray[np.int32]
    ) -> None:
        args = [e.args for e in group]
        products, kinds = self._products, self._kinds
        kind = []
        for row, (code, arguments) in enumerate(zip(name.tolist(), args, strict=True)):
            key = (target, code, bytes(arguments.kind))
            if key not in kinds:
                kinds[key] = device_kind(target, group[row].name, key[2].decode("utf-8", "replace"))
            kind.append(kinds[key])
        devices = [e.pid if e.args.device is None else e.args.device for e in group]
        streams = [e.tid if e.args.stream is None else e.args.stream for e in group]
        occupancy = _shares([a.occupancy_percent for a in args])
        self._device.append(
            start_ns=start_ns,
            end_ns=end_ns,
            name=name,
            kind=kind,
            device=_clipped(_integers(devices, 0), np.int16),
            stream=_integers(streams, -1),
            correlation=_integers([a.correlation for a in args], -1),
            bytes=_integers([0 if a.bytes is None else a.bytes for a in args], 0),
            grid_blocks=[products[bytes(a.grid)] for a in args],
            block_threads=_clipped(np.array([products[bytes(a.block)] for a in args], dtype=np.int64), np.int32),
            blocks_per_sm=_shares([a.blocks_per_sm for a in args]),
            occupancy=occupancy / 100,
        )
        for row, arguments in enumerate(args, self._device_rows):
            if bytes(arguments.collective):
                self._add_collective(row, arguments)
        self._device_rows += len(group)

    def _add_collective(self, row: int, args: Any) -> None:
        def text(raw: Any) -> int:
            return self.names[_unquoted(bytes(raw))]

        def number(raw: Any) -> int:
            return int(_integers([_unquoted(bytes(raw)) or 0], 0)[0])

        self._collectives.append(
            device_row=[row],
            name=[text(args.collective)],
            dtype=[text(args.dtype)],
            group=[text(args.group)],
            in_elements=[number(args.in_elements)],
            out_elements=[number(args.out_elements)],
            group_size=[min(number(args.group_size), 2**31 - 1)],
        )

    def _add_memory(self, events: list[Any], time_ns: Int64Array) -> None:
        good = time_ns != UNREADABLE_NS
        if not good.all():
            self.bad_durations += int(len(good) - good.sum())
            events = [event for event, is_good in zip(events, good, strict=True) if is_good]
            time_ns = time_ns[good]
        if not events:
            return
        args = [e.args for e in events]
        device_type = _integers([a.device_type for a in args], -1)
        device_type[device_type == _DEVICE_TYPE_HIP] = _DEVICE_TYPE_CUDA
        self._memory.append(
            time_ns=time_ns,
            thread=[self.threads[e.pid, e.tid] for e in events],
            device_type=_clipped(device_type, np.int16),
            device=_clipped(_integers([a.device for a in args], -1), np.int16),
            address=_integers([a.address for a in args], 0),
            bytes=_integers([a.bytes for a in args], 0),
            allocated_bytes=_integers([a.allocated for a in args], -1),
            reserved_bytes=_integers([a.reserved for a in args], -1),
        )

    def tables(self, base_time_ns: int) -> dict[str, Any]:
        """The finished tables, by their names in `Trace`.

        Args:
            base_time_ns: Added to every time.
        """
        device, order = _sorted(self._device.take(), base_time_ns)
        collectives = self._collectives.take()
        rank = np.empty(len(order), dtype=np.int32)
        rank[order] = np.arange(len(order), dtype=np.int32)
        collectives["device_row"] = rank[collectives["device_row"]]
        by_row = np.argsort(collectives["device_row"], kind="stable")
        memory = self._memory.take()
        by_time = np.argsort(memory["time_ns"], kind="stable")
        memory = {key: column[by_time] for key, column in memory.items()}
        memory["time_ns"] += base_time_ns
        return {
            "operators": Operators(**_sorted(self._operators.take(), base_time_ns)[0]),
            "annotations": Spans(**_sorted(self._annotations.take(), base_time_ns)[0]),
            "python": Spans(**_sorted(self._python.take(), base_time_ns)[0]),
            "runtime": RuntimeCalls(**_sorted(self._runtime.take(), base_time_ns)[0]),
            "device": DeviceEvents(**device),
            "collectives": Collectives(**{key: column[by_row] for key, column in collectives.items()}),
            "memory": MemoryEvents(**memory),
        }


def _sorted(columns: dict[str, NDArray[Any]], base_time_ns: int) -> tuple[dict[str, NDArray[Any]], NDArray[np.intp]]:
    order = time_order(columns["start_ns"], columns["end_ns"])
    if order is not None:
        for key in columns:
            columns[key] = columns[key][order]
    columns["start_ns"] += base_time_ns
    columns["end_ns"] += base_time_ns
    return columns, np.arange(len(columns["start_ns"])) if order is None else order


def _integers(values: list[Any], default: int) -> Int64Array:
    """Whole numbers of 64 bits; text of digits counts, anything else becomes the default."""
    try:
        return np.fromiter(values, dtype=np.int64, count=len(values))
    except (TypeError, ValueError, OverflowError):
        return np.fromiter((_integer(value, default) for value in values), dtype=np.int64, count=len(values))


def _integer(value: Any, default: int) -> int:
    if isinstance(value, str):
        # "stream 7" of the recordings of 2021, "0x1f" of ROCm, plain digits.
        try:
            value = int(value.strip().rsplit(" ", 1)[-1][:40], 0)
        except ValueError:
            return default
    if isinstance(value, float) and not np.isfinite(value):
        return default
    number = int(value)
    return number if -(2**63) <= number < 2**63 else default


def _clipped(values: Int64Array, dtype: type[np.integer[Any]]) -> NDArray[Any]:
    limits = np.iinfo(dtype)
    return np.clip(values, limits.min, limits.max).astype(dtype)


def _shares(values: list[Any]) -> NDArray[np.float32]:
    return np.array([v if isinstance(v, int | float) else np.nan for v in values], dtype=np.float32)


def _unquoted(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").strip('"')
