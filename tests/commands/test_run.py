"""``lightning-perf run``: the script behaves as under ``python``."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from lightning_perf.cli import main
from lightning_perf.report.document import PerfReport
from lightning_perf.run_files.launch import LAUNCH_VARIABLE
from lightning_perf.run_files.steps import STEPS
from tests.support.entry_points import with_entry_points
from tests.support.processes import dies, fork_ranks

RUN = [sys.executable, "-m", "lightning_perf", "run"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return with_entry_points(tmp_path_factory.mktemp("metadata"))


class Place:
    """A folder with scripts, and the way to run them."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment

    def write(self, name: str, text: str) -> str:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text), encoding="utf-8")
        return name

    def python(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self._run([sys.executable, *arguments], variables)

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self._run([*RUN, *arguments], variables)

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*RUN, *arguments], cwd=self.folder, env=self.environment, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, **options,
        )  # fmt: skip

    def warm(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Call the command here and fork the script, without the seconds in which it would import Lightning."""

        def fork(command: Sequence[str]) -> int:
            variables = {**self.environment, LAUNCH_VARIABLE: os.environ[LAUNCH_VARIABLE]}
            found.append(fork_ranks(command[-1], ranks=1, variables=variables))
            return found[0].returncode

        found: list[subprocess.CompletedProcess[str]] = []
        said = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(said):
            patch.chdir(self.folder)
            patch.setenv(LAUNCH_VARIABLE, "")
            patch.setenv("COLUMNS", self.environment["COLUMNS"])
            patch.setattr("lightning_perf.workers.command.run_in_foreground", fork)
            patch.setattr("lightning_perf.commands.run._check_entry_points", lambda: None)
            code = main(["run", *arguments])
        (script,) = found
        return subprocess.CompletedProcess(arguments, code, script.stdout, script.stderr + said.getvalue())

    def _run(self, command: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.folder, env={**self.environment, **variables}, text=True, capture_output=True,
            check=False, timeout=200,
        )  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, environment: dict[str, str]) -> Place:
    return Place(tmp_path, environment)


SURROUNDINGS = """
    import json, os, sys
    print(json.dumps([sys.argv, sys.path[0], __name__, __file__, str(__spec__ and __spec__.name), os.getcwd(),
                      open("data.txt").read(), sys.flags.optimize, sorted(sys.modules)]))
    print("an error", file=sys.stderr)
"""


@pytest.mark.parametrize("start", [("script.py",), ("-m", "package.recipe"), ("-m", "package"), ("folder",)], ids=str)
def test_the_script_sees_what_it_would_see_under_python(place: Place, start: tuple[str, ...]) -> None:
    for name in ("script.py", "package/recipe.py", "package/__main__.py", "package/__init__.py", "folder/__main__.py"):
        place.write(name, "" if name.endswith("__init__.py") else SURROUNDINGS)
    (place.folder / "data.txt").write_text("relative")
    arguments = [*start, "--lr", "3", "--active", "x", "--", "-m", "--help"]
    expected = place.python(*arguments)
    assert expected.returncode == 0, expected.stderr
    seen = place.run("--active", "3", *arguments)
    assert seen.stdout == expected.stdout
    assert seen.stderr.startswith("an error\n")
    assert seen.returncode == 0


def test_the_flags_of_the_interpreter_are_kept(place: Place) -> None:
    name = place.write("flags.py", "import sys; print(sys.flags.optimize, sys.warnoptions, sys._xoptions)")
    flags = ["-O", "-W", "error", "-X", "dev"]
    expected = place.python(*flags, name).stdout
    seen = place.python(*flags, "-m", "lightning_perf", "run", name)
    assert seen.stdout == expected, seen.stderr


@pytest.mark.parametrize(
    "ending",
    ["sys.exit(3)", "sys.exit('a message')", "raise ZeroDivisionError('oh')", "os._exit(7)", "os.abort()",
     "os.kill(os.getpid(), signal.SIGKILL)", "raise KeyboardInterrupt", "import does_not_exist", "sys.exit()"],
)  # fmt: skip
def test_the_script_ends_as_under_python(place: Place, ending: str) -> None:
    name = place.write("ending.py", f"import os, signal, sys\ndef end():\n    {ending}\nend()\n")
    expected = place.python(name)
    seen = place.run(name)
    assert seen.returncode == expected.returncode
    assert seen.stdout == expected.stdout
    assert seen.stderr.startswith(expected.stderr)
    own = seen.stderr.removeprefix(expected.stderr)
    assert own.startswith("lightning-perf: nothing was measured: ")
    assert own.count("\n") == 1


LISTENER = """
    import signal, sys, time
    def hear(number, frame):
        print("heard", signal.Signals(number).name, flush=True)
        if number == signal.SIGTERM:
            sys.exit(5)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, hear)
    print("ready", flush=True)
    while True:
        time.sleep(0.05)
"""


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_signals_are_passed_on(place: Place) -> None:
    with place.start(place.write("listener.py", LISTENER)) as process:
        assert line(process) == "ready"
        for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGHUP, signal.SIGTERM):
            process.send_signal(number)
            assert line(process) == f"heard {number.name}"
        assert process.wait(20) == 5


def test_a_script_that_ignores_no_signal_dies_of_it(place: Place) -> None:
    name = place.write("sleeper.py", "import time; print('ready', flush=True); time.sleep(60)")
    with place.start(name) as process:
        assert line(process) == "ready"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == -signal.SIGTERM


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
def test_ctrl_c_reaches_the_script_once(place: Place) -> None:
    """The terminal sends it to both processes, and a second one would break off a graceful stop."""
    name = place.write(
        "counter.py",
        """
        import signal, time
        heard = []
        signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
        print("ready", flush=True)
        while not heard:
            time.sleep(0.05)
        time.sleep(1)
        print(len(heard), flush=True)
        """,
    )
    parent, child = os.openpty()
    opener = "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    command = [sys.executable, "-c", opener + "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])", *RUN[1:]]
    with subprocess.Popen(
        [*command, name], cwd=place.folder, env=place.environment, stdin=child, stdout=subprocess.PIPE, text=True
    ) as process:
        os.close(child)
        assert line(process) == "ready"
        os.write(parent, b"\x03")
        assert line(process) == "1"
        assert process.wait(20) == 0
    os.close(parent)


def test_the_script_dies_with_the_command(place: Place) -> None:
    name = place.write("pid.py", "import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    with place.start(name) as process:
        pid = int(line(process))
        process.kill()
        process.wait(20)
    assert dies(pid)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "run: no script is given. Give one, e.g. lightning-perf run train.py."),
        (["no.py"], "no.py: there is no such script. Check the path, or give a module with -m."),
        (["python", "x.py"], "python: there is no such script. Leave out the interpreter"),
        (["torchrun", "x.py"], "Give the launcher first, e.g. torchrun -m lightning_perf run train.py."),
        (["-m", "no.such.module"], "no.such.module: there is no such module."),
        (["json"], "Run the package as a module: lightning-perf run -m json."),
    ],
)
def test_a_wrong_script_is_an_error(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(LAUNCH_VARIABLE, raising=False)
    assert main(["run", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert LAUNCH_VARIABLE not in os.environ


@pytest.mark.parametrize(
    "arguments", [["--active", "0", "x.py"], ["--precision", "fp8", "x.py"], ["--max-overhead", "2", "x.py"]]
)
def test_wrong_options_are_errors(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["run", *arguments])
    assert exit_.value.code == 2
    assert "usage: lightning-perf run" in capsys.readouterr().err


def test_an_installation_without_the_entry_point_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.setattr("lightning_perf.commands.run.entry_points", lambda group: ())
    assert main(["run", str(tmp_path / "train.py")]) == 2
    assert "Install the package again: pip install " in capsys.readouterr().err


def test_a_script_without_a_trainer_is_pointed_to_the_loop(place: Place) -> None:
    done = place.run(place.write("plain.py", "print('hello')"))
    assert done.stdout == "hello\n"
    assert done.stderr.startswith("lightning-perf: nothing was measured: plain.py created no Lightning Trainer. ")
    assert "PerfTrainerCallback" in done.stderr
    assert "PerfLoop" in done.stderr


TRAINING = """
    import hashlib
    import sys

    import torch
    from {package} import LightningModule, Trainer
    from torch.utils.data import DataLoader, TensorDataset


    class Net(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 2))

        def training_step(self, batch, batch_idx):
            if {fail} and batch_idx == 12:
                raise ZeroDivisionError("a broken batch")
            return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)


    if __name__ == "__main__":
        torch.manual_seed(0)
        data = TensorDataset(torch.rand(160, 8), torch.arange(160) % 2)
        options = dict(accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False,
                       enable_model_summary=False)
        trainer = Trainer(max_epochs=1, **options, {options})
        net = Net()
        if {fit}:
            trainer.fit(net, DataLoader(data, 4, shuffle=True, {loader}))
        weights = b"".join(p.detach().numpy().tobytes() for p in net.parameters())
        print(trainer.global_rank, trainer.global_step, hashlib.sha256(weights).hexdigest())
"""


def training(
    place: Place, *, package: str = "lightning.pytorch", options: str = "", loader: str = "", fail: bool = False,
    fit: bool = True,
) -> str:  # fmt: skip
    text = dedent(TRAINING).format(package=package, options=options, loader=loader, fail=fail, fit=fit)
    return place.write("train.py", text)


def steps(folder: Path, rank: int = 0) -> list[int]:
    return [sample.step for sample in STEPS.read(folder / f"steps.rank{rank}.jsonl")]


@pytest.mark.slow
def test_a_training_is_measured_with_the_same_results(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.folder)
    expected = fork_ranks(training(place), ranks=1, variables=place.environment)
    assert expected.returncode == 0, expected.stderr
    assert not list(place.folder.rglob("perf*")), "a process that `run` did not start is left alone"
    name = training(place, loader="num_workers=1")
    done = place.run("--active", "4", "--skip-first", "2", "--warmup", "1", "-o", "out", name)
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected.stdout, "the same weights, and nothing else on standard output"
    assert steps(place.folder / "out") == list(range(40))
    report = PerfReport.load(place.folder / "out" / "report.json")
    assert len(report.ranks[0].breakdown.steps) == 4
    assert done.stderr.count("Full report: ") == 1
    assert "entry point" not in done.stderr, "Lightning announces other callbacks from entry points"


@pytest.mark.slow
def test_options_reach_the_callback_and_the_page_is_written(place: Place) -> None:
    name = training(place, package="pytorch_lightning")
    done = place.warm("--precision", "bf16-mixed", "--report", "full", "--open", "--active", "2", name)
    assert done.returncode == 0, done.stderr
    folder = place.folder / "perf"
    report = PerfReport.load(folder / "report.json")
    assert report.precision is not None
    assert report.precision.setting.precision == "bf16-mixed"
    assert "Step times without the profiler" in done.stderr
    assert "<html" in (folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_failing_training_keeps_its_traceback_and_its_report(place: Place) -> None:
    done = place.warm("--skip-first", "1", "--warmup", "1", "--active", "2", training(place, fail=True))
    assert done.returncode == 1
    assert "ZeroDivisionError: a broken batch" in done.stderr
    assert done.stderr.index("ZeroDivisionError") < done.stderr.index("Full report: ")
    assert steps(place.folder / "perf") == list(range(12))


OWN = "callbacks=[__import__('lightning_perf').PerfCallback(dirpath='mine', report='none')]"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"options": OWN}, "train.py has a PerfCallback of its own, which reports."),
        ({"options": "fast_dev_run=True"}, "nothing was measured: the Trainer has fast_dev_run"),
        ({"fit": False}, "nothing was measured: train.py ended with exit code 0 and trained no step with its Trainer"),
    ],
    ids=["own callback", "fast_dev_run", "no fit"],
)
def test_the_command_says_why_it_has_no_report(place: Place, change: dict[str, Any], message: str) -> None:
    done = place.warm(training(place, **change))
    assert done.returncode == 0, done.stderr
    assert message in done.stderr
    assert "Full report: " not in done.stderr
    assert not (place.folder / "perf").exists()
    assert (place.folder / "mine" / "report.json").exists() == ("options" in change and "mine" in change["options"])


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["lightning", "torchrun"])
def test_ranks_share_one_folder_and_one_report(place: Place, launcher: str) -> None:
    options = "strategy='ddp', devices=2"
    name = training(place, options=options)
    if launcher == "lightning":
        done = place.warm(name)
    else:
        start = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "-m", "lightning_perf", "run"]
        done = place.python(*start, name)
    assert done.returncode == 0, done.stderr
    assert sorted(text.split()[:2] for text in done.stdout.splitlines()) == [["0", "20"], ["1", "20"]]
    folder = place.folder / "perf"
    assert steps(folder, 0) == steps(folder, 1) == list(range(20))
    assert [rank.rank for rank in PerfReport.load(folder / "report.json").ranks] == [0, 1]
    assert done.stderr.count("Full report: ") == 1
    assert "nothing was measured" not in done.stderr
