"""Snapshots of every layout are read. Damaged and hostile files get an error, and run no code."""

import copy
import json
import os
import pickle
import random
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.cli import main
from lightning_perf.errors import TraceError
from lightning_perf.memory_snapshot import build
from lightning_perf.memory_snapshot.build import build_report
from lightning_perf.memory_snapshot.document import MemoryReport
from lightning_perf.memory_snapshot.snapshot import is_snapshot, read_snapshot
from tests.memory_snapshot.allocator import MIB, Allocator, backward, forward, train, write
from tests.support.processes import until


def trained() -> dict[str, Any]:
    allocator = Allocator()
    train(allocator, 2)
    return allocator.snapshot()


def report_of(path: Path) -> MemoryReport:
    return build_report(read_snapshot(path), Path("s"))


def test_json_gives_the_same_report(tmp_path: Path) -> None:
    values = trained()
    (tmp_path / "s.json").write_text(json.dumps(values, indent=1))
    assert is_snapshot(tmp_path / "s.json")
    assert report_of(tmp_path / "s.json") == report_of(write(values, tmp_path / "s.pickle"))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_is_read(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(trained(), protocol=protocol))
    assert is_snapshot(path)
    assert report_of(path).devices[0].peak.allocated_bytes == 195 * MIB


def test_the_layout_of_torch_2_0_is_read(tmp_path: Path) -> None:
    """Blocks without an address, with a history, and events without a time."""
    values = trained()
    for event in values["device_traces"][0]:
        del event["time_us"]
    for segment in values["segments"]:
        del segment["segment_pool_id"], segment["is_expandable"], segment["frames"]
        for block in segment["blocks"]:
            stack, size = block.pop("frames"), block.pop("requested_size")
            del block["address"]
            if block["state"] != "inactive":
                block["history"] = [{"addr": 0, "real_size": size, "frames": stack}]
    del values["allocator_settings"], values["external_annotations"]
    old = report_of(write(values, tmp_path / "old.pickle")).devices[0]
    new = report_of(write(trained(), tmp_path / "new.pickle")).devices[0]
    assert old.peak.time_ns is None
    assert old.peak.categories == new.peak.categories
    assert old.end.categories == new.end.categories


def test_blocks_without_addresses_follow_each_other(tmp_path: Path) -> None:
    blocks = [
        {"size": 512, "requested_size": 500, "state": "active_allocated", "frames": []},
        {"size": 1024, "state": "inactive", "frames": []},
        {"size": 2048, "requested_size": 2048, "state": "active_pending_free", "frames": []},
    ]
    segments = [
        {"device": 0, "address": 10_000, "total_size": 3584, "stream": 0, "segment_type": "small", "blocks": []},
        {"device": 0, "address": 50_000, "total_size": 3584, "stream": 0, "segment_type": "small", "blocks": blocks},
    ]
    found = read_snapshot(write({"segments": segments}, tmp_path / "s.pickle"))
    assert found.blocks.address.tolist() == [50_000, 50_512, 51_536]
    (device,) = report_of(tmp_path / "s.pickle").devices
    assert (device.inactive_bytes, device.end.allocated_bytes) == (1024, 2548)


def test_segments_alone_are_read(tmp_path: Path) -> None:
    """``torch.cuda.memory_snapshot()`` returns the segments only."""
    (device,) = report_of(write(trained()["segments"], tmp_path / "s.pickle")).devices
    assert device.history.state == "none"
    assert device.end.allocated_bytes == 120 * MIB
    assert device.curve is None


def test_an_empty_snapshot_has_no_devices(tmp_path: Path) -> None:
    report = report_of(write({"segments": [], "device_traces": [[]]}, tmp_path / "s.pickle"))
    assert report.devices == ()
    assert "no memory" in report.to_markdown()


class Planted:
    """Runs a command when an ordinary reader loads it."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.file}",)


def test_a_pickle_with_code_is_refused(tmp_path: Path) -> None:
    path = write({**trained(), "extra": Planted(tmp_path / "ran")}, tmp_path / "s.pickle")
    with pytest.raises(TraceError, match=r"holds the Python object '(posix|os)\.system'"):
        read_snapshot(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (b"\x80\x04cos\nsystem\n.", "Python object 'os.system'"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "Python object 'os.system'"),
        (b"\x80\x04(\x8c\x02lsios\nsystem\n.", "Python object 'os.system'"),
        (b"\x80\x04\x82\x01.", "no valid pickle"),  # a number of the extension registry
        (b"\x80\x04Pname\n.", "outside the file"),
        (b"\x80\x04K\x01Q.", "outside the file"),
        (b"\x80\x04K\x01K\x02R.", "no valid pickle"),  # calls 1
        (b"\x80\x04}K\x01b.", "no valid pickle"),  # sets the state of a dictionary
        (b"\x80\x04K\x01)\x81.", "no valid pickle"),  # makes an instance of 1
        (b"\x80\x04.", "no valid pickle"),
        (b"\x80\x04]K\x05\x86.", "is not a memory snapshot: Expected `object`, got `array`"),
        (b"\x80\x04N.", "is not a memory snapshot: Expected `object`, got `null`"),
        (b"\x80\x04\x8a\xff.", "ends early"),
    ],
)
def test_hostile_pickles_are_refused(tmp_path: Path, code: bytes, problem: str) -> None:
    path = tmp_path / "s.pickle"
    path.write_bytes(code)
    with pytest.raises(TraceError) as caught:
        read_snapshot(path)
    assert problem in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x80\x04K\x01r" + struct.pack("<I", 0xFFFF_FFF0) + b".",  # an entry far out in the memo
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 42) + b".",  # 4 TiB of zeros
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 42) + b".",
        b"\x80\x04" + b"}\x94" * 2_000_000,
    ],
    ids=["memo", "bytearray", "bytes", "containers"],
)
def test_memory_bombs_are_stopped_in_their_process(tmp_path: Path, bomb: bytes) -> None:
    path = tmp_path / "s.pickle"
    path.write_bytes(bomb)
    with pytest.raises(TraceError) as caught:
        build.analyze_snapshot(path)
    assert any(reason in str(caught.value) for reason in ("of memory", "ends early", "no valid pickle"))


# Each tuple holds the one before it twice, and the last one is the key of a dictionary: hashing it takes 2⁶⁰ steps.
TUPLES = b"\x80\x04)\x94" + b"".join(b"0h%ch%c\x86\x94" % (n, n) for n in range(60)) + b"0}h\x3cK\x00s."


def test_a_file_that_takes_forever_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "BASE_S", 2)
    (tmp_path / "s.pickle").write_bytes(TUPLES)
    assert main(["analyze", str(tmp_path / "s.pickle")]) == 2
    assert "needs more than 2 s of processor time" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels do not end a process with its parent")
def test_a_busy_process_dies_with_its_command(tmp_path: Path) -> None:
    (tmp_path / "s.pickle").write_bytes(TUPLES)
    command = subprocess.Popen([sys.executable, "-m", "lightning_perf", "analyze", str(tmp_path / "s.pickle")])
    children = Path(f"/proc/{command.pid}/task/{command.pid}/children")
    until(children.read_text)
    worker = Path("/proc", children.read_text().strip(), "stat")
    until(lambda: int(worker.read_text().split()[13]) > 200)  # after 2 s of processor time it hashes
    command.kill()
    command.wait()
    until(lambda: not worker.exists() or worker.read_text().split()[2] == "Z")


def test_stacks_cost_the_size_of_the_file(tmp_path: Path) -> None:
    frames = [{"filename": "a.py", "line": n, "name": "f"} for n in range(20_000)]
    event = {"action": "alloc", "addr": 1, "size": 512, "stream": 0, "time_us": 1, "frames": frames}
    path = write({"segments": [], "device_traces": [[event] * 100_000]}, tmp_path / "s.pickle")
    assert len(read_snapshot(path).stacks) == 2  # 2 billion frames, one by one


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    data = pickle.dumps(trained())
    path = tmp_path / "s.pickle"
    for size in random.Random(0).sample(range(2, len(data)), 60):
        path.write_bytes(data[:size])
        with pytest.raises(TraceError):
            read_snapshot(path)
    with pytest.raises(TraceError, match=r"ends early\. Copy the file again, or write a new one"):
        read_snapshot(path)


def test_changed_bytes_never_crash_the_reader(tmp_path: Path) -> None:
    data = pickle.dumps(trained())
    path, drawn = tmp_path / "s.pickle", random.Random(1)
    for _ in range(150):
        changed = bytearray(data)
        for _ in range(drawn.randrange(1, 4)):
            changed[drawn.randrange(2, len(changed))] = drawn.randrange(256)
        path.write_bytes(changed)
        try:
            report_of(path)
        except TraceError as error:
            assert str(path) in str(error)  # noqa: PT017


@pytest.mark.parametrize("value", [None, "text", 1.5, [], {}, (1,), -1, 1 << 70, b"bytes"])
def test_values_of_another_type_are_an_error_or_ignored(tmp_path: Path, value: Any) -> None:
    """Replace each member of each kind of entry by another value."""
    whole = trained()
    entries: list[list[Any]] = [
        [],
        ["segments", 0],
        ["segments", 0, "blocks", 0],
        ["device_traces", 0, 1],
        ["device_traces", 0, 1, "frames", 0],
        ["allocator_settings"],
    ]
    for path in entries:
        entry: Any = whole
        for step in path:
            entry = entry[step]
        for key in entry:
            changed = copy.deepcopy(whole)
            target: Any = changed
            for step in path:
                target = target[step]
            target[key] = value
            try:
                report_of(write(changed, tmp_path / "s.pickle")).to_markdown()
            except TraceError as error:
                assert "is not a memory snapshot" in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    ("entry", "key", "problem"),
    [
        (["segments", 0], "device", "Expected `int`, got `str` - at `$.segments[0].device`"),
        (["segments", 0, "blocks", 0], "state", "Invalid enum value 'odd' - at `$.segments[0].blocks[0].state`"),
        (["device_traces", 0, 1], "size", "Expected `int`, got `str` - at `$.device_traces[0][1].size`"),
        (["device_traces", 0, 1, "frames", 0], "line", "a stack: Expected `int`, got `str` - at `$[0].line`"),
    ],
)
def test_an_error_names_the_value_and_its_place(tmp_path: Path, entry: list[Any], key: str, problem: str) -> None:
    values = target = trained()
    for step in entry:
        target = target[step]
    target[key] = "odd"
    with pytest.raises(TraceError, match=re.escape(f"is not a memory snapshot: {problem}")):
        read_snapshot(write(values, tmp_path / "s.pickle"))


@pytest.mark.parametrize(
    "text", ["", "hello", "{", "[1, 2]", '{"segments": 3}', '{"segments": [{"device": 0}]}', "\0\1"]
)
def test_text_that_is_no_snapshot_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "s.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=r"_dump_snapshot"):
        read_snapshot(path)


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = write(trained(), tmp_path / "s.pickle")
    with pytest.raises(TraceError, match=r"only snapshots up to 1000 B are read\. Record fewer events"):
        read_snapshot(path, most_bytes=1000)


def test_traces_are_no_snapshots(tmp_path: Path) -> None:
    for name, data in {
        "trace.json": b'{"schemaVersion": 1, "traceEvents": []}',
        "list.json": b'[{"ph": "X"}]',
        "trace.json.gz": b"\x1f\x8b\x08\x00",
        "empty": b"",
    }.items():
        (tmp_path / name).write_bytes(data)
        assert not is_snapshot(tmp_path / name)
    assert not is_snapshot(tmp_path)
    assert not is_snapshot(tmp_path / "missing")


def test_two_devices_are_kept_apart(tmp_path: Path) -> None:
    first, second = Allocator(0), Allocator(1)
    first.alloc(MIB, forward())
    second.alloc(3 * MIB, backward())
    one, two = first.snapshot(), second.snapshot()
    values = {
        "segments": [*one["segments"], *two["segments"]],
        "device_traces": [one["device_traces"][0], two["device_traces"][1]],
    }
    report = report_of(write(values, tmp_path / "s.pickle"))
    assert [(device.device, device.peak.allocated_bytes) for device in report.devices] == [(0, MIB), (1, 3 * MIB)]
    assert "### Device 1" in report.to_markdown()
