"""The facts of data sets and models, on small real ones."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

from lightning_perf.callbacks.run_record import fit_record
from lightning_perf.callbacks.run_record.fit_record import LateFacts
from lightning_perf.callbacks.run_record.run_facts import (
    batch_facts,
    data_facts,
    dataset_files,
    model_facts,
    training_facts,
)
from lightning_perf.compare.records import fingerprint
from tests.compare.records.test_fingerprint import Augmenting


class Folder(Dataset):
    """Like torchvision's `ImageFolder`."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.samples = [(str(file), 0) for file in sorted(root.rglob("*.png"))]

    def __len__(self) -> int:
        return len(self.samples)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for label in "ab":
        (tmp_path / "data" / label).mkdir(parents=True)
        for number in range(5):
            (tmp_path / "data" / label / f"{number}.png").write_bytes(f"{label}{number}".encode() * 10)
    return tmp_path / "data"


def loaded(loader: Any, validation: Any = None) -> Any:
    return data_facts(SimpleNamespace(train_dataloader=loader, val_dataloaders=validation))


def manifest(dataset: Any) -> Any:
    facts = loaded(DataLoader(dataset, 2))
    assert facts["data.val_manifest"] is None
    found = facts["data.manifest"]
    return found() if callable(found) else found


def paths(dataset: Any) -> list[str]:
    files = dataset_files(dataset)
    assert files is not None
    return [files[number] for number in range(len(files))]


def test_files_moved_elsewhere_are_the_same_data(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "else" / "where")
    assert manifest(Folder(root)) == manifest(Folder(tmp_path / "else" / "where")) is not None


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "b" / "3.png").write_bytes(b"4" + b"b3" * 9 + b"3"),
        lambda root: (root / "b" / "3.png").rename(root / "a" / "b3.png"),
        lambda root: (root / "a" / "9.png").touch(),
        lambda root: (root / "b" / "3.png").unlink(),
    ],
    ids=["content", "name", "more", "fewer"],
)
def test_one_other_file(root: Path, change: Callable[[Path], object]) -> None:
    before = manifest(Folder(root))
    change(root)
    assert manifest(Folder(root)) != before


def test_subsets_and_concatenations_are_of_their_files(root: Path) -> None:
    whole = Folder(root)
    assert paths(Subset(whole, [3, 1])) == [whole.samples[3][0], whole.samples[1][0]]
    both: ConcatDataset[Any] = ConcatDataset([Subset(whole, range(4)), Subset(whole, range(4, 10))])
    assert paths(both) == paths(whole) == [path for path, _ in whole.samples]
    assert manifest(both) == manifest(whole) != manifest(Subset(whole, range(9)))
    assert dataset_files(ConcatDataset([whole, TensorDataset(torch.ones(2))])) is None


def test_of_very_many_files_a_sample_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "MAX_FILES", 4)
    before = manifest(Folder(root))
    assert str(before).endswith("-sampled-2")
    (root / "a" / "0.png").write_bytes(b"other")
    content = manifest(Folder(root))
    (root / "b" / "3.png").rename(root / "b" / "33.png")
    assert len({before, content, manifest(Folder(root))}) == 3, "every name counts, read or not"


def test_arrays_in_memory() -> None:
    x = torch.arange(12.0).reshape(6, 2)
    base = TensorDataset(x)
    changed = x.clone()
    changed[5, 1] += 1
    assert manifest(base) == manifest(TensorDataset(x.clone())) != manifest(TensorDataset(changed))
    assert manifest(Subset(base, [0, 1])) not in (manifest(base), manifest(Subset(base, [0, 2])))
    assert manifest(ConcatDataset([base, base])) != manifest(base)


@pytest.mark.parametrize(
    "samples", [[], [1, 2], [("a.png", 0), 3], "text", [("a fine film", 1), ("/ bad", 0)], [("long " * 2000, 1)]]
)
def test_samples_that_are_no_files(samples: Any) -> None:
    assert dataset_files(SimpleNamespace(samples=samples)) is None


def test_a_length_that_cannot_be_had_costs_no_other_fact() -> None:
    class Endless(Dataset):
        def __len__(self) -> int:
            raise ValueError("as many as you like")

    facts = loaded(DataLoader(Endless(), sampler=[0, 1]))
    assert facts["data.length"] is None
    assert str(facts["data.class"]).endswith("Endless")


def test_layers_without_weights_yet_and_buffers() -> None:
    facts = model_facts(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.LazyLinear(4)))
    assert facts["model.parameters"] == 9
    assert facts["model.initial_weights"] is not None
    a, b = torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2)
    assert model_facts(a) == model_facts(b)
    assert b.running_mean is not None
    b.running_mean[0] = 1
    assert model_facts(a) != model_facts(b), "buffers count as weights"


def test_batches() -> None:
    x = torch.ones(2, 3)
    assert batch_facts({"x": x}) == batch_facts({"x": x.clone()}) != batch_facts({"y": x})
    assert batch_facts([x, ["a"]]) != batch_facts([x, ["b"]])
    assert batch_facts(iter([x])) == batch_facts("no tensors") == {"data.first_batch": None}


def test_a_list_of_very_many_samples_is_looked_at_in_few_places(root: Path) -> None:
    file = Folder(root).samples[0][0]
    dataset = SimpleNamespace(samples=[(file, 0)] * 3_000_000)
    files = dataset_files(Subset(dataset, range(0, 3_000_000, 3)))  # type: ignore[arg-type]
    assert files is not None
    assert len(files) == 1_000_000
    assert files[999_999] == file
    assert manifest(Subset(dataset, range(1_000_000))) != manifest(Subset(dataset, range(999_999)))  # type: ignore[arg-type]


def test_data_sets_that_compute_are_not_read() -> None:
    class Lazy(Dataset):
        def __init__(self) -> None:
            self.rows = Augmenting([torch.ones(2)])

        @property
        def samples(self) -> Any:
            raise AssertionError("a property was read")

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"asked for {name}")

    assert manifest(Lazy()) is None


def test_a_slow_disk_costs_the_fact_and_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_record, "WAIT_S", 0.01)
    disk = threading.Event()
    late = LateFacts({"data.manifest": lambda: str(disk.wait(30)), "code.revision": lambda: "c1"})
    found = late.collect() | late.finish()
    disk.set()
    assert found == {
        "code.revision": "c1",
        "data.manifest": "not hashed, because reading the files takes longer than the training",
    }
    assert not late


def test_files_that_are_gone_are_a_fact_and_no_error(root: Path) -> None:
    dataset = Folder(root)
    facts = loaded(DataLoader(dataset, 2))
    (root / "b" / "3.png").unlink()
    late = LateFacts({"data.manifest": facts["data.manifest"]})
    assert str(late.finish()["data.manifest"]).startswith("not hashed, because [Errno 2]")


def test_how_the_data_are_loaded_is_a_fact() -> None:
    data = TensorDataset(torch.ones(4))
    plain, busy = DataLoader(data, 2), DataLoader(data, 2, num_workers=2, prefetch_factor=3, persistent_workers=True)
    facts = [loaded(loader, [plain]) for loader in (plain, busy)]
    differing = {name: (facts[0][name], facts[1][name]) for name in facts[0] if facts[0][name] != facts[1][name]}
    assert differing == {
        "data.num_workers": (0, 2),
        "data.persistent_workers": (False, True),
        "data.prefetch_factor": (None, 3),
    }
    assert facts[0]["data.val_num_workers"] == 0


def test_callbacks_and_loggers_are_facts_and_those_of_this_library_are_not(tmp_path: Path) -> None:
    from lightning.pytorch import Trainer
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
    from lightning.pytorch.loggers import CSVLogger

    from lightning_perf import PerfCallback

    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    bare = Trainer(callbacks=[PerfCallback()], logger=False, enable_checkpointing=False, **quiet)
    busy = Trainer(callbacks=[ModelCheckpoint(tmp_path), EarlyStopping("loss")], logger=CSVLogger(tmp_path), **quiet)
    facts = [training_facts(trainer) for trainer in (bare, busy)]
    assert [fact["train.callbacks"] for fact in facts] == ["", "EarlyStopping, ModelCheckpoint"]
    assert [fact["train.loggers"] for fact in facts] == ["", "CSVLogger"]
    assert facts[0]["train.log_every_n_steps"] == 50
