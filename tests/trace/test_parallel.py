"""One file in several processes: the same columns and codes as in one, whatever becomes of the processes."""

import gzip
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.errors import TraceError
from lightning_perf.report.recording import analyze_recording, encode_recording
from lightning_perf.trace import parallel, reader
from lightning_perf.trace.reader import read_trace
from lightning_perf.trace.text import pieces
from lightning_perf.trace.trace import Trace
from tests.support.every_event import everything
from tests.support.same_trace import assert_same_trace
from tests.support.trace_builder import TraceBuilder
from tests.support.watched_workers import Watched, watch

CORPUS_FILES = (
    "hta/nccl_parser_config/nccl_data.b4b6dce.json.gz",
    "tracelens/mi300/ddp_resnet18_no_pool/train_resnet18.941dea2.json.gz",
)


@pytest.fixture(autouse=True)
def workers(monkeypatch: pytest.MonkeyPatch) -> type[Watched]:
    """Worker processes for small files."""
    monkeypatch.setattr(parallel, "BLOCK_BYTES", 1 << 13)
    for name in ("PARALLEL_BYTES", "PARALLEL_GZIP_BYTES"):
        monkeypatch.setattr(reader, name, 1)
    return watch(monkeypatch, parallel)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of pieces in a file of a few hundred kilobytes."""
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1 << 11)
    monkeypatch.setattr("lightning_perf.trace.text.bytestream.READ_BYTES", 1 << 10)


def both(path: Path, processes: int = 2) -> tuple[Trace, Trace]:
    return read_trace(path), read_trace(path, processes=processes)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_every_kind_of_event(suffix: str, processes: int, tmp_path: Path, workers: type[Watched]) -> None:
    path = tmp_path / f"trace{suffix}"
    data = everything().encode()
    path.write_bytes(gzip.compress(data) if suffix == ".json.gz" else data)
    one, several = both(path, processes)
    assert_same_trace(one, several)
    assert len(one.collectives) == 134
    assert len(one.regions) == len(one.counters) == 400
    assert len(one.threads) == 8
    assert [worker.exit_code for worker in workers.started] == [0] * processes


@pytest.mark.usefixtures("small_pieces")
def test_damaged_and_odd_files(tmp_path: Path, workers: type[Watched]) -> None:
    sound = everything()
    quotes = sound.replace('"aten::op7"', '"aten::"op7""').replace('"aten::op9"', '"a\tb"')
    events = json.loads(sound)["traceEvents"]
    texts = {
        "repaired": quotes,
        "truncated": sound[: len(sound) * 2 // 3],
        "since 1970": everything(1_700_000_000_000_000.25),
        "other keys first": sound.replace('"ph": "X", "cat": "python_', '"other": 1, "ph": "X", "cat": "python_'),
        "a list": json.dumps(events),
        "an unknown device": json.dumps(
            {"traceEvents": [e for e in events if e.get("cat") not in ("kernel", "gpu_memcpy")]}
        ),
    }
    for name, text in texts.items():
        path = tmp_path / f"{name}.json"
        path.write_text(text)
        one, several = both(path)
        assert_same_trace(one, several)
        if name == "repaired":
            assert several.problems.repaired_events > 0
        if name == "truncated":
            assert several.problems.truncated
        if name == "an unknown device":
            assert several.problems.unread_events == 400
    assert len(workers.started) == 2 * (len(texts) + 1)  # times since 1970 are read twice
    (tmp_path / "none").write_text('{"traceEvents": []}')
    with pytest.raises(TraceError):
        read_trace(tmp_path / "none", processes=2)


@pytest.mark.usefixtures("small_pieces")
def test_a_cut_inside_an_event_is_left_to_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lookalikes = [{"ph": "X", "name": "]},{[", "args": {}} for _ in range(40)]
    builder = TraceBuilder()
    for number in range(200):
        builder.op(f"op {number}", number, 1, data=lookalikes)
    path = builder.write(tmp_path / "trace.json")
    seen = []
    read = reader._read

    def note(path: Path, processes: int, **options: Any) -> Trace:
        seen.append(processes)
        return read(path, processes, **options)

    monkeypatch.setattr(reader, "_read", note)
    one, several = both(path)
    assert_same_trace(one, several)
    assert len(several.operators) == 200
    assert seen == [1, 2, 1]


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("fault", ["killed", "no interpreter", "no python"])
def test_a_process_that_fails(
    fault: str, tmp_path: Path, workers: type[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(everything())
    if fault == "killed":
        workers.blow = signal.SIGKILL
    else:
        monkeypatch.setattr(sys, "executable", {"no interpreter": "/bin/false", "no python": "/no/such/python"}[fault])
    assert_same_trace(*both(path))
    assert None not in [worker.exit_code for worker in workers.started]


@pytest.mark.usefixtures("small_pieces")
def test_ctrl_c_leaves_no_process(tmp_path: Path, workers: type[Watched], monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    path.write_text(everything())

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lightning_perf.trace.assembly.Assembly.extend", interrupt)
    with pytest.raises(KeyboardInterrupt):
        read_trace(path, processes=2)
    assert None not in [worker.exit_code for worker in workers.started]


def test_a_small_file_starts_no_process(
    tmp_path: Path, workers: type[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(everything())
    monkeypatch.setattr(reader, "PARALLEL_BYTES", path.stat().st_size + 1)
    read_trace(path, processes=2)
    assert workers.started == []


@pytest.mark.parametrize("file", CORPUS_FILES)
def test_a_real_trace(file: str, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "BLOCK_BYTES", 1 << 20)
    path = corpus / "traces" / file
    documents = [encode_recording(analyze_recording([path], processes=number)) for number in (1, 2, 4)]
    assert documents[0] == documents[1] == documents[2]
    assert_same_trace(*both(path))
