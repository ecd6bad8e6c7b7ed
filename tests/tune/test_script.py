"""Scripts as they are, in processes of their own, up to their first fit; and the calls that made its objects."""

import subprocess
import textwrap

import pytest
import torch
from torch.utils.data import DataLoader

from lightning_perf.tune.campaign import run_campaign
from lightning_perf.tune.errors import NoFitError, trial_errors
from lightning_perf.tune.messages import Order, Ready, Run, Scouted, Window
from lightning_perf.tune.pairs import start_worker
from lightning_perf.tune.result import Outcome
from lightning_perf.tune.script import Calls
from lightning_perf.tune.settings import TuneSettings
from lightning_perf.workers.script import Script
from tests.support.processes import fork_ranks, fork_workers
from tests.tune.trainings import Pictures

TRAIN = """
    import argparse
    import contextlib
    import time

    import lightning.pytorch as pl
    import torch
    from torch.utils.data import DataLoader
    from helpers import make_optimizer

    class Pictures(torch.utils.data.Dataset):
        def __len__(self):
            return 512

        def __getitem__(self, index):
            time.sleep({decode_s})
            return torch.full((2, 4, 4), index / 512), index % 2

    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Conv2d(2, 2, 3)

        def training_step(self, batch, batch_idx):
            assert "open" in states, "the context manager around fit is closed"
            return torch.nn.functional.cross_entropy(self.layer(batch[0]).mean((2, 3)), batch[1])

        def configure_optimizers(self):
            return make_optimizer(self)

    states = set()

    @contextlib.contextmanager
    def opened():
        states.add("open")
        yield
        states.clear()

    class Mine(pl.Trainer):
        def __init__(self, epochs):
            super().__init__(max_epochs=epochs, accelerator="cpu", devices=1, logger=False)

    if __name__ == "__main__":
        parser = argparse.ArgumentParser()
        parser.add_argument("--epochs", type=int, required=True)
        arguments = parser.parse_args()
        pl.seed_everything(42)
        print("a line of the script")
        loader = DataLoader(Pictures(), batch_size=4, shuffle=True)
        try:
            with opened():
                Mine(arguments.epochs).fit(Net(), loader)
        except BaseException:
            open("swallowed", "w").close()
        open("after", "w").close()
"""
HELPERS = """
    import torch

    def make_optimizer(module):
        return torch.optim.SGD(module.parameters(), lr=0.1)
"""


@pytest.fixture
def train(tmp_path):
    """A script and a module next to it, in a git repository."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "helpers.py").write_text(textwrap.dedent(HELPERS))
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN.replace("{decode_s}", "0")))
    return str(tmp_path / "train.py")


@pytest.fixture(autouse=True)
def _forked(monkeypatch):
    fork_workers(monkeypatch)


def start(tmp_path, monkeypatch, words, seed=0, *, scout=False):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work").mkdir(exist_ok=True)
    return start_worker(Order(None, Script(tuple(words)), None, (), seed, scout, str(tmp_path / "work")))


def test_a_scout_finds_the_calls_of_a_script(train, tmp_path, monkeypatch):
    with start(tmp_path, monkeypatch, [train, "--epochs", "3"], scout=True) as worker:
        scouted = worker.receive(Scouted, timeout_s=300)
    lines = (tmp_path / "train.py").read_text().splitlines()
    found = {place: site for place, (site,) in scouted.sites.items()}
    assert {place: lines[found[place].line - 1].strip() for place in ("Trainer", "DataLoader", "module")} == {
        "Trainer": 'super().__init__(max_epochs=epochs, accelerator="cpu", devices=1, logger=False)',
        "DataLoader": "loader = DataLoader(Pictures(), batch_size=4, shuffle=True)",
        "module": "Mine(arguments.epochs).fit(Net(), loader)",
    }
    assert (found["optimizer"].path, found["optimizer"].line) == (str(tmp_path / "helpers.py"), 5)
    assert found["DataLoader"].parameters[:2] == ("dataset", "batch_size")
    assert not found["DataLoader"].makes_others
    assert scouted.profile.note is None
    assert not {"after", "swallowed"} & {path.name for path in tmp_path.iterdir()}, "the script ran on"


def test_seeds_of_the_tuning_shift_those_of_the_script(train, tmp_path, monkeypatch):
    def losses(seed):
        with start(tmp_path, monkeypatch, [train, "--epochs", "3"], seed) as worker:
            worker.receive(Ready, timeout_s=300)
            worker.send(Run(4))
            return worker.receive(Window, timeout_s=300).losses

    assert losses(0) != losses(1)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "print('no data')",
            "own.py ended, and no Trainer of Lightning or Hugging Face trained. Its last lines: no data",
        ),
        (
            "print('no config', *'abc', sep='\\n')\nexit('usage')",
            "own.py exited with usage before its training began. Its last lines: no config | a | b | c",
        ),
        (
            """
                import torch

                weight = torch.ones(1, requires_grad=True)
                optimizer = torch.optim.SGD([weight], 0.1)
                while True:
                    try:
                        weight.sum().backward()
                        optimizer.step()
                    except BaseException:
                        print("swallowed")
            """,
            "own.py trains in a loop of its own. Only a Trainer of Lightning or Hugging Face can be tuned",
        ),
        ("open('/no/such')", "own.py failed before its training began (FileNotFoundError: [Errno 2] No such"),
    ],
)
def test_a_script_that_does_not_fit_says_why(source, said, tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(textwrap.dedent(source))
    with (
        pytest.raises(NoFitError, match=r".*") as error,
        trial_errors(),
        start(tmp_path, monkeypatch, ["own.py"]) as worker,
    ):
        worker.receive(Ready, timeout_s=300)
    assert str(error.value).startswith(said)


LR_FIND = """
    import lightning.pytorch as pl
    import torch
    from lightning.pytorch.demos.boring_classes import BoringModel
    from lightning.pytorch.tuner import Tuner

    class Net(BoringModel):
        lr = 0.1

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), self.lr)

    trainer, net = pl.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False), Net()
    Tuner(trainer).lr_find(net, num_training=150)
    trainer.fit(net)
"""


def test_a_search_for_the_learning_rate_is_no_loop_of_the_script(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(textwrap.dedent(LR_FIND))
    with start(tmp_path, monkeypatch, ["own.py"]) as worker:
        assert worker.receive(Ready, timeout_s=300) == Ready()


def make(data):
    return DataLoader(data, batch_size=2)


class Own(DataLoader):
    def __init__(self, data):
        super().__init__(data, batch_size=2)


def line_of(function):
    return function.__code__.co_firstlineno


def test_calls_are_those_of_the_project_that_made_the_object(request):
    calls = Calls(request.path.parent)
    with calls.of_loaders_and_optimizers():
        first, second, own = make(Pictures()), make(Pictures()), Own(Pictures())
        layer = torch.nn.Linear(1, 1)
        optimizer = torch.optim.AdamW(layer.parameters())
    (site,), (same,) = (calls.sites(loader, ())["DataLoader"] for loader in (first, second))
    assert (site.line, site.makes_others) == (line_of(make) + 1, True)
    assert site == same
    found = calls.sites(own, (optimizer, optimizer))
    assert (found["DataLoader"][0].line, found["DataLoader"][0].name) == (line_of(Own.__init__) + 1, "Own")
    assert [each.name for each in found["optimizer"]] == ["AdamW"]
    elsewhere = Calls(request.path.parent / "levers")
    with elsewhere.of_loaders_and_optimizers():
        loader = make(Pictures())
    assert elsewhere.sites(loader, ())["DataLoader"] == (f"{__name__}.make",)
    assert "note" not in DataLoader.__init__.__qualname__


@pytest.mark.slow
def test_a_slow_setting_of_a_script_becomes_a_patch_that_applies(train, tmp_path, monkeypatch):
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(TRAIN.replace("{decode_s}", "0.005")))
    monkeypatch.chdir(tmp_path)
    settings = TuneSettings(levers=("workers-2",), rounds=6, window_s=0.2, minutes=14)
    result = run_campaign(Script(("train.py", "--epochs", "1")), settings, print)
    assert [trial.outcome for trial in result.trials] == [Outcome.KEPT]
    assert result.confirmed
    assert result.losses.changed == pytest.approx(result.losses.unchanged, rel=1e-3)
    subprocess.run(["git", "apply", "-"], input=result.diff.encode(), cwd=tmp_path, check=True)
    assert "loader = DataLoader(Pictures(), batch_size=4, shuffle=True, num_workers=2," in path.read_text()
    assert fork_ranks("train.py", "--epochs", "1", ranks=1).returncode == 0
