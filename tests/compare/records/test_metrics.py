import msgspec
import pytest
from msgspec.structs import replace

from lightning_perf.compare.records.metrics import Quality, best_logged, find_quality, reach_time, run_values
from lightning_perf.compare.records.record import read_record
from lightning_perf.errors import CompareError
from lightning_perf.run_files.fit.account import write_account
from lightning_perf.run_files.run_record import RUN_RECORD, EpochEnded, Outcome, RunEnded, RunStarted
from tests.compare.support import write_run
from tests.findings.accounts import USUAL, account


def run_with(folder, *epochs):
    folder.mkdir()
    path = folder / "run.jsonl"
    RUN_RECORD.append(path, RunStarted("a", 0.0, {}))
    for number, metrics in enumerate(epochs):
        RUN_RECORD.append(path, EpochEnded(number, 10.0 * (number + 1), number + 1, metrics))
    RUN_RECORD.append(path, RunEnded(Outcome.FINISHED, 35.0))
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
    quality = find_quality([run_with(tmp_path / "a", dict.fromkeys(metrics, 0.5))])
    assert (quality.name if quality is not None and quality.is_accuracy else None) == found


def test_a_metric_that_a_run_lacks_is_not_replaced_by_another(tmp_path):
    runs = [run_with(tmp_path / "a", {"val_acc": 0.5, "train_loss": 1.0})]
    renamed = [*runs, run_with(tmp_path / "b", {"val/acc": 0.5, "train_loss": 1.0})]
    assert find_quality(renamed) is None
    assert best_logged(renamed).name == "val/acc"
    assert find_quality(renamed, "val_acc") == Quality("val_acc")
    assert find_quality([*runs, run_with(tmp_path / "c")]) == Quality("val_acc")  # it died before its first epoch


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("brier_score", "loss"),
        ("dice_distance", "loss"),
        ("val_dice_loss", "loss"),
        ("inaccuracy", "loss"),
        ("MulticlassAccuracy", "accuracy"),
        ("val/acc@5", "accuracy"),
        ("acc1", "accuracy"),
        ("BinaryF1Score", "score"),
        ("val_mIoU", "score"),
        ("mAP50", "score"),
        ("valLoss", "loss"),
        ("accumulated_s", None),
        ("loss_scale", None),
        ("transfer_rate", None),
        ("gradients", None),
    ],
)
def test_the_direction_comes_from_whole_words(tmp_path, name, metric):
    quality = find_quality([run_with(tmp_path / "a", {name: 0.5})])
    assert (quality and quality.metric) == metric


@pytest.mark.parametrize(("better", "metric"), [(True, "score"), (False, "loss")])
@pytest.mark.parametrize("name", ["val_cer", "custom"])
def test_what_torchmetrics_knows_outweighs_the_name(tmp_path, name, better, metric):
    run = run_with(tmp_path / "a", {name: 0.5})
    epochs = tuple(msgspec.structs.replace(epoch, higher_is_better={name: better}) for epoch in run.epochs)
    quality = find_quality([replace(run, epochs=epochs)])
    assert (quality.name, quality.metric) == (name, metric)


def test_shares_and_per_cent_are_not_mixed(tmp_path):
    runs = [run_with(tmp_path / "a", {"val_acc": 0.9}), run_with(tmp_path / "b", {"val_acc": 80.0})]
    with pytest.raises(CompareError, match=r"val_acc: some runs logged shares of 1 \(up to 0.9\), others per cent"):
        find_quality(runs)
    assert find_quality(runs, quality="val_acc:max") == Quality("val_acc", metric="score")
    collapsed = [run_with(tmp_path / "c", {"val_acc": 0.1}), run_with(tmp_path / "d", {"val_acc": 76.0})]
    assert find_quality(collapsed) == Quality("val_acc", in_percent=True)


def test_a_named_metric_that_no_run_has_is_an_error_that_lists_them(tmp_path):
    with pytest.raises(CompareError, match=r'"top1"\. They logged: acc, loss\.'):
        find_quality([run_with(tmp_path / "a", {"loss": 1.0, "acc": 0.5})], "top1")
    with pytest.raises(CompareError, match="They logged: none"):
        find_quality([], "top1")


def test_values_of_a_run(tmp_path):
    run = write_run(tmp_path / "a", step_ms=50, accuracies=(0.7, 0.9, 0.8))
    assert run_values(run, Quality("val_acc"), 0.85) == {
        "step_time": 50.0,
        "train_time": 30.0,
        "throughput": pytest.approx(32 / 0.05),
        "fit_throughput": None,
        "time_to_first_step": None,
        "time_to_accuracy": 20.0,
        "accuracy": 0.8,
        "loss": None,
        "score": None,
        "device_memory": 2**30,
        "host_memory": 2**31,
    }


def test_values_of_the_whole_fit_come_from_its_account(tmp_path):
    write_run(tmp_path / "a", step_ms=50, accuracies=(0.7,))
    write_account(tmp_path / "a", account())
    run = read_record(tmp_path / "a" / "run.jsonl")
    values = run_values(run, None, None)
    wall_s = sum(seconds for seconds, _ in USUAL.values())
    assert values["fit_throughput"] == pytest.approx(32 * 1001 / wall_s)
    assert values["time_to_first_step"] == 3.0
    (tmp_path / "a" / "account.rank0.jsonl").write_text("[]\n", encoding="utf-8")
    assert run_values(read_record(tmp_path / "a" / "run.jsonl"), None, None)["fit_throughput"] is None


def test_values_of_a_run_that_has_little(tmp_path):
    run = run_with(tmp_path / "a")
    assert {name: value for name, value in run_values(run, Quality("val_acc"), 0.85).items() if value is not None} == {
        "train_time": 35.0
    }


def test_a_miss_is_censored_at_the_last_epoch_and_nan_reaches_nothing(tmp_path):
    missed = run_with(tmp_path / "a", {"acc": 0.5}, {"acc": None}, {})
    assert (reach_time(missed, Quality("acc"), 0.9).time_s, reach_time(missed, Quality("acc"), 0.9).reached) == (
        30.0,
        False,
    )
    reached = reach_time(missed, Quality("acc"), 0.5)
    assert (reached.time_s, reached.reached) == (10.0, True)
    assert reach_time(missed, Quality("acc"), None) is None
    assert reach_time(run_with(tmp_path / "b"), Quality("acc"), 0.5) is None


def test_the_accuracy_of_a_run_is_the_last_that_it_logged(tmp_path):
    run = run_with(tmp_path / "a", {"acc": 0.5}, {"acc": 0.7}, {"loss": 1.0})
    assert run_values(run, Quality("acc"), None)["accuracy"] == 0.7
    assert Quality("acc").is_in(run)
    assert not Quality("top5").is_in(run)


def test_an_accuracy_in_percent_is_read_as_a_share(tmp_path):
    runs = [run_with(tmp_path / "a", {"acc": 0.9}, {"acc": 93.5}), run_with(tmp_path / "b", {"acc": 100.0})]
    accuracy = find_quality(runs)
    assert accuracy == Quality("acc", in_percent=True)
    assert [run_values(run, accuracy, 0.9)["accuracy"] for run in runs] == [0.935, 1.0]
    assert run_values(runs[0], accuracy, 0.9)["time_to_accuracy"] == 20.0
    assert find_quality(runs, "acc") == accuracy


@pytest.mark.parametrize("values", [(-0.1, 0.5), (0.5, 101.0)])
def test_what_has_other_values_is_no_accuracy(tmp_path, values):
    run = run_with(tmp_path / "a", *({"acc_a": value, "acc_b": 0.5} for value in values))
    assert find_quality([run]) == Quality("acc_b")
    with pytest.raises(CompareError, match='"acc_a": not an accuracy'):
        find_quality([run], "acc_a")


@pytest.mark.parametrize("name", ["val_loss", "val/error_rate"])
def test_what_is_better_when_lower_is_no_accuracy(tmp_path, name):
    with pytest.raises(CompareError, match="where lower is better"):
        find_quality([run_with(tmp_path / "a", {name: 0.5})], name)
