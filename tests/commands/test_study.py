"""``lightning-perf study`` from the command line, with fake trainings."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lightning_perf.cli import main
from lightning_perf.compare.engines.block import Device
from lightning_perf.compare.engines.local import parse_devices
from lightning_perf.compare.records.record import find_records
from lightning_perf.compare.study.checkouts import Lease, device_leases
from lightning_perf.compare.study.definition import read_study
from lightning_perf.compare.study_options import EngineChoice, settle_options
from lightning_perf.compare.verdicts.gates import Settings
from lightning_perf.errors import CompareError
from lightning_perf.lazy_imports import install_command
from lightning_perf.run_files import journal
from lightning_perf.run_files.run_record import Outcome
from tests.compare.support import FAKE_RUN, fake_gpus
from tests.support.absent_packages import without
from tests.support.processes import until
from tests.support.schemas import load_document


def arm(name: str, *arguments: str) -> str:
    return f"--arm={name}={shlex.join([sys.executable, str(FAKE_RUN), *arguments])}"


ARMS = (arm("fp32"), arm("amp", "--step-ms=8", "--precision=16-mixed"))
STUDY = (*ARMS, "--treatment=precision")


@pytest.fixture(autouse=True)
def _own_leases(tmp_path, monkeypatch):
    """Other studies on this machine hold the lease of its CPU; these here are too short to disturb them."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "study"


def study(folder, *arguments):
    return main(["study", str(folder), *arguments])


def test_a_study_ends_with_its_comparison_and_run_again_shows_it_at_once(folder, tmp_path, capsys):
    markdown = tmp_path / "out" / "report.md"
    assert study(folder, *STUDY, "--blocks=3", "--json", f"--markdown={markdown}") == 0
    first = capsys.readouterr()
    document = load_document("study", first.out)
    assert document["candidates"][0]["verdict"]["kind"] == "faster"
    assert [arm["used"] for arm in document["arms"]] == [3, 3]
    assert re.search(r"block \d of 3: (fp32|amp) · about .* left", first.err)  # some go by between two looks
    assert "amp is faster than fp32" in markdown.read_text()
    files = sorted(folder.rglob("*"))
    assert study(folder) == 0
    second = capsys.readouterr()
    assert "amp is faster than fp32" in " ".join(second.out.split())
    assert "Resuming: 8 of 8 runs are finished." in second.err
    assert sorted(folder.rglob("*")) == files


def test_what_was_declared_beforehand_holds_when_the_study_goes_on(folder, capsys):
    declared = (*STUDY, "--blocks=2", "--gate=step_time<=0.5", "--margin=0.02")
    assert study(folder, *declared) == 1
    capsys.readouterr()
    assert study(folder) == 1
    assert "step_time<=0.5" in capsys.readouterr().out
    assert study(folder, *declared) == 1
    assert study(folder, "--gate=step_time<=2") == 2
    err = capsys.readouterr().err
    assert "was started with other rules" in err
    assert "gates: step_time<=0.5, not step_time<=2" in err
    assert main(["compare", str(folder), "--gate=step_time<=2"]) == 0


def test_arms_that_differ_in_more_than_the_treatment_are_code_3(folder, capsys):
    assert study(folder, arm("a"), arm("b", "--batch-size=64"), "--blocks=1") == 3
    assert "train.batch_size" in capsys.readouterr().err
    assert study(folder) == 3


def test_runs_that_fail_give_the_block_up_with_code_5_and_are_tried_anew_when_run_again(folder, tmp_path, capsys):
    broken = tmp_path / "broken"
    script = (
        f"import os,sys; os.environ['LIGHTNING_PERF_PLACE'].count('\"block\":1') and os.path.exists({str(broken)!r})"
    )
    script += f" and sys.exit('disk full'); import runpy; sys.argv=['x']; runpy.run_path({str(FAKE_RUN)!r}, run_name="
    script += "'__main__')"
    broken.touch()
    fragile = f"--arm=fragile={shlex.join([sys.executable, '-c', script])}"
    assert study(folder, arm("a"), fragile, "--blocks=1", "--attempts=2") == 5
    err = capsys.readouterr().err
    assert "disk full" in err
    assert "no valid run to compare" in err
    assert journal.read_block(folder, 1).over
    broken.unlink()
    assert study(folder) == 1  # the failures stay on record until they are allowed
    assert journal.read_block(folder, 1).done
    out = " ".join(capsys.readouterr().out.split())
    assert "fragile did not finish in 1 of 1 block (a: 0 of 1)" in out
    assert main(["compare", str(folder), "--allow=failures"]) in (0, 4)
    assert "Block 1: had been given up and was tried again." in out


def test_seed_block_folder_and_environment_reach_the_runs(folder, capsys):
    code = (
        "import os,sys,runpy; from pathlib import Path; "
        "Path(sys.argv[3],'seen').write_text(' '.join([*sys.argv[1:3], os.environ['X'], os.environ.get('Y','-')])); "
        f"sys.argv=['x']; runpy.run_path({str(FAKE_RUN)!r}, run_name='__main__')"
    )
    command = shlex.join([sys.executable, "-c", code, "{seed}", "{block}", "{dir}"])
    study(folder, f"--arm=a={command}", f"--arm=b={command}", "--env=X=1", "--env=b:Y=2=3", "--blocks=1", "--seed=7")
    seen = {path.parent.name: path.read_text() for path in (folder / "runs" / "block001").rglob("seen")}
    assert seen == {"attempt0-a": "8 1 1 -", "attempt0-b": "8 1 1 2=3"}
    assert read_study(folder).seed == 7


@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGKILL])
def test_what_was_cut_off_goes_on_with_the_folder_alone(folder, blow, capsys):
    arms = (arm("fp32", "--sleep=0.5"), arm("amp", "--sleep=0.5", "--step-ms=8", "--precision=x"))
    command = [sys.executable, "-c", "import sys; from lightning_perf.cli import main; sys.exit(main(sys.argv[1:]))"]
    command += ["study", str(folder), *arms, "--treatment=precision", "--blocks=2", "--gate=step_time<=0.9"]
    # A job in the background of a script ignores Ctrl-C; Python then installs no handler of its own.
    reset = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **reset)
    until(lambda: journal.read_block(folder, 1).open_run is not None)
    time.sleep(0.2)  # amid a run
    driver.send_signal(blow)
    out, err = driver.communicate(timeout=30)
    assert out == ""
    if blow is signal.SIGINT:
        assert driver.returncode == 130
        assert f"Resume with: lightning-perf study {folder}" in err
        assert "Traceback" not in err
    assert not journal.read_block(folder, 1).over
    assert journal.read_block(folder, 0).finished == {"fp32", "amp"}
    with Lease(device_leases(), "cpu", wait=True):  # the run died with its driver, so the device is free at once
        finished = {run.path for run in find_records(folder) if run.outcome is Outcome.FINISHED}
    assert study(folder) == 0
    counted = [run for run in find_records(folder) if run.outcome is Outcome.FINISHED]
    assert finished <= {run.path for run in counted}
    assert sorted((run.place.block, run.place.arm) for run in counted) == [
        (block, name) for block in range(3) for name in ("amp", "fp32")
    ]
    streams = capsys.readouterr()
    assert "Resuming: " in streams.err
    assert "step_time<=0.9" in streams.out
    words = " ".join(streams.out.split())
    assert "Block 1: the run of " in words
    assert journal.read_block(folder, 0).begun == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "there is no study to resume. To start one, give two arms"),
        (("--arm=a=true",), "two arms"),
        (("--arm=a", "--arm=b=true"), "the command is missing. Give NAME=COMMAND"),
        (("--arm=a=", "--arm=b=true"), "The arm a has no command"),
        (("--arm=a=echo 'x", "--arm=b=true"), "is not a shell command (No closing quotation). Check its quotes"),
        (("--arm=a=true", "--arm=a=true"), "two arms have this name"),
        (("--arm=a/b=true", "--arm=b=true"), "is not a valid name for an arm"),
        ((*ARMS, "--env=c:X=1"), "NAME is one of fp32, amp"),
        ((*ARMS, "--env=X"), "give [NAME:]KEY=VALUE"),
        (("--blocks=3",), "--blocks: defines a new study"),
        (("--env=X=1",), "--env: defines a new study"),
        ((*ARMS, "--gate=speed>1"), "speed"),
        ((*ARMS, "--gpus=2"), "--gpus: works only with --engine ray or --engine slurm"),
        ((*ARMS, "--engine=ray", "--devices=0"), "--devices: works only with --engine local"),
        ((*ARMS, "--engine=slurm", "--slurm=partition"), "give KEY=VALUE"),
        ((*ARMS, "--devices=99"), 'Unknown device "99"'),
    ],
)
def test_wrong_usage_is_code_2_and_leaves_no_study(folder, arguments, message, capsys):
    assert study(folder, *arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("lightning-perf: ")
    assert message in err
    assert not (folder / "blocks").exists()


def test_what_was_wrong_before_any_run_can_be_mended(folder, capsys):
    pytest.importorskip("submitit")
    assert study(folder, *ARMS, "--engine=slurm", "--slurm=partition=gpu") == 2
    assert "SLURM cannot be used" in capsys.readouterr().err
    assert study(folder, *STUDY, "--engine=local", "--devices=cpu", "--blocks=1") in (0, 4)
    assert read_study(folder).treatment == ("precision",)


def test_the_engine_is_kept_and_may_change_while_settings_stay(tmp_path):
    slurm = EngineChoice(engine="slurm", gpus=2, slurm={"partition": "gpu", "time": 60})
    assert settle_options(tmp_path, slurm, Settings(margin=0.02)).engine == slurm
    assert settle_options(tmp_path, None, Settings(margin=0.03)).settings.margin == 0.03
    settle_options(tmp_path, slurm, Settings(margin=0.02))
    journal.append(tmp_path, 0, journal.RunBegan("a", 0, "x", "cpu"))
    kept = settle_options(tmp_path, None, Settings())
    assert (kept.engine, kept.settings.margin) == (slurm, 0.02)
    with pytest.raises(CompareError, match=r"margin: 0\.02, not 0\.03"):
        settle_options(tmp_path, None, Settings(margin=0.03))
    ray = EngineChoice(engine="ray", address="auto")
    assert settle_options(tmp_path, ray, Settings(margin=0.02)).engine == ray
    assert settle_options(tmp_path, None, Settings()).engine == ray
    (tmp_path / "options.json").write_text("{")
    with pytest.raises(CompareError, match="does not hold the options of a study"):
        settle_options(tmp_path, None, Settings())


def test_the_default_device_is_the_first_that_may_be_used(monkeypatch):
    fake_gpus(monkeypatch, ["GPU-a", "GPU-b"])
    for visible, wanted in [("1", "GPU-b"), ("GPU-b,GPU-a", "GPU-b"), ("0", "GPU-a")]:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert parse_devices(None) == (Device(wanted, wanted),)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert parse_devices(None) == (Device("GPU-a", "GPU-a"),)
    assert parse_devices("1,0") == (Device("GPU-b", "GPU-b"), Device("GPU-a", "GPU-a"))
    with pytest.raises(CompareError, match="GPUs 0 to 1"):
        parse_devices("2")
    fake_gpus(monkeypatch, [])
    assert parse_devices(None) == (Device("cpu", None),)


def test_help_and_the_absence_of_scipy_are_told_before_any_run(folder, tmp_path):
    command = [sys.executable, "-c", without({"scipy", "torch"}), "study"]
    done = subprocess.run([*command, str(folder), *ARMS], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert install_command("compare") in done.stderr
    assert not folder.exists()
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0
    assert "130 interrupted by Ctrl-C; run again with the same FOLDER to resume" in " ".join(done.stdout.split())


def test_devices_get_a_warm_up_each(folder, monkeypatch, capsys):
    uuids = [f"GPU-{os.getpid()}-{n}" for n in range(2)]
    fake_gpus(monkeypatch, uuids)
    slow = (arm("a", "--sleep=0.3"), arm("b", "--sleep=0.3", "--step-ms=8"))
    assert study(folder, *slow, "--blocks=2", "--devices=0,1", "--allow=device.visible", "--json") == 0
    (warmed,) = journal.device_warm_ups(folder)
    assert warmed.endswith(uuids[1])
    assert journal.read_block(folder, 0).device.endswith(uuids[0])
    second = journal.read_block(folder, 0, warmed)
    assert (second.done, second.begun) == (True, 2)
    streams = capsys.readouterr()
    arms = json.loads(streams.out)["arms"]
    assert [arm["left_out"] for arm in arms] == [{"warm-up": 2}, {"warm-up": 2}]
    assert f"warm-up on {warmed}" in streams.err


def test_code_that_changes_in_the_middle_is_told_and_refused(folder, tmp_path, monkeypatch, capsys):
    repository = tmp_path / "code"
    repository.mkdir()
    (repository / "train.py").write_text(FAKE_RUN.read_text())
    git = ["git", "-C", str(repository), "-c", "user.name=x", "-c", "user.email=x@x"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *arguments], check=True)
    monkeypatch.chdir(repository)
    root = Path(__file__).parents[2]
    arms = [f"--arm={name}={sys.executable} train.py --facts-of-git" for name in "ab"]
    assert study(folder, *arms, "--blocks=1", f"--env=PYTHONPATH={root}") in (0, 4)
    assert "changed" not in capsys.readouterr().err
    (folder / "blocks" / "block001.jsonl").unlink()
    with (repository / "train.py").open("a") as file:
        file.write("# edited\n")
    assert study(folder) == 3
    err = " ".join(capsys.readouterr().err.split())
    assert "has changed since the study started" in err
    assert "The code changed during the study: a ran " in err
    assert "code.revision" in err
