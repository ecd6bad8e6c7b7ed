"""``analyze`` and ``diff`` of memory snapshots on the command line."""

import io
import json
import re
from pathlib import Path

import pytest

from lightning_perf.cli import main
from lightning_perf.errors import TraceError
from lightning_perf.memory_snapshot.build import analyze_snapshot
from lightning_perf.memory_snapshot.compared import MemoryDiff, compare_snapshots
from lightning_perf.memory_snapshot.document import MemoryReport, SnapshotError
from lightning_perf.trace.reader import read_trace
from tests.memory_snapshot.allocator import MIB, Allocator, forward, train
from tests.support.schemas import load_document


def written(path: Path, steps: int = 2, leak_bytes: int = 0) -> Path:
    allocator = Allocator()
    train(allocator, steps, leak_bytes)
    return allocator.write(path)


def test_analyze_prints_who_held_the_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "s.pickle", steps=8, leak_bytes=MIB)
    files = {name: tmp_path / name for name in ("page.html", "report.md")}
    assert main(["analyze", str(path), "--html", str(files["page.html"]), "--markdown", str(files["report.md"])]) == 0
    out = capsys.readouterr().out
    assert "Peak allocated 203 MiB (after 1.90 ms)" in out
    assert re.search(r"optimizer state +80\.0 MiB, 39\.4 %", out)
    assert re.search(r"autograd MmBackward0 +40\.0 MiB +19\.7 % +gradients", out)
    assert "Possible leak: the lowest memory within a step grew by 3.00 MiB over 3 steps" in out
    assert "| optimizer state | 80.0 MiB, 39.4 % |" in files["report.md"].read_text()
    assert 'data-kind="snapshot"' in files["page.html"].read_text()


def test_the_docs_quote_the_output(tmp_path: Path) -> None:
    file = io.StringIO()
    analyze_snapshot(written(tmp_path / "s.pickle", steps=8, leak_bytes=MIB)).print(file=file, width=100, top=6)
    shown = file.getvalue().partition("Free memory at the end")[0].strip()
    assert shown in (Path(__file__).parents[2] / "docs" / "memory.md").read_text(encoding="utf-8")


def test_the_document_is_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "s.pickle")
    assert main(["analyze", str(path), "--json"]) == 0
    text = capsys.readouterr().out
    assert load_document("analyze", text)
    report = MemoryReport.from_json(text)
    assert report.to_json() == text
    assert report == analyze_snapshot(path)
    with pytest.raises(SnapshotError, match="has schema version 99"):
        MemoryReport.from_json(json.dumps({**json.loads(text), "schema_version": 99}))


def test_an_error_of_memory_is_explained(tmp_path: Path) -> None:
    allocator = Allocator()
    first, _ = allocator.alloc(30 * MIB, forward(1)), allocator.alloc(30 * MIB, forward(2))
    second = allocator.alloc(30 * MIB, forward(3))
    allocator.free(first)
    allocator.free(second)
    allocator.record("oom", 5 * MIB, 50 * MIB, 0, forward(9))
    text = analyze_snapshot(allocator.write(tmp_path / "s.pickle")).to_markdown()
    assert "Out of memory: project/net.py:9 forward asked for 50.0 MiB." in text.replace("\\", "")
    assert "5.00 MiB were free on the device, and 60.0 MiB were free in the allocator." in text
    assert "expandable_segments:True" in text.replace("\\", "")


def test_diff_names_the_lines_that_grew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / "a.pickle", tmp_path / "b.pickle"]
    for path, size, moved in zip(paths, (4, 10), (0, 3), strict=True):
        allocator = Allocator()
        allocator.alloc(20 * MIB, forward(1))
        allocator.alloc(size * MIB, forward(20 + moved, "/home/ada/project/head.py"))
        allocator.write(path)
    assert main(["diff", *map(str, paths), "--json"]) == 0
    text = capsys.readouterr().out
    assert load_document("diff", text)
    compared = MemoryDiff.from_json(text)
    (device,) = compared.devices
    assert [(row.name, row.before_bytes, row.after_bytes) for row in device.categories] == [
        ("activations", 24 * MIB, 30 * MIB)
    ]
    assert [(row.line, row.before_peak_bytes, row.after_peak_bytes) for row in device.lines] == [
        ("project/head.py forward", 4 * MIB, 10 * MIB),
        ("project/net.py:1 forward", 20 * MIB, 20 * MIB),
    ]
    assert main(["diff", *map(str, paths), "--html", str(tmp_path / "page.html")]) == 0
    out = capsys.readouterr().out
    assert "The peak was 24.0 MiB and is 30.0 MiB allocated (+25.0 %)." in out
    assert re.search(r"project/head\.py forward +activations +4\.00 MiB +10\.0 MiB +\+6\.00 MiB", out)
    assert 'data-kind="snapshot-diff"' in (tmp_path / "page.html").read_text()


def test_equal_snapshots_differ_in_nothing(tmp_path: Path) -> None:
    report = analyze_snapshot(written(tmp_path / "s.pickle"))
    (device,) = compare_snapshots(report, report).devices
    assert all(row.before_bytes == row.after_bytes for row in (*device.totals, *device.categories))
    assert all(row.before_peak_bytes == row.after_peak_bytes for row in device.lines)
    assert "Lines that changed" not in compare_snapshots(report, report).to_markdown()


def test_a_snapshot_and_a_trace_cannot_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "s.pickle")
    trace = Path(__file__).parents[1] / "traces" / "two_steps.json"
    assert main(["diff", str(path), str(trace)]) == 2
    assert "is no memory snapshot, but" in capsys.readouterr().err
    assert main(["analyze", str(path), "--fail-on", "high"]) == 2
    assert "has no findings" in capsys.readouterr().err


def test_other_commands_and_functions_name_the_command_for_a_snapshot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "s.pickle")
    assert main(["view", str(path)]) == 2
    assert f"lightning-perf analyze {path} --html" in capsys.readouterr().err
    with pytest.raises(TraceError, match=r"is a Python pickle.* run lightning-perf analyze .*s\.pickle"):
        read_trace(path)
