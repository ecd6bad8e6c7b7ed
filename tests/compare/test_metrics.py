import pytest

from lightning_perf.compare.errors import CompareError
from lightning_perf.compare.metrics import find_accuracy, reach_time, run_values
from lightning_perf.compare.record import EpochEnded, Outcome, RunEnded, RunStarted, append_line, read_record
from tests.compare.support import write_run


def run_with(folder, *epochs):
    folder.mkdir()
    path = folder / "run.jsonl"
    append_line(path, RunStarted("a", 0.0, {}))
    for number, metrics in enumerate(epochs):
        append_line(path, EpochEnded(number, 10.0 * (number + 1), number + 1, metrics))
    append_line(path, RunEnded(Outcome.FINISHED, 35.0))
    return read_record(path)


@pytest.mark.parametrize(
    ("metrics", "found"),
    [
        (("train_acc", "val_acc", "test_acc"), "val_acc"),
        (("train_acc", "test_acc"), "test_acc"),
        (("train_acc", "Accuracy"), "Accuracy"),
        (("train_accuracy",), "train_accuracy"),
        (("val_acc_top5", "val_acc"), "val_acc"),
        (("val_acc_b", "val_acc_a"), "val_acc_a"),
        (("val_loss", "lr"), None),
        ((), None),
    ],
)
def test_the_accuracy_is_found_by_its_name(tmp_path, metrics, found):
    assert find_accuracy([run_with(tmp_path / "a", dict.fromkeys(metrics, 0.5))]) == found


def test_only_a_metric_that_every_run_has_is_found(tmp_path):
    runs = [run_with(tmp_path / "a", {"val_acc": 0.5, "acc": 0.5}), run_with(tmp_path / "b", {"acc": 0.5})]
    assert find_accuracy(runs) == "acc"
    assert find_accuracy(runs, "val_acc") == "val_acc"
    assert find_accuracy([*runs, run_with(tmp_path / "c")]) == "acc"  # it died before its first epoch


def test_a_named_metric_that_no_run_has_is_an_error_that_lists_them(tmp_path):
    with pytest.raises(CompareError, match=r'"top1"\. They have: acc, loss\.'):
        find_accuracy([run_with(tmp_path / "a", {"loss": 1.0, "acc": 0.5})], "top1")
    with pytest.raises(CompareError, match="They have: none"):
        find_accuracy([], "top1")


def test_values_of_a_run(tmp_path):
    run = write_run(tmp_path / "a", step_ms=50, accuracies=(0.7, 0.9, 0.8))
    assert run_values(run, "val_acc", 0.85) == {
        "step_time": 50.0,
        "train_time": 30.0,
        "throughput": pytest.approx(32 / 0.05),
        "time_to_accuracy": 20.0,
        "accuracy": 0.8,
        "device_memory": 2**30,
        "host_memory": 2**31,
    }


def test_values_of_a_run_that_has_little(tmp_path):
    run = run_with(tmp_path / "a")
    assert {name: value for name, value in run_values(run, "val_acc", 0.85).items() if value is not None} == {
        "train_time": 35.0
    }


def test_a_miss_is_censored_at_the_last_epoch_and_nan_reaches_nothing(tmp_path):
    missed = run_with(tmp_path / "a", {"acc": 0.5}, {"acc": None}, {})
    assert (reach_time(missed, "acc", 0.9).time_s, reach_time(missed, "acc", 0.9).reached) == (30.0, False)
    reached = reach_time(missed, "acc", 0.5)
    assert (reached.time_s, reached.reached) == (10.0, True)
    assert reach_time(missed, "acc", None) is None
    assert reach_time(run_with(tmp_path / "b"), "acc", 0.5) is None
