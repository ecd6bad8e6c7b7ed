"""Hand-made traces: a fluent builder of real Chrome-trace JSON, read back through the real reader."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightning_perf.trace.reader import read_trace
from lightning_perf.trace.trace import Trace

PID = 1000
MAIN = 1000
"""The training thread's id: host events are put on it unless told otherwise."""
FETCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
"""The name under which torch marks each fetch from a DataLoader without workers."""


class TraceBuilder:
    """Collects events and gives the trace; every ``add`` method returns the builder.

    Times are microseconds as in the file format (ints or floats of up to three decimals); 1 µs is 1000 ns in the
    columns. ``base_time_ns`` defaults to 0, so that columns hold just what the test wrote.

    Example:
        >>> trace = (
        ...     TraceBuilder()
        ...     .step(1, 0, 100)
        ...     .op("aten::mm", 10, 20)
        ...     .launch("my_kernel", call_us=12, call_duration_us=5, start_us=30, duration_us=40)
        ...     .build()
        ... )
        >>> trace.device.end_ns.tolist(), len(trace.steps)
        ([70000], 1)
    """

    def __init__(self, **top_level: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.top_level: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [], **top_level}
        self._correlation = 0

    # Host events.

    def event(self, **fields: Any) -> TraceBuilder:
        """Any event at all, as it stands."""
        self.events.append(fields)
        return self

    def host(
        self, cat: str, name: str, start_us: float, duration_us: float, *, thread: int | str = MAIN, **args: Any
    ) -> TraceBuilder:
        """A complete event of any category on a host thread."""
        return self.event(
            ph="X", cat=cat, name=name, pid=PID, tid=thread, ts=start_us, dur=duration_us, args=args
        )  # fmt: skip

    def step(self, number: int, start_us: float, duration_us: float, *, thread: int = MAIN) -> TraceBuilder:
        """The host's mark of a step."""
        return self.annotation(f"ProfilerStep#{number}", start_us, duration_us, thread=thread)

    def steps(self, count: int, duration_us: int) -> Iterator[int]:
        """Mark steps one after the other from time 0, and yield the start of each for its other events."""
        for number in range(count):
            self.step(number, number * duration_us, duration_us)
            yield number * duration_us

    def annotation(self, name: str, start_us: float, duration_us: float, *, thread: int = MAIN) -> TraceBuilder:
        """A ``record_function`` range."""
        return self.host("user_annotation", name, start_us, duration_us, thread=thread)

    def op(
        self,
        name: str,
        start_us: float,
        duration_us: float,
        *,
        thread: int = MAIN,
        types: list[str] | None = None,
        dims: list[Any] | None = None,
        sequence: int | None = None,
        forward_thread: int | None = None,
        flops: int | None = None,
        **args: Any,
    ) -> TraceBuilder:
        """A framework operator; `types` and `dims` are its ``Input type`` and ``Input Dims``."""
        recorded = {
            "Input type": types,
            "Input Dims": dims,
            "Sequence number": sequence,
            "Fwd thread id": forward_thread,
            "flops": flops,
            **args,
        }
        recorded = {key: value for key, value in recorded.items() if value is not None}
        return self.host("cpu_op", name, start_us, duration_us, thread=thread, **recorded)

    def python(self, name: str, start_us: float, duration_us: float, *, thread: int = MAIN) -> TraceBuilder:
        """A Python function (recorded ``with_stack``)."""
        return self.host("python_function", name, start_us, duration_us, thread=thread)

    def runtime(
        self, name: str, start_us: float, duration_us: float, correlation: int | None = None, *, thread: int = MAIN
    ) -> TraceBuilder:
        """A call into the runtime."""
        args = {} if correlation is None else {"correlation": correlation}
        return self.host("cuda_runtime", name, start_us, duration_us, thread=thread, **args)

    # Device events.

    def device(
        self,
        cat: str,
        name: str,
        start_us: float,
        duration_us: float,
        correlation: int | None = None,
        *,
        stream: int = 7,
        device: int = 0,
        **args: Any,
    ) -> TraceBuilder:
        """A complete event of any category on a stream."""
        if correlation is not None:
            args["correlation"] = correlation
        args = {"device": device, "stream": stream, **args}
        return self.event(ph="X", cat=cat, name=name, pid=device, tid=stream, ts=start_us, dur=duration_us, args=args)

    def kernel(
        self, name: str, start_us: float, duration_us: float, correlation: int | None = None, **args: Any
    ) -> TraceBuilder:
        """A kernel; a collective when its name says so. `args` are its stream, device, and the file's ``grid``, …."""
        return self.device("kernel", name, start_us, duration_us, correlation, **args)

    def memcpy(
        self,
        direction: str,
        start_us: float,
        duration_us: float,
        correlation: int | None = None,
        *,
        pinned: bool = True,
        bytes: int = 0,
        **place: int,
    ) -> TraceBuilder:
        """A device copy; `direction` is ``HtoD``, ``DtoH``, ``DtoD`` or ``PtoP``, `place` its stream and device."""
        host = "Pinned" if pinned else "Pageable"
        ends = {"HtoD": f"{host} -> Device", "DtoH": f"Device -> {host}"}.get(direction, "Device -> Device")
        name = f"Memcpy {direction} ({ends})"
        return self.device("gpu_memcpy", name, start_us, duration_us, correlation, bytes=bytes, **place)

    def memset(
        self, start_us: float, duration_us: float, correlation: int | None = None, *, bytes: int = 0, **place: int
    ) -> TraceBuilder:
        """A device memset; `place` is its stream and device."""
        return self.device("gpu_memset", "Memset (Device)", start_us, duration_us, correlation, bytes=bytes, **place)

    def launch(
        self,
        kernel: str,
        *,
        call_us: float,
        call_duration_us: float,
        start_us: float,
        duration_us: float,
        call: str = "cudaLaunchKernel",
        thread: int = MAIN,
        **args: Any,
    ) -> TraceBuilder:
        """A launch call and its kernel, linked by a new correlation number (counted down from a million).

        `args` are those of `kernel`.
        """
        self._correlation += 1
        correlation = 1_000_000 - self._correlation
        self.runtime(call, call_us, call_duration_us, correlation, thread=thread)
        return self.kernel(kernel, start_us, duration_us, correlation, **args)

    # The rest.

    def memory(
        self,
        time_us: float,
        bytes: int,
        *,
        address: int = 0x1000,
        allocated: int | None = None,
        reserved: int | None = None,
        device_type: int = 1,
        device: int = 0,
        thread: int = MAIN,
    ) -> TraceBuilder:
        """An allocator event; negative `bytes` free the block."""
        args = {"Device Type": device_type, "Device Id": device, "Addr": address, "Bytes": bytes}
        if allocated is not None:
            args["Total Allocated"] = allocated
        if reserved is not None:
            args["Total Reserved"] = reserved
        return self.event(
            ph="i", s="t", cat="cpu_instant_event", name="[memory]", pid=PID, tid=thread, ts=time_us, args=args
        )  # fmt: skip

    def thread_name(self, name: str, *, thread: int = MAIN) -> TraceBuilder:
        """The name of a host thread."""
        return self.event(ph="M", name="thread_name", pid=PID, tid=thread, ts=0, args={"name": name})

    def gpu(self, name: str, *, ordinal: int = 0, **properties: Any) -> TraceBuilder:
        """A device in ``deviceProperties``; `properties` as in the file: ``computeMajor``, ``numSms``, …."""
        self.top_level["deviceProperties"].append({"id": ordinal, "name": name, **properties})
        return self

    def rank(self, rank: int, world_size: int, *, backend: str = "nccl") -> TraceBuilder:
        """Which rank this is."""
        self.top_level["distributedInfo"] = {"backend": backend, "rank": rank, "world_size": world_size}
        return self

    def document(self) -> dict[str, Any]:
        """The JSON document."""
        return {**self.top_level, "traceEvents": self.events}

    def write(self, path: str | Path) -> Path:
        """Write the file, gzipped when its name ends in ``.gz``; returns its path."""
        path = Path(path)
        data = json.dumps(self.document()).encode()
        path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)
        return path

    def build(self) -> Trace:
        """The trace, read by the real reader from a temporary file."""
        with tempfile.TemporaryDirectory() as folder:
            return read_trace(self.write(Path(folder) / "hand_made.pt.trace.json"))
