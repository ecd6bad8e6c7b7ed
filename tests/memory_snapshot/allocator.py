"""A caching allocator that is as simple as possible. It writes the events and the end of a snapshot."""

import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning_perf.memory_snapshot.build import build_report
from lightning_perf.memory_snapshot.document import DeviceMemory
from lightning_perf.memory_snapshot.snapshot import read_snapshot

Frames = list[dict[str, Any]]

MIB = 1 << 20
TORCH = "/venv/lib/python3.11/site-packages/torch"
MODULE = f"{TORCH}/nn/modules/module.py"
ENGINE = ("??", 0, "torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask> const&)")


def frames(*stack: tuple[str, int, str]) -> Frames:
    """A stack of (file, line, function), the innermost first."""
    return [{"filename": file, "line": line, "name": name} for file, line, name in stack]


def forward(line: int = 10, file: str = "/home/ada/project/net.py") -> Frames:
    return frames((f"{TORCH}/nn/functional.py", 5, "linear"), (file, line, "forward"), (MODULE, 1700, "_call_impl"))


def backward(node: str = "MmBackward0") -> Frames:
    return frames(("??", 0, f"torch::autograd::generated::{node}::apply(std::vector<at::Tensor>&&)"), ENGINE)


def optimizer(function: str = "_multi_tensor_adam") -> Frames:
    return frames(
        (f"{TORCH}/optim/adam.py", 300, function),
        (f"{TORCH}/optim/optimizer.py", 490, "wrapper"),
        ("/home/ada/project/train.py", 30, "main"),
    )


def moved() -> Frames:
    return frames((MODULE, 900, "convert"), (MODULE, 800, "_apply"), ("/home/ada/project/train.py", 5, "main"))


def elsewhere(line: int = 50) -> Frames:
    return frames(("/home/ada/project/data.py", line, "load"))


@dataclass
class Allocator:
    """One device. Each block has its own segment, and a freed one serves an allocation of the same size."""

    device: int = 0
    time_us: int = 1_700_000_000_000_000
    events: list[dict[str, Any]] = field(default_factory=list)
    live: dict[int, dict[str, Any]] = field(default_factory=dict)
    levels: list[int] = field(default_factory=list)
    """Bytes in use after each event."""
    alive_after: list[dict[int, int]] = field(default_factory=list)
    """Size by address after each event."""
    segments: dict[int, dict[str, Any]] = field(default_factory=dict)
    free_places: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    next_address: int = 0x7F00_0000_0000
    annotations: list[dict[str, Any]] = field(default_factory=list)

    def record(self, action: str, address: int, size: int, stream: int, stack: Frames | None, **more: Any) -> None:
        self.time_us += 7
        key = "device_free" if action == "oom" else "addr"
        event = {"action": action, key: address, "size": size, "stream": stream, "time_us": self.time_us, **more}
        self.events.append(event if stack is None else {**event, "frames": stack})
        self.levels.append(sum(block["requested_size"] for block in self.live.values()))
        self.alive_after.append({at: block["requested_size"] for at, block in self.live.items()})

    def alloc(self, size: int, stack: Frames, stream: int = 0) -> int:
        rounded = -(-size // 512) * 512
        place = self.free_places.get((rounded, stream))
        if place:
            address = place.pop()
        else:
            address = self.next_address
            self.next_address += rounded
            self.segments[address] = {"total_size": rounded, "stream": stream}
            self.record("segment_alloc", address, rounded, stream, stack)
        self.live[address] = {
            "address": address,
            "size": rounded,
            "requested_size": size,
            "state": "active_allocated",
            "frames": stack,
            "stream": stream,
        }
        self.record("alloc", address, size, stream, stack)
        return address

    def free(self, address: int) -> None:
        block = self.live[address]
        size, stream = block["requested_size"], block["stream"]
        self.record("free_requested", address, size, stream, None)
        del self.live[address]
        self.record("free_completed", address, size, stream, None)
        self.free_places.setdefault((block["size"], stream), []).append(address)

    def release(self) -> None:
        """Return all free segments, as ``empty_cache`` does."""
        for (size, stream), places in self.free_places.items():
            for address in places:
                del self.segments[address]
                self.record("segment_free", address, size, stream, None)
        self.free_places.clear()

    def annotate(self, name: str, stage: str) -> None:
        self.time_us += 1
        self.annotations.append({"stage": stage, "name": name, "device": self.device, "time_us": self.time_us})

    def snapshot(self, last: int | None = None) -> dict[str, Any]:
        """The snapshot, with all events or with the last ones only."""
        segments = []
        for address, segment in sorted(self.segments.items()):
            block = self.live.get(address)
            size = segment["total_size"]
            free = {"address": address, "size": size, "requested_size": 0, "state": "inactive", "frames": []}
            shown = free if block is None else {key: value for key, value in block.items() if key != "stream"}
            segments.append(
                {
                    "device": self.device,
                    "address": address,
                    "total_size": size,
                    "allocated_size": 0 if block is None else block["size"],
                    "active_size": 0 if block is None else block["size"],
                    "requested_size": 0 if block is None else block["requested_size"],
                    "stream": segment["stream"],
                    "segment_type": "small" if size <= MIB else "large",
                    "segment_pool_id": (0, 0),
                    "is_expandable": False,
                    "frames": [],
                    "blocks": [shown],
                }
            )
        traces: list[list[dict[str, Any]]] = [[] for _ in range(self.device)]
        return {
            "segments": segments,
            "device_traces": [*traces, self.events if last is None else self.events[-last:]],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
            "external_annotations": self.annotations,
        }

    def write(self, path: Path, last: int | None = None) -> Path:
        return write(self.snapshot(last), path)


def write(values: Any, path: Path) -> Path:
    path.write_bytes(pickle.dumps(values))
    return path


def device_of(path: Path) -> DeviceMemory:
    (device,) = build_report(read_snapshot(path), path).devices
    return device


def train(allocator: Allocator, steps: int, leak_bytes: int = 0) -> dict[str, int]:
    """Train a model of 40 MiB with Adam, and return the bytes of each use at the peak.

    The peak is in the backward of the last step. A step has activations of 30 MiB, temporary blocks of 3 MiB in each
    phase, and gradients of 40 MiB.
    """
    allocator.alloc(40 * MIB, moved())
    for number in range(steps):
        batch = allocator.alloc(2 * MIB, elsewhere())
        kept = [allocator.alloc(10 * MIB, forward(10 + layer)) for layer in range(3)]
        allocator.free(allocator.alloc(3 * MIB, forward(20)))
        if leak_bytes:
            allocator.alloc(leak_bytes, forward(77))
        gradients = [allocator.alloc(10 * MIB, backward()) for _ in range(4)]
        temporary = allocator.alloc(3 * MIB, backward("ReluBackward0"))
        allocator.free(temporary)
        for address in kept:
            allocator.free(address)
        if number == 0:
            allocator.alloc(80 * MIB, optimizer("_init_group"))
        allocator.free(allocator.alloc(3 * MIB, optimizer()))
        for address in (*gradients, batch):
            allocator.free(address)
    return {
        "parameters": 40 * MIB,
        "optimizer_state": 80 * MIB,
        "gradients": 40 * MIB,
        "activations": 30 * MIB,
        "temporaries": 3 * MIB,
        "unknown": 2 * MIB,
    }
