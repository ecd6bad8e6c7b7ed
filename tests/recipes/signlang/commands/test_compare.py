"""``python -m recipes.signlang compare`` from its arguments to its exit code."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from lightning_perf.compare.engines.block import Device
from recipes.signlang.cli import main
from recipes.signlang.comparison import Experiment, define_study, engine_devices, runnable_precisions, runs_warning
from recipes.signlang.errors import RecipeError
from recipes.signlang.machine import TrainDevice, find_device
from recipes.signlang.settings import TrainSettings
from tests.compare.support import fake_gpus
from tests.support.processes import Forked

CPU = TrainDevice("cpu", "", has_tf32=False)
AMPERE = TrainDevice("gpu", "NVIDIA A100-SXM4-80GB", has_tf32=True)
VOLTA = TrainDevice("gpu", "Tesla V100-SXM2-16GB", has_tf32=False)


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for shade, label in enumerate(("a", "b")):
        for number in range(20):
            Image.new("L", (18, 18), 100 * shade + number).save(folder / f"{label}_{number}.png")
    return folder


@pytest.fixture
def experiment(tmp_path):
    training = TrainSettings(model="cnn", image_size=18, data_seed=5, seed=5)
    return Experiment(
        precisions=("32-true", "16-mixed"), runs=2, training=training, margin=0.01, goal=None, folder=tmp_path
    )


@pytest.mark.parametrize(
    ("device", "wanted", "precisions"),
    [
        (CPU, None, ("32-true", "bf16-mixed")),
        (AMPERE, None, ("32-true", "tf32", "16-mixed")),
        (VOLTA, None, ("32-true", "16-mixed")),
        (CPU, ["32-true", "16-mixed"], ("32-true", "bf16-mixed")),
        (AMPERE, ["16-mixed", "tf32"], ("16-mixed", "tf32")),
    ],
)
def test_the_device_decides_what_is_compared(device, wanted, precisions):
    assert runnable_precisions(wanted, device, lambda _: None) == precisions


@pytest.mark.parametrize(
    ("device", "visible", "uuids", "engine"),
    [
        (CPU, None, ["GPU-a"], Device("cpu", "")),
        (TrainDevice("mps", "", has_tf32=False), None, [], Device("mps")),
        (VOLTA, None, ["GPU-a", "GPU-b"], Device("GPU-a", "GPU-a")),
        (VOLTA, None, [], Device("gpu0")),
        (VOLTA, "1,MIG-2", ["GPU-a"], Device("gpu1-MIG-2")),
    ],
)
def test_runs_hold_the_lease_of_the_device_that_they_train_on(device, visible, uuids, engine, monkeypatch):
    fake_gpus(monkeypatch, uuids)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert engine_devices(device) == (engine,)


def test_what_is_replaced_or_missing_is_said():
    said = []
    runnable_precisions(["32-true", "16-mixed"], CPU, said.append)
    runnable_precisions(["32-true", "16-mixed"], AMPERE, said.append)
    replaced, missing = said
    assert "bf16-mixed is compared instead" in replaced
    assert "add tf32" in missing


@pytest.mark.parametrize(
    ("device", "wanted", "problem"),
    [
        (CPU, ["32-true", "tf32"], "no TF32"),
        (VOLTA, ["32-true", "tf32"], "Tesla V100-SXM2-16GB has no TF32"),
        (CPU, ["32-true", "16-mixed", "bf16-mixed"], "needs a GPU"),
        (CPU, ["32-true", "32-true"], "named twice"),
        (CPU, ["32-true"], "needs two"),
    ],
)
def test_what_cannot_be_compared_is_refused(device, wanted, problem):
    with pytest.raises(RecipeError, match=problem):
        runnable_precisions(wanted, device, lambda _: None)


def test_few_runs_are_warned_of_with_what_they_can_show():
    assert runs_warning(6) is None
    assert "the least is 0.0625" in runs_warning(5)
    assert "3.3 standard deviations" in runs_warning(3)
    assert "without an interval" in runs_warning(1)


def test_arms_differ_in_precision_alone(experiment):
    study = define_study(replace(experiment, precisions=("32-true", "tf32", "16-mixed")), AMPERE)
    assert [arm.name for arm in study.arms] == ["32-true", "tf32", "16-mixed"]
    options = [dict(zip(arm.command[4:-1:2], arm.command[5::2], strict=True)) for arm in study.arms]
    assert [(o.pop("--precision"), o.pop("--tf32")) for o in options] == [
        ("32-true", "off"), ("32-true", "on"), ("16-mixed", "off"),
    ]  # fmt: skip
    assert options[0] == options[1] == options[2]
    assert (options[0]["--seed"], options[0]["--data-seed"]) == ("{seed}", "5")
    assert study.treatment == ("precision", "tf32_matmul", "tf32_cudnn")
    on_cpu = define_study(experiment, CPU)
    assert on_cpu.treatment == ("precision",)
    assert all("--tf32" not in arm.command for arm in on_cpu.arms)


def test_the_commands_are_ones_that_train_understands(experiment, monkeypatch):
    taken = []
    monkeypatch.setattr("recipes.signlang.training.train.train", taken.append)
    training = replace(experiment.training, data=Path("x"), copies=2, workers=0, augment=True, skip_unreadable=True)
    for arm in define_study(replace(experiment, training=training), AMPERE).arms:
        main(arm.filled(seed=7, block=2, folder=Path("/run"))[3:])
    first, second = taken
    assert first == replace(
        training,
        data=Path("x").absolute(),
        seed=7,
        tf32="off",
        checkpoints=False,
        log_dir=Path("/run"),
        accelerator="gpu",
    )
    assert second == replace(first, precision="16-mixed")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--precisions", "32-true,tf32"], "no TF32"),
        (["--precisions", "32-true"], "needs two"),
        (["--data", "nowhere"], "no such file"),
    ],
)
def test_mistakes_end_with_code_2_before_the_first_run(tmp_path, arguments, problem, capsys):
    folder = tmp_path / "study"
    assert main(["compare", "--accelerator", "cpu", "--out", str(folder), *arguments]) == 2
    assert problem in capsys.readouterr().err
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("arguments", [["--precisions", "8-true"], ["--runs", "0"], ["--margin", "2"], ["--goal", "0"]])
def test_bad_options_end_with_code_2(arguments):
    with pytest.raises(SystemExit) as ended:
        main(["compare", *arguments])
    assert ended.value.code == 2


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    answer = '{"kind": "cpu", "name": "", "has_tf32": false}'
    done = subprocess.CompletedProcess([], 0, f"a library says hello\n{answer}\n", "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    assert find_device("auto") == CPU
    with pytest.raises(RecipeError, match="no such device"):
        find_device("gpu")


@pytest.mark.parametrize("command", ["train", "compare"])
def test_help_needs_no_torch(command):
    code = "import sys; sys.modules['torch'] = None; from recipes.signlang.cli import main; main([*sys.argv[1:], '-h'])"
    done = subprocess.run([sys.executable, "-c", code, command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--precision" in done.stdout


@pytest.mark.slow
def test_a_whole_comparison_and_going_on_with_it(pictures, tmp_path, capsys, monkeypatch):
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    # Not the leases of this machine: a study that someone runs meanwhile would be waited for.
    monkeypatch.setattr("lightning_perf.compare.study.checkouts.device_leases", lambda: tmp_path / "leases")
    # Nor the revision of this checkout: someone may be at work on it.
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "none"))
    monkeypatch.setattr("lightning_perf.workers.command._start", Forked)
    folder = tmp_path / "study"
    arguments = ["compare", "--data", str(pictures), "--out", str(folder), "--runs", "1", "--epochs", "1"]
    arguments += ["--image-size", "18", "--accelerator", "cpu", "--workers", "0", "--batch-size", "4"]
    assert main(arguments) == 0  # a verdict, though one run each has no interval
    said = capsys.readouterr()
    assert "without an interval" in said.err
    assert "Verdict  Inconclusive" in said.out
    document = json.loads((folder / "comparison.json").read_bytes())
    assert [arm["used"] for arm in document["arms"]] == [1, 1]
    assert document["treatment"] == ["precision"]
    assert {file.name for file in (folder / "plots").glob("*.png")} == {
        "times.png", "accuracy.png", "pairs.png", "ratios.png",
    }  # fmt: skip
    assert "Inconclusive" in (folder / "comparison.md").read_text()
    # The warm-up is profiled, timed runs are not; none saves checkpoints.
    traces = [file.relative_to(folder / "runs").parts[0] for file in folder.rglob("*.pt.trace.json.gz")]
    assert traces == ["block000", "block000"]
    assert not list(folder.rglob("*.ckpt"))

    runs = sorted(folder.rglob("run.jsonl"))
    assert main(arguments) == 0
    assert sorted(folder.rglob("run.jsonl")) == runs
    assert main([*arguments, "--lr", "0.02"]) == 2
    assert "different study" in capsys.readouterr().err
