import json

import pytest

from lightning_perf.compare.records.record import find_records, read_record
from lightning_perf.errors import CompareError
from lightning_perf.run_files.run_record import (
    RUN_RECORD,
    FactsAdded,
    HealthSeen,
    Outcome,
    Place,
    RunStarted,
    numbers_only,
)
from tests.compare.support import FACTS, write_run


def test_a_finished_run_reads_back_whole(tmp_path):
    place = Place("s1", "amp", 2, 1, treatment=("precision",))
    run = write_run(tmp_path / "a", step_ms=50, accuracies=(0.5, None), started=7.0, place=place, train__seed=3)
    assert (run.run_id, run.started_unix_s, run.place) == ("a", 7.0, place)
    assert run.facts == FACTS | {"train.seed": 3}
    assert [(e.epoch, e.train_time_s, e.steps, e.metrics) for e in run.epochs] == [
        (0, 10.0, 10, {"val_acc": 0.5}),
        (1, 20.0, 20, {"val_acc": None}),
    ]
    assert (run.outcome, run.train_time_s) == (Outcome.FINISHED, 20.0)
    assert (run.peak_device_bytes, run.peak_host_bytes) == (2**30, 2**31)
    assert run.steps.mean_ns == 50_000_000


def test_a_record_without_its_end_is_of_an_interrupted_run_and_keeps_its_epochs(tmp_path):
    run = write_run(tmp_path / "a", outcome=None)
    assert run.outcome is Outcome.INTERRUPTED
    assert run.train_time_s is None
    assert len(run.epochs) == 3


def test_every_prefix_of_a_record_is_readable_once_it_has_begun(tmp_path):
    whole = write_run(tmp_path / "a")
    content = whole.path.read_bytes()
    first = content.index(b"\n")
    for end in (*range(0, len(content), 3), first - 1, first, first + 1, len(content) - 1):
        whole.path.write_bytes(content[:end])
        if end < first:
            with pytest.raises(CompareError, match="not a run record"):
                read_record(whole.path)
        else:
            # A line counts from its last brace on, with or without its newline.
            lines = content[: end + 1].count(b"\n")
            torn = read_record(whole.path)
            assert torn.epochs == whole.epochs[: lines - 1]
            assert torn.outcome is (Outcome.FINISHED if lines == 5 else Outcome.INTERRUPTED)


def test_facts_that_come_later_complete_the_fingerprint_and_problems_are_named_once(tmp_path):
    path = tmp_path / "run.jsonl"
    RUN_RECORD.append(path, RunStarted("a", 0.0, {"x": 1, "y": None}))
    RUN_RECORD.append(path, FactsAdded({"y": "known", "z": True}))
    RUN_RECORD.append(path, HealthSeen("throttled", 1.0))
    RUN_RECORD.append(path, HealthSeen("throttled", 2.0))
    run = read_record(path)
    assert run.facts == {"x": 1, "y": "known", "z": True}
    assert run.problems == ("throttled",)


def test_missing_or_damaged_step_samples_leave_the_run_without_step_times(tmp_path):
    run = write_run(tmp_path / "a")
    steps = run.path.with_name("steps.rank0.jsonl")
    steps.write_text("nonsense\n" + steps.read_text())
    assert read_record(run.path).steps is None
    steps.unlink()
    assert read_record(run.path).steps is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "its first line is not the start of a run"),
        (b"hello", "its first line is not the start of a run"),
        (b"\xff\xfe\n\xff", "not a run record"),
        (b"[]\n{}\n", "not a run record"),
        (b'{"type":"ended","outcome":"finished","train_time_s":1}\n', "its first line is not the start of a run"),
        (b'{"type":"started","run_id":"a","started_unix_s":0,"facts":{},"version":99}\n', "is newer than version"),
    ],
)
def test_what_is_no_record_is_an_error_with_its_path(tmp_path, content, message):
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    with pytest.raises(CompareError, match=message) as error:
        read_record(path)
    assert str(error.value).startswith(f"{path}: ")


def test_a_damaged_line_within_is_an_error_with_its_number(tmp_path):
    run = write_run(tmp_path / "a")
    lines = run.path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2][:9] + b"\n"
    run.path.write_bytes(b"".join(lines))
    with pytest.raises(CompareError, match="line 3 is no line of a run record"):
        read_record(run.path)


def test_records_are_found_below_a_folder_in_order_of_start(tmp_path):
    write_run(tmp_path / "late" / "x", started=5.0)
    write_run(tmp_path / "early", started=1.0)
    assert [run.run_id for run in find_records(tmp_path)] == ["early", "x"]
    assert [run.run_id for run in find_records(tmp_path / "early" / "run.jsonl")] == ["early"]


def test_no_folder_and_no_record_in_it_say_what_to_do(tmp_path):
    with pytest.raises(CompareError, match="no such folder"):
        find_records(tmp_path / "nowhere")
    with pytest.raises(CompareError, match="Runs with PerfCallback write one"):
        find_records(tmp_path)


def test_lines_are_plain_json(tmp_path):
    run = write_run(tmp_path / "a", problems=("throttled",))
    kinds = [json.loads(line)["type"] for line in run.path.read_text().splitlines()]
    assert kinds == ["started", "health", "epoch", "epoch", "epoch", "ended"]


def test_numbers_are_taken_from_metrics_and_nothing_else():
    class Odd:
        def __float__(self):
            raise RuntimeError("a tensor with more than one element")

    metrics = {"a": 1, "b": True, "c": "1", "d": float("inf"), "e": None, "f": Odd(), "g": [1]}
    assert numbers_only(metrics) == {"a": 1.0, "b": 1.0, "d": None}


@pytest.mark.parametrize("content", [b"", b'{"type":"started","run_id":"x","star'])
def test_a_run_that_died_as_it_began_failed_and_hides_no_other(tmp_path, content):
    write_run(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "run.jsonl").write_bytes(content)
    assert {(run.path.parent.name, run.outcome.value) for run in find_records(tmp_path)} == {
        ("a", "finished"),
        ("b", "failed"),
    }
    with pytest.raises(CompareError, match="the runs crashed at startup"):
        find_records(tmp_path / "b")
    with pytest.raises(CompareError, match="not a run record"):
        find_records(tmp_path / "b" / "run.jsonl")
