"""Values from a YAML file or from elsewhere in Python: the edits of files, and what a run of a copy decides."""

import subprocess
import textwrap
from pathlib import Path

import pytest
import yaml

from lightning_perf.tune.levers.lever import Setting
from lightning_perf.tune.messages import Arguments, Order, Profile, Scouted
from lightning_perf.tune.pairs import start_worker
from lightning_perf.tune.patches.origins import find_origins, parse_file
from lightning_perf.tune.patches.patch import READERS, find_patch
from lightning_perf.tune.patches.project_copy import run_in_copy, write_copy
from lightning_perf.workers.script import Script
from tests.support.processes import fork_workers
from tests.tune.patches.test_patch import FUSED, PRECISION, WORKERS, sites_in

TRAINER = (("max_epochs", "precision", "benchmark"),)


def edited(path, source, name, old, new):
    """The text with the likeliest edit, which changes nothing else; None if there is no place for it."""
    found = find_origins([name], old, new, TRAINER, {path: source.encode()})
    if not found:
        return None
    file = parse_file(path, source.encode())
    file.set_value(found[0])
    assert file.is_exact()
    return file.edited().decode()


@pytest.mark.parametrize(
    ("source", "old", "new", "expected"),
    [
        ("trainer:\n  precision: 32-true  # é\n", "32-true", "bf16-mixed", "trainer:\n  precision: bf16-mixed  # é\n"),
        ("precision: '32'\n", "32", "bf16-mixed", "precision: 'bf16-mixed'\n"),
        ("precision:\nmax_epochs: 1\n", None, "16-mixed", "precision: 16-mixed\nmax_epochs: 1\n"),
        ("- {precision: 32, max_epochs: 1}\n", 32, "x", "- {precision: x, max_epochs: 1}\n"),
        (
            "é: 1\ntrainer:\n    max_epochs: 3 # few\n\nmodel: {}\n",
            None,
            "bf16-mixed",
            "é: 1\ntrainer:\n    max_epochs: 3 # few\n    precision: bf16-mixed\n\nmodel: {}\n",
        ),
        ("_target_: T\nmax_epochs: 3", None, "x", "_target_: T\nmax_epochs: 3\nprecision: x"),
        ("max_epochs: 3\r\n\r\n", None, "x", "max_epochs: 3\r\nprecision: x\r\n\r\n"),
        ("trainer: {max_epochs: 3}\n", None, "x", "trainer: {max_epochs: 3, precision: x}\n"),
        # The files of a model and of a training without a fitting mapping have no place for it.
        ("model:\n  width: 3\n", None, "x", None),
        ("trainer:\n  callbacks: [a]\n  max_epochs: 3\n", None, "x", None),
        ("precision: ${oc.env:P}\n", "32-true", "x", None),
        ("a: !include b.yaml\nprecision: 32\n", 32, "x", None),
        ("a: 1\n---\nprecision: 32\n", 32, "x", None),
    ],
)  # fmt: skip
def test_a_yaml_file_keeps_everything_but_the_value(source, old, new, expected):
    assert edited("c.yaml", source, "precision", old, new) == expected
    if expected is not None:
        assert f"precision': {new!r}" in str(yaml.safe_load(expected))


@pytest.mark.parametrize(("near", "flag"), [("False", "True"), ("false", "true")])
def test_flags_have_the_style_of_their_neighbours(near, flag):
    assert (
        edited("c.yml", f"max_epochs: {near}\n", "benchmark", None, True) == f"max_epochs: {near}\nbenchmark: {flag}\n"
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('{"benchmark": null, "max_epochs": 1}', '{"benchmark": true, "max_epochs": 1}'),
        ('{"max_epochs": 1}', '{"max_epochs": 1, "benchmark": true}'),
        ('{\n  "max_epochs": 1\n}\n', '{\n  "max_epochs": 1,\n  "benchmark": true\n}\n'),
    ],
)
def test_a_json_file_stays_json(source, expected):
    assert edited("c.json", source, "benchmark", None, True) == expected
    assert edited("c.json", source, "benchmark", None, "a") == expected.replace("true", '"a"')


def test_an_alias_would_change_another_value():
    source = b"a: &x {precision: 32}\nb: *x\n"
    file = parse_file("c.yaml", source)
    file.set_value(find_origins(["precision"], 32, "x", (), {"c.yaml": source})[0])
    assert not file.is_exact()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("d = Data(32, workers=0)\n", "d = Data(32, workers=4)\n"),
        ("p.add_argument('-w', '--workers', default=0)\n", "p.add_argument('-w', '--workers', default=4)\n"),
        ("c = {'workers': 0, 'n': 0}\n", "c = {'workers': 4, 'n': 0}\n"),
        ("class C:\n    workers: int = 0\n", "class C:\n    workers: int = 4\n"),
        ("self.workers = 0\n", "self.workers = 4\n"),
        ("def f(n, workers=0, *, size=0): pass\n", "def f(n, workers=4, *, size=0): pass\n"),
        ("def f(n=0, *, workers=0): pass\n", "def f(n=0, *, workers=4): pass\n"),
        # Other loaders, other values, and no constants.
        ("DataLoader(validation, workers=0)\n", None),
        ("Data(workers=False)\n", None),
        ("Data(workers=2)\n", None),
        ("Data(workers=cpus())\n", None),
    ],
)  # fmt: skip
def test_a_constant_of_that_name_may_set_the_value(source, expected):
    assert edited("a.py", source, "workers", 0, 4) == expected


CALL = 'DataLoader(data, num_workers=config["workers"])\n'


def search(tmp_path, files, settings, arrived):
    """Search for the origins of the settings, with a script that gets its values from a function of the texts."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    sources = {str(tmp_path / name): text.encode() for name, text in files.items()}
    sites = sites_in(tmp_path / "a.py", files["a.py"])
    arguments, parameters = Arguments(arrived(files)), {"DataLoader": ((),), "Trainer": TRAINER}
    scouted = Scouted(None, {}, {}, Profile(), sites=sites, arguments=arguments, parameters=parameters)
    runs = []

    def run(texts):
        runs.append(texts)
        values = arrived({Path(path).name: text.decode() for path, text in texts.items()})
        return None if values is None else Arguments(values)

    kept = {f"lever {number}": [setting] for number, setting in enumerate(settings)}
    return find_patch(kept, scouted, sources, tmp_path, run), runs


def test_of_several_keys_the_one_whose_value_arrives_is_edited(tmp_path):
    files = {"a.py": CALL, "b.yaml": "workers: 0\n", "c.yaml": "data:\n  workers: 0\n"}

    def arrived(texts):
        workers = yaml.safe_load(texts["c.yaml"])["data"]["workers"]
        return {"DataLoader": {"num_workers": workers, "persistent_workers": False, "batch_size": 4}, "Trainer": {}}

    prefetching = Setting("DataLoader", WORKERS.arguments | {"prefetch_factor": "4"})
    patch, runs = search(tmp_path, files, [prefetching], arrived)
    assert len(runs) == 2
    # DataLoader refuses both where another configuration sets no workers.
    some = 'config["workers"] > 0'
    written = f"persistent_workers={some}, prefetch_factor=4 if {some} else None)"
    assert f'config["workers"], {written}' in patch.diff
    assert [(place.file, place.line, place.remark) for place in patch.places] == [
        ("a.py", f"DataLoader(…, {written}", None), ("c.yaml", "workers: 2", READERS),
    ]  # fmt: skip
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=patch.diff.encode(), check=True)
    assert (tmp_path / "c.yaml").read_text() == "data:\n  workers: 2\n"
    assert (tmp_path / "b.yaml").read_text() == "workers: 0\n"


def test_what_follows_from_another_value_needs_no_edit(tmp_path):
    call = "n = 0\nDataLoader(data, num_workers=n, persistent_workers=n > 0)\n"

    def arrived(texts):
        workers = int(texts["a.py"][4])
        return {"DataLoader": {"num_workers": workers, "persistent_workers": workers > 0}, "Trainer": {}}

    patch, _ = search(tmp_path, {"a.py": call}, [WORKERS], arrived)
    assert [(place.line, place.reason) for place in patch.places] == [("n=2", None)]
    assert "+n = 2\n DataLoader" in patch.diff


@pytest.mark.parametrize("harm", [{"batch_size": 2}, {"num_workers": 0}, None])
def test_a_value_that_does_not_arrive_or_moves_another_is_left_alone(harm, tmp_path):
    files = {"a.py": CALL, "b.yaml": "workers: 0\n"}
    before = {"DataLoader": {"num_workers": 0, "batch_size": 4}, "Trainer": {}}

    def arrived(texts):
        if texts == files:
            return before
        return None if harm is None else {"DataLoader": {"num_workers": 2, "batch_size": 4} | harm, "Trainer": {}}

    patch, _ = search(tmp_path, files, [WORKERS], arrived)
    assert patch.diff == ""
    assert patch.places[0].reason == 'num_workers is the expression config["workers"]: change its value'


def test_a_copy_has_other_texts_and_links(tmp_path):
    root, copy = tmp_path / "root", tmp_path / "copy"
    (root / "pkg" / "data").mkdir(parents=True)
    (root / "pkg" / "a.py").write_text("old")
    (root / "b.txt").write_text("b")
    write_copy(root, copy, {root / "pkg" / "a.py": b"new"})
    assert (copy / "pkg" / "a.py").read_text() == "new"
    assert (root / "pkg" / "a.py").read_text() == "old"
    assert {path.name for path in (copy / "b.txt", copy / "pkg" / "data") if path.is_symlink()} == {"b.txt", "data"}
    assert not (copy / "pkg").is_symlink()


CLI = """
    from lightning.pytorch.cli import LightningCLI
    from tests.tune.trainings import Pictures, Tiny
    import lightning.pytorch as pl
    import torch
    from torch.utils.data import DataLoader

    class Data(pl.LightningDataModule):
        def __init__(self, batch_size: int = 4, num_workers: int = 0):
            super().__init__()
            self.save_hyperparameters()

        def train_dataloader(self):
            return DataLoader(Pictures(), batch_size=self.hparams.batch_size, num_workers=self.hparams.num_workers)

    class Net(Tiny):
        def __init__(self, lr: float = 0.1):
            super().__init__()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    if __name__ == "__main__":
        LightningCLI(Net, Data)
"""
CONFIG = """\
# The training.
trainer:
  max_steps: 3
  accelerator: cpu
  logger: false

model: {lr: 0.5}
data:
  batch_size: 8
"""


def test_a_lightning_cli_is_patched_in_its_yaml_file(tmp_path, monkeypatch):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "main.py").write_text(textwrap.dedent(CLI))
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path)
    fork_workers(monkeypatch)
    order = Order(
        None, Script(("main.py", "fit", "--config", "config.yaml")), None, (), 0, True, str(tmp_path / "work")
    )
    with start_worker(order) as worker:
        scouted = worker.receive(Scouted, timeout_s=300)
    sources = {path: Path(path).read_bytes() for path in scouted.files}
    kept = {"bf16-mixed": [PRECISION], "workers-2": [WORKERS], "fused-optimizer": [FUSED]}
    patch = find_patch(kept, scouted, sources, tmp_path, lambda texts: run_in_copy(order, texts, 300))
    assert [(place.lever, place.file, place.reason) for place in patch.places] == [
        ("bf16-mixed", "config.yaml", None),
        ("workers-2", "main.py", None),
        ("workers-2", "config.yaml", None),
        ("fused-optimizer", "main.py", None),
    ]
    assert (tmp_path / "config.yaml").read_text() == CONFIG, "the copy was edited, not the project"
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=patch.diff.encode(), check=True)
    changed = CONFIG.replace("logger: false\n", "logger: false\n  precision: bf16-mixed\n")
    assert (tmp_path / "config.yaml").read_text() == changed.replace("size: 8\n", "size: 8\n  num_workers: 2\n")
