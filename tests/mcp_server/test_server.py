"""The tools answer calls in worker processes: with results, abstentions and errors, all of them bounded."""

import gzip
import json
import os
from pathlib import Path
from random import getrandbits
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lightning_perf
from lightning_perf.errors import LocatedError, TraceError
from lightning_perf.mcp_server.server import (
    KEPT_ANSWERS,
    LIMIT_BYTES,
    HandleError,
    ToolServer,
    cut,
    find_value,
    page_of,
)
from lightning_perf.mcp_server.tools import TOOLS
from tests.compare.support import write_run
from tests.history.support import commit_name, write_history
from tests.memory_snapshot.allocator import MIB, Allocator, train
from tests.support.trace_builder import FETCH, TraceBuilder

DEMO = Path(lightning_perf.__file__).parent / "demo" / "recordings"


def answer(server: ToolServer, tool: str, /, **arguments: Any) -> dict[str, Any]:
    found = server.call(tool, arguments)
    assert len(json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()) <= LIMIT_BYTES
    assert found["tool"] == tool
    assert isinstance(found["outcome"], str)
    return found


def result(tool: str, folder: Path, **arguments: Any) -> dict[str, Any]:
    """The result of a tool in this process, which is faster than a worker process."""
    made = TOOLS[tool].answer([folder], **msgspec.structs.asdict(msgspec.convert(arguments, TOOLS[tool].arguments)))
    decoded: dict[str, Any] = json.loads(msgspec.json.encode(made))
    return decoded


def healthy(path: Path, device: str = "NVIDIA H100") -> Path:
    """A trace of steps that a single kernel fills."""
    builder = TraceBuilder().gpu(device, computeMajor=9)
    for start in builder.steps(6, 1000):
        builder.op("aten::mm", start + 5, 20)
        builder.launch("gemm_bf16", call_us=start + 10, call_duration_us=5, start_us=start + 20, duration_us=970)
    return builder.write(path)


def waiting(path: Path) -> Path:
    """A trace of steps that wait for their batch half of the time."""
    builder = TraceBuilder()
    for start in builder.steps(6, 100_000):
        builder.op(FETCH, start, 50_000)
        builder.op("aten::mm", start + 50_000, 49_000)
    return builder.write(path)


def write_runs(folder: Path, step_ms: tuple[float, ...], **facts: Any) -> None:
    for row, time_ms in enumerate(step_ms):
        write_run(folder / f"run{row}", step_ms=time_ms, started=float(row), train__seed=row, **facts)


def test_a_finding_has_its_evidence_fix_and_range() -> None:
    found = answer(ToolServer([DEMO]), "analyze", path="before")
    report = lightning_perf.analyze(DEMO / "before")
    assert found["outcome"] == "findings"
    assert [row["rule"] for row in found["findings"]] == [finding.kind for finding in report.findings]
    first, known = found["findings"][0], report.findings[0]
    assert (first["fix"], first["page"], first["evidence"]) == (known.action, known.page, list(known.evidence))
    assert first["estimate"]["saving_ms"] == pytest.approx([known.saving_low_ms, known.saving_high_ms], abs=1e-3)
    assert first["estimate"]["share"] == pytest.approx([0.156, 0.390], abs=1e-3)
    assert first["estimate"]["basis"] == "recording"


def test_no_finding_is_a_result(tmp_path: Path) -> None:
    healthy(tmp_path / "rank0.pt.trace.json")
    found = result("analyze", tmp_path, path="rank0.pt.trace.json")
    assert (found["outcome"], found["findings"]) == ("no_finding", [])
    assert "does not prove" in found["message"]


def test_runs_are_listed_newest_first(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "old")):
        (tmp_path / name).mkdir()
        path = waiting(tmp_path / name / "rank0.pt.trace.json")
        os.utime(path, (1e9 - age, 1e9 - age))
    found = result("list_runs", tmp_path)
    assert [Path(run["path"]).name for run in found["runs"]] == ["new", "old"]
    assert found["runs"][0]["traces"] == ["rank0.pt.trace.json"]
    assert [Path(run["path"]).name for run in result("list_runs", tmp_path, path="old")["runs"]] == ["old"]
    assert result("analyze", tmp_path, path=found["runs"][0]["path"])["findings"][0]["rule"] == "input-bound"
    with pytest.raises(TraceError, match="holds the traces of 2 runs"):
        result("analyze", tmp_path, path=".")


def test_a_diff_does_not_decide_and_stores_nothing(tmp_path: Path) -> None:
    found = result("diff", DEMO, before="before", after="after")
    assert found["outcome"] == "faster"
    assert "cannot separate a change from noise" in found["message"]
    assert found["step"]["ratio"] == pytest.approx(0.612, abs=1e-3)
    assert not (DEMO / "after" / "estimates.jsonl").exists()


def test_recordings_of_different_trainings_are_not_comparable(tmp_path: Path) -> None:
    healthy(tmp_path / "a.json", device="NVIDIA A100")
    healthy(tmp_path / "b.json", device="NVIDIA H100")
    found = result("diff", tmp_path, before="a.json", after="b.json")
    assert found["outcome"] == "not_comparable"
    assert [row["aspect"] for row in found["mismatches"]] == ["device"]
    assert "neither is faster" in found["message"]


def test_verdicts_refusals_and_invalid_runs(tmp_path: Path) -> None:
    write_runs(tmp_path / "old", step_ms=(100, 101, 99, 100, 102))
    write_runs(tmp_path / "fast", step_ms=(80, 81, 79, 80, 82), train__precision="bf16-mixed")
    write_runs(tmp_path / "noisy", step_ms=(70, 140, 90, 120, 85), train__precision="bf16-mixed")
    write_runs(tmp_path / "failed", step_ms=(80, 80), outcome=None)
    for name, outcome, gate in (("fast", "faster", "failed"), ("noisy", "inconclusive", "inconclusive")):
        arms = {"old": ["old"], "new": [name]}
        limit = 0.5 if name == "fast" else 1.05
        found = result("compare", tmp_path, arms=arms, treatment=["precision"], gates=[f"step_time<={limit}"])
        assert found["outcome"] == found["candidates"][0]["verdict"] == outcome
        step = next(row for row in found["candidates"][0]["metrics"] if row["metric"] == "step_time")
        assert step["interval"][0] < step["change"] < step["interval"][1]
        assert [row["outcome"] for row in found["gates"]] == [gate]
    refused = result("compare", tmp_path, arms={"old": ["old"], "new": ["fast"]})
    assert refused["outcome"] == "refused"
    assert [row["fact"] for row in refused["differences"]] == ["train.precision"]
    assert result("compare", tmp_path, arms={"old": ["old"], "new": ["failed"]})["outcome"] == "invalid_runs"
    confined = answer(ToolServer([tmp_path]), "compare", arms={"old": ["old"], "new": ["fast"]})
    assert confined["outcome"] == "refused"
    for wrong in ({}, {"arms": {"a": ["old"]}, "study": "old"}, {"arms": {"a": ["old"], "b": ["../x"]}}):
        with pytest.raises(LocatedError):
            result("compare", tmp_path, **wrong)
    assert not list(tmp_path.rglob("estimates.jsonl"))


def test_a_history_with_and_without_a_change(tmp_path: Path) -> None:
    for name, ratio in (("slower", 1.1), ("same", 1.0)):
        write_history(tmp_path / name, ratio=ratio)
    found = result("history", tmp_path, store="slower/store")
    (series,) = found["series"]
    (change,) = series["changes"]
    assert (found["outcome"], change["after"], change["worse"]) == ("changed", commit_name(12), True)
    assert change["estimate"]["low"] < 1.1 < change["estimate"]["high"]
    assert result("history", tmp_path, store="same/store")["outcome"] == "no_change"


def test_memory_snapshots(tmp_path: Path) -> None:
    for name, leak_bytes in (("a.pickle", 0), ("b.pickle", MIB)):
        allocator = Allocator()
        train(allocator, 4, leak_bytes)
        allocator.write(tmp_path / name)
    found = answer(ToolServer([tmp_path]), "analyze", path="a.pickle")
    assert (found["outcome"], "optimizer state" in found["text"]) == ("memory", True)
    assert result("diff", tmp_path, before="a.pickle", after="b.pickle")["outcome"] == "memory"
    assert result("list_runs", tmp_path)["runs"][0]["snapshots"] == ["a.pickle", "b.pickle"]


def test_pages_and_the_list_of_rules() -> None:
    page = result("explain", DEMO, rule="sync-points")
    assert (page["outcome"], page["rule"]) == ("explained", "sync-points")
    assert page["text"].startswith("# sync-points")
    assert "input-bound" in result("explain", DEMO)["rules"]
    error = answer(ToolServer([DEMO]), "explain", rule="sync-point")
    assert (error["outcome"], "Did you mean 'sync-points'" in error["message"]) == ("error", True)


def test_code_runs_only_with_permission_and_from_modules_in_the_folders(tmp_path: Path) -> None:
    found = answer(ToolServer([DEMO]), "data", source="mine:make")
    assert (found["outcome"], "lightning-perf mcp --allow-run" in found["message"]) == ("refused", True)
    found = answer(ToolServer([tmp_path], allow_run=True), "data", source="os:getcwd")
    assert (found["outcome"], "no folder of this server holds os.py" in found["message"]) == ("error", True)


@pytest.mark.parametrize(
    ("tool", "arguments", "problem"),
    [
        ("nope", {}, "unknown tool 'nope'. The tools are list_runs, analyze"),
        ("analyze", {}, "missing required field `path`. The arguments are path, by_shape"),
        ("analyze", {"path": 3}, "Expected `str`, got `int`"),
        ("analyze", {"path": "a", "shell": "rm"}, "unknown field `shell`"),
        ("analyze", {"path": "x" * 5000}, "length <= 4096"),
        ("probe", {"path": "a", "seconds": 1e9}, "<= 300"),
        ("more", {"handle": "a99:0:/x"}, "keeps no such answer"),
        ("more", {"handle": "garbage"}, "keeps no such answer"),
    ],
)
def test_wrong_calls(tool: str, arguments: dict[str, Any], problem: str) -> None:
    found = answer(ToolServer([DEMO]), tool, **arguments)
    assert found["outcome"] == "error"
    assert problem in found["message"]


def test_the_document_can_be_read_page_by_page() -> None:
    server = ToolServer([DEMO])
    found = answer(server, "analyze", path="before")
    document = answer(server, "more", handle=found["document"]["more"])
    assert document["value"]["schema_version"] == 1
    rows = answer(server, "more", handle=found["document"]["more"] + "/ranks/0/operators/rows")
    report = json.loads(lightning_perf.analyze(DEMO / "before").to_json())
    assert rows["value"][0] == report["ranks"][0]["operators"]["rows"][0]
    for _ in range(KEPT_ANSWERS):
        answer(server, "nope")
    assert answer(server, "more", handle=found["document"]["more"])["outcome"] == "error"


def bomb(path: Path, member: bytes, times: int, before: bytes = b'{"traceEvents":[') -> Path:
    """A file of a few megabytes that unpacks to gigabytes."""
    path.write_bytes(gzip.compress(before) + gzip.compress(member) * times)
    return path


def test_hostile_traces_stay_bounded(tmp_path: Path) -> None:
    event = b'{"ph":"X","cat":"cpu_op","name":"op","pid":1,"tid":1,"ts":9,"dur":1},\n'
    bomb(tmp_path / "endless.json.gz", event * 20_000, 2000)
    bomb(tmp_path / "packed.json.gz", event * 20_000, 200)
    # A real trace is not packed that well, and memory ends its analysis.
    named = (event.replace(b':"op"', b':"op%x"' % getrandbits(64)) + event * 9 for _ in range(2000))
    bomb(tmp_path / "large.json.gz", b"".join(named), 300)
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "rank0.pt.trace.json").symlink_to("/etc/passwd")
    impatient = ToolServer([tmp_path], timeout_s=1)
    late = answer(impatient, "analyze", path="endless.json.gz")
    assert (late["outcome"], late["message"][:46]) == ("error", "It took longer than 1 s and was stopped. Start")
    server = ToolServer([tmp_path], timeout_s=60, memory_bytes=200_000_000)
    assert "over 200 times its size" in answer(server, "analyze", path="packed.json.gz")["message"]
    assert "more than the 0.2 GB of memory" in answer(server, "analyze", path="large.json.gz")["message"]
    assert "not a regular file" in answer(server, "analyze", path="pipe.json")["message"]
    assert "not in the folders" in answer(server, "analyze", path="zero.json")["message"]
    assert "outside the folders of the server" in answer(server, "analyze", path="linked")["message"]


def test_modules_in_the_folder_are_not_imported(tmp_path: Path) -> None:
    healthy(tmp_path / "rank0.pt.trace.json")
    for name in ("numpy", "msgspec", "lightning_perf", "sitecustomize", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('taken over')")
    assert answer(ToolServer([tmp_path]), "analyze", path="rank0.pt.trace.json")["outcome"] == "no_finding"


def test_a_call_that_nobody_wants_is_stopped(tmp_path: Path) -> None:
    bomb(tmp_path / "endless.json.gz", b" " * (1 << 20), 2000, before=b"{")
    found = ToolServer([tmp_path]).call("analyze", {"path": "endless.json.gz"}, lambda: False)
    assert "nobody wants its result" in found["message"]


def handle(pointer: str, start: int) -> str:
    return f"{start}:{pointer}"


def page(document: Any, name: str) -> dict[str, Any]:
    start, _, pointer = name.partition(":")
    found = page_of(find_value(document, pointer), handle, pointer, int(start))
    assert len(json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()) <= LIMIT_BYTES
    return found


def read_all(document: Any, shown: Any) -> Any:
    """The value behind a cut one, collected through its handles."""
    if isinstance(shown, list):
        return [read_all(document, item) for item in shown]
    if not isinstance(shown, dict):
        return shown
    if set(shown) == {"more"} and isinstance(shown["more"], str):
        return read_pages(document, shown["more"])
    if set(shown) == {"items", "total", "more"}:
        rest = read_pages(document, shown["more"])
        found = [read_all(document, item) for item in shown["items"]] + rest
        assert len(found) == shown["total"]
        return found
    if set(shown) == {"text", "characters", "more"}:
        found = shown["text"] + read_pages(document, shown["more"])
        assert len(found) == shown["characters"]
        return found
    return {key: read_all(document, value) for key, value in shown.items()}


def read_pages(document: Any, name: str) -> Any:
    parts: list[Any] = []
    more: str | None = name
    while more is not None:
        found = page(document, more)
        value = found["value"]
        parts.append(value if isinstance(value, str) else read_all(document, value))
        more = found.get("more")
    if isinstance(parts[0], dict):
        return {key: value for part in parts for key, value in part.items()}
    if isinstance(parts[0], list):
        return [item for part in parts for item in part]
    return "".join(parts) if isinstance(parts[0], str) else parts[0]


ROWS = [{"name": f"kernel_{i}<float, {i}>", "times": list(range(i % 50)), "note": "x" * (i % 700)} for i in range(400)]
DOCUMENT = {
    "runs": ROWS,
    "a/b~c": {"text": "é" * 50_000},
    "deep": [[[[[[[[[[1, [2]]]]]]]]]]],
    "figure": 1.5,
    "none": None,
}


@pytest.mark.parametrize("document", [DOCUMENT, ROWS, {"text": "long " * 9999}, [], {}, {"empty": []}, [None] * 20_000])
def test_a_document_is_cut_and_can_be_read_in_full(document: Any) -> None:
    shown = cut(document, handle)
    assert len(json.dumps(shown, ensure_ascii=False, separators=(",", ":")).encode()) <= LIMIT_BYTES
    assert read_all(document, shown) == document
    small = {"verdict": "fine", "rows": [1, 2, 3], "nested": {"a": [{"b": None}]}}
    assert cut(small, handle) == small


def test_a_mapping_with_thousands_of_names_has_pages() -> None:
    document = {f"operator {i}": i for i in range(3000)}
    first = page(document, "0:")
    assert first["total"] == 3000
    assert list(first["value"]) == [f"operator {i}" for i in range(len(first["value"]))]
    assert read_pages(document, "0:") == document


def test_names_of_megabytes_stay_bounded() -> None:
    document = {"x" * 1_000_000: "y" * 1_000_000, "z": [{"w" * 1_000_000: 1}] * 3}
    shown = cut(document, handle)
    assert len(json.dumps(shown)) <= LIMIT_BYTES
    first = page(document, "0:")
    assert page(document, first["value"]["x" * 300 + "…"]["more"])["value"].startswith("yyy")
    assert page(document, "0:/z/2/#0")["value"] == 1


@pytest.mark.parametrize("pointer", ["/absent", "/runs/400", "/runs/x", "/runs/0/name/0", "/figure/1"])
def test_an_unknown_part_is_an_error(pointer: str) -> None:
    with pytest.raises(HandleError, match="no such part of the answer"):
        find_value(DOCUMENT, pointer)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=60) | st.dictionaries(st.text(max_size=8), inner, max_size=12),
    max_leaves=60,
)


@given(JSON, st.integers(60, 3000))
@settings(max_examples=40, deadline=None)
def test_any_value_fits_any_limit(document: Any, limit: int) -> None:
    shown = cut(document, handle, limit=limit)
    assert len(json.dumps(shown, ensure_ascii=False, separators=(",", ":")).encode()) <= max(limit, 100)
