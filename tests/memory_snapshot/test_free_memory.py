"""Free memory by pool and segment, and at the moment when an allocation failed."""

from pathlib import Path
from typing import Any

from lightning_perf.memory_snapshot.document import DeviceMemory, Run
from tests.memory_snapshot.allocator import MIB, Allocator, device_of, forward, frames, write

BASE = 0x7F00_0000_0000


def segment(address: int, size: int, blocks: list[tuple[int, bool]], **more: Any) -> dict[str, Any]:
    """A segment of (size, whether it is in use), in MiB."""
    rows, at = [], address
    for block, used in blocks:
        rows.append(
            {
                "address": at,
                "size": block * MIB,
                "requested_size": block * MIB if used else 0,
                "state": "active_allocated" if used else "inactive",
                "frames": forward() if used else [],
            }
        )
        at += block * MIB
    return {
        "device": 0,
        "address": address,
        "total_size": size * MIB,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "blocks": rows,
        **more,
    }


def test_pools_tell_fragments_from_empty_segments(tmp_path: Path) -> None:
    values = {
        "segments": [
            segment(BASE, 20, [(4, True), (6, False), (2, True), (8, False)]),
            segment(BASE + 100 * MIB, 30, [(30, False)]),
            segment(BASE + 200 * MIB, 10, [(10, True)], stream=7),
            segment(BASE + 300 * MIB, 2, [(2, False)], segment_pool_id=(0, 3), segment_type="small"),
        ]
    }
    pools = {
        (pool.stream, pool.size, pool.pool): pool for pool in device_of(write(values, tmp_path / "s.pickle")).pools
    }
    common = pools[0, "large", "0, 0"]
    assert (common.segments, common.reserved_bytes) == (2, 50 * MIB)
    assert (common.free_bytes, common.largest_free_bytes) == (44 * MIB, 30 * MIB)
    assert (common.fragmented_bytes, common.releasable_bytes) == (14 * MIB, 30 * MIB)
    assert pools[7, "large", "0, 0"].free_bytes == 0
    assert pools[0, "small", "0, 3"].releasable_bytes == 2 * MIB


def test_segments_are_mapped_in_order(tmp_path: Path) -> None:
    values = {
        "segments": [
            segment(BASE, 20, [(4, True), (5, True), (1, False), (2, True), (8, False)]),
            segment(BASE + 100 * MIB, 30, [(30, False)]),
        ]
    }
    largest, other = device_of(write(values, tmp_path / "s.pickle")).segments
    assert largest.runs == (Run("free", 30 * MIB),)
    # The stacks are of forward, and the blocks are alive at the end.
    assert other.runs == (
        Run("activations", 9 * MIB),
        Run("free", MIB),
        Run("activations", 2 * MIB),
        Run("free", 8 * MIB),
    )
    assert (other.address, other.used_bytes, other.largest_free_bytes) == ("7f0000000000", 11 * MIB, 8 * MIB)


def test_a_segment_of_many_blocks_is_drawn_by_parts(tmp_path: Path) -> None:
    blocks = [(1, number % 2 == 0) for number in range(1000)]
    values = {"segments": [segment(BASE, 1200, [*blocks, (200, False)])]}
    (shown,) = device_of(write(values, tmp_path / "s.pickle")).segments
    assert sum(run.bytes for run in shown.runs) == 1200 * MIB
    assert [run.category for run in shown.runs] == ["mixed", "free"]
    assert shown.runs[0].bytes == 1000 * MIB


def failing(tmp_path: Path, *, release: bool) -> DeviceMemory:
    """Five segments of 10 MiB. The second and the fourth are free. An allocation of 16 MiB fails."""
    allocator = Allocator()
    addresses = [allocator.alloc(10 * MIB, forward(number)) for number in range(5)]
    for number in (1, 3):
        allocator.free(addresses[number])
    if release:
        allocator.release()
    stack = frames(("/home/ada/project/net.py", 42, "forward"))
    allocator.record("oom", 3 * MIB, 16 * MIB, 0, stack)
    allocator.release()
    for number in (0, 2):
        allocator.free(addresses[number])
    return device_of(allocator.write(tmp_path / "s.pickle"))


def test_an_error_with_fragments_says_so(tmp_path: Path) -> None:
    device = failing(tmp_path, release=False)
    (error,) = device.out_of_memory
    assert (error.requested_bytes, error.device_free_bytes) == (16 * MIB, 3 * MIB)
    assert (error.allocated_bytes, error.cached_bytes) == (30 * MIB, 20 * MIB)
    assert (error.largest_free_bytes, error.fragmented) == (10 * MIB, True)
    assert error.line == "project/net.py:42 forward"
    held = {row.line: row.out_of_memory_bytes for row in device.groups if row.out_of_memory_bytes}
    assert held == {f"project/net.py:{number} forward": 10 * MIB for number in (0, 2, 4)}
    (error,) = failing(tmp_path, release=True).out_of_memory  # without free memory it is no fragmentation
    assert (error.cached_bytes, error.largest_free_bytes, error.fragmented) == (0, 0, False)


def test_free_memory_of_another_stream_does_not_count(tmp_path: Path) -> None:
    allocator = Allocator()
    allocator.free(allocator.alloc(50 * MIB, forward(), stream=5))
    allocator.record("oom", 0, 16 * MIB, 0, forward())
    (error,) = device_of(allocator.write(tmp_path / "s.pickle")).out_of_memory
    assert (error.cached_bytes, error.largest_free_bytes, error.fragmented) == (50 * MIB, 0, False)


def test_expandable_segments_are_joined_and_split(tmp_path: Path) -> None:
    """Two parts are mapped side by side, and the second one is unmapped after the error."""
    allocator = Allocator()
    for number in range(2):
        allocator.record("segment_map", BASE + number * 20 * MIB, 20 * MIB, 0, [])
    allocator.record("oom", 0, 64 * MIB, 0, forward())
    allocator.record("segment_unmap", BASE + 20 * MIB, 20 * MIB, 0, [])
    values = allocator.snapshot()
    values["segments"] = [segment(BASE, 20, [(20, False)], is_expandable=True)]
    device = device_of(write(values, tmp_path / "s.pickle"))
    (error,) = device.out_of_memory
    assert (error.cached_bytes, error.largest_free_bytes, error.fragmented) == (40 * MIB, 40 * MIB, False)
    assert device.reserved_bytes == 20 * MIB
