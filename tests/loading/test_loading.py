"""Planted slow stages are named with their size, in a worker process of their own."""

import io
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from lightning_perf import cli
from lightning_perf.loading.measure import measure_loading, training_loader
from lightning_perf.loading.result import LoadingError, LoadingReport, StageTime, judge_loading
from lightning_perf.loading.stage_clock import StageClock
from tests.support.schemas import load_document

MS = 1_000_000
SLEEP_S = 0.02
BATCH = 2


class SlowRotate:
    def __call__(self, picture: Any) -> Any:
        time.sleep(SLEEP_S)
        return picture


def as_tensor(picture: Any) -> torch.Tensor:
    return torch.from_numpy(np.asarray(picture).copy())


class Compose:
    """The shape of torchvision's class of this name."""

    def __init__(self, transforms: list[Any]) -> None:
        self.transforms = transforms

    def __call__(self, picture: Any) -> Any:
        for transform in self.transforms:
            picture = transform(picture)
        return picture


class Pictures(Dataset[Any]):
    def __init__(self, folder: Path, slow: str) -> None:
        self.files = sorted(folder.glob("*.png"))
        self.slow = slow
        first = [SlowRotate()] if slow == "transform" else []
        self.transform = Compose([*first, as_tensor])

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> torch.Tensor:
        path = self.files[index % len(self.files)]
        if self.slow == "code":
            time.sleep(SLEEP_S)
        with open(self.pipe() if self.slow == "read" else path, "rb") as file:  # noqa: PTH123
            content = file.read()
        if self.slow == "read":
            content = path.read_bytes()
        picture = self.transform(Image.open(io.BytesIO(content)).convert("L"))
        assert isinstance(picture, torch.Tensor)
        return picture

    def pipe(self) -> int:
        """A pipe that stays empty for a while: reading from it waits like a slow disk."""
        import os
        import threading

        reader, writer = os.pipe()

        def write() -> None:
            time.sleep(SLEEP_S)
            os.close(writer)

        threading.Thread(target=write).start()
        return reader


def slow_collate(samples: list[torch.Tensor]) -> torch.Tensor:
    time.sleep(SLEEP_S)
    return torch.stack(samples)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pictures")
    for number in range(4):
        Image.fromarray(np.full((16, 16), number, np.uint8)).save(made / f"{number}.png")
    return made


@pytest.mark.parametrize(
    ("slow", "stage", "per_batch"),
    [
        ("transform", "transform SlowRotate", BATCH),
        ("read", "read files", BATCH),
        ("code", "dataset code", BATCH),
        ("collate", "collate", 1),
    ],
)
def test_a_planted_slow_stage_is_named_with_its_size(folder: Path, slow: str, stage: str, per_batch: int) -> None:
    collate = slow_collate if slow == "collate" else None
    pictures = Pictures(folder, slow)
    report = measure_loading(DataLoader(Subset(pictures, range(400)), BATCH, collate_fn=collate), seconds=0.2)
    assert report.stages[0].name == stage
    # Sleeping takes at least as long as planted. The thread that writes into the pipe sleeps before the read begins.
    assert report.stages[0].time_ns >= 0.9 * per_batch * SLEEP_S * 1e9
    assert {"decode", "transform as_tensor", "read files", "collate"} <= {each.name for each in report.stages}
    assert report.batch_size == BATCH
    assert report.loading_ns == sum(s.time_ns for s in report.stages if not s.name.startswith(("transfer", "pin")))
    assert report.limit == ("disk" if slow == "read" else "too few workers")
    assert type(pictures.transform.transforms[-1]).__name__ == "function", "the data set stays as it is"


def judged(**more: Any) -> LoadingReport:
    values: dict[str, Any] = {
        "name": "x",
        "stages": (
            StageTime("decode", 80 * MS),
            StageTime("collate", 20 * MS),
            StageTime("transfer between processes", MS),
        ),
        "batches": 10,
        "samples": 320,
        "cpu_ns": 95 * MS,
        "batch_bytes": 1000,
        "workers": 2,
        "cores": 8,
        "step_ms": None,
    }
    return judge_loading(**values | more)


def test_more_workers_are_faster_until_the_cores_are_busy() -> None:
    rates = {rate.workers: rate.samples_per_second for rate in judged().rates}
    assert rates[1] == pytest.approx(320)
    assert rates[4] == pytest.approx(1280)
    # 95 ms of processor time per batch on 8 cores: 84.2 batches per second at most.
    assert rates[16] == pytest.approx(32 * 8 / 0.095)


def test_the_limit() -> None:
    assert judged().limit == "processor"
    assert "decode" in judged().advice
    assert judged(step_ms=25.0).limit == "too few workers"
    assert judged(step_ms=25.0).needed_workers == 4
    assert "num_workers=4" in judged(step_ms=25.0).advice
    assert judged(step_ms=25.0, workers=4).limit == "none"
    assert judged(step_ms=25.0, cores=2).limit == "processor"
    reading = (StageTime("read files", 90 * MS), StageTime("decode", 10 * MS))
    assert judged(stages=reading, cpu_ns=20 * MS).limit == "disk"
    assert judged(stages=reading, cpu_ns=95 * MS).limit == "processor"
    moving = (StageTime("decode", 10 * MS), StageTime("transfer between processes", 50 * MS))
    assert judged(stages=moving, cpu_ns=10 * MS).limit == "transfer"


def test_stages_inside_each_other_do_not_count_twice() -> None:
    now = [0]
    clock = StageClock(lambda: now[0])
    with clock.stage("dataset code"):
        now[0] += 5
        with clock.stage("decode"):
            now[0] += 7
            with clock.stage("decode"), clock.stage("read files"):
                now[0] += 11
        now[0] += 2
    now[0] += 100
    assert clock.take() == {"dataset code": 7, "decode": 7, "read files": 11}
    assert clock.take() == {}


class WholeBatches(Dataset[Any]):
    """A data set that loads a batch at once, so that its collate function gets the batch."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("called for single samples")

    def __getitems__(self, indices: list[int]) -> Any:
        return torch.zeros(len(indices), 3), torch.zeros(len(indices))


def unchanged(batch: Any) -> Any:
    return batch


def test_a_data_set_that_loads_whole_batches() -> None:
    report = measure_loading(DataLoader(WholeBatches(), 8, collate_fn=unchanged), seconds=0.2)
    assert report.batch_size == 8
    assert report.batch_bytes == 8 * 4 * 4
    assert "dataset code" in {stage.name for stage in report.stages}


class Stream(IterableDataset[Any]):
    def __init__(self, folder: Path, batch: int | None = None, slow: str = "transform", length: int = 400) -> None:
        self.pictures = Pictures(folder, slow)
        self.batch, self.length = batch, length

    def __iter__(self) -> Any:
        for index in range(self.length):
            picture = self.pictures[index]
            yield picture if self.batch is None else torch.stack([picture] * self.batch)


@pytest.mark.parametrize("batch", [None, 3])
def test_a_stream_of_samples_or_batches(folder: Path, batch: int | None) -> None:
    loader = DataLoader(Stream(folder, batch), batch_size=BATCH if batch is None else None)
    report = measure_loading(loader, seconds=0.2)
    assert report.stages[0].name == "transform SlowRotate"
    transforms = BATCH if batch is None else 1
    assert report.stages[0].time_ns >= 0.99 * transforms * SLEEP_S * 1e9
    assert report.batch_size == (BATCH if batch is None else batch)
    assert report.iterable
    text = io.StringIO()
    report.print(file=text)
    assert "get_worker_info()" in text.getvalue()


def test_the_end_of_a_stream(folder: Path) -> None:
    report = measure_loading(DataLoader(Subset(Pictures(folder, ""), range(10)), BATCH), seconds=60)
    streamed = measure_loading(DataLoader(Stream(folder, slow="", length=10), batch_size=BATCH), seconds=60)
    assert report.batches == streamed.batches == 4


class ReadyBatches(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((7, 2), float(index))


def test_a_data_set_of_ready_batches() -> None:
    report = measure_loading(DataLoader(ReadyBatches(), batch_size=None), seconds=60)
    assert report.batches == 49
    assert report.batch_size == 7
    assert report.batch_bytes == 7 * 2 * 4
    assert not report.iterable


class Broken(Dataset[int]):
    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        raise self.error("a broken sample")


@pytest.mark.parametrize("error", [ValueError, TypeError, AttributeError])
def test_a_broken_sample_is_the_reason_on_one_line(error: type[Exception]) -> None:
    with pytest.raises(LoadingError) as refused:
        measure_loading(DataLoader(Broken(error), 2), seconds=0.1)
    problem = f"failed ({error.__name__}: a broken sample)"
    assert str(refused.value) == f"the loader: {problem}. Check that it loads in a for loop."


@pytest.mark.filterwarnings("ignore:Got pickle error")
def test_loaders_that_cannot_be_measured_say_why() -> None:
    with pytest.raises(LoadingError, match="Make its data set picklable"):
        measure_loading(DataLoader(lambda: 0, 1, num_workers=1, multiprocessing_context="spawn"), seconds=0.1)  # type: ignore[arg-type]
    for samples in ([], [1, 2]):
        with pytest.raises(LoadingError, match="fewer than two batches"):
            measure_loading(DataLoader(samples, 2), seconds=0.1)  # type: ignore[arg-type]
    with pytest.raises(LoadingError, match="returns int"):
        training_loader(3)


def make() -> Any:
    return DataLoader(list(range(500)), 4)  # type: ignore[arg-type]


class Data:
    """The shape of a LightningDataModule."""

    train_dataloader = staticmethod(make)


class Missing(Data):
    def setup(self, stage: str) -> None:
        raise FileNotFoundError(f"no file for {stage}")

    prepare_data_per_node = True


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["data", "tests.loading.test_loading:make", "--seconds", "0.2", "-q"]
    assert cli.main([*arguments, "--json", "--markdown", str(tmp_path / "a.md")]) == 0
    document = load_document("data", capsys.readouterr().out)
    assert document["schema_version"] == 1
    assert document["batch_size"] == 4
    assert "### Time per batch" in (tmp_path / "a.md").read_text(encoding="utf-8")
    assert cli.main([*arguments, "--step-ms", "1000"]) == 0
    assert "Limit: " in capsys.readouterr().out
    arguments[1] = "tests.loading.test_loading:Data"
    assert cli.main(arguments) == 0
    capsys.readouterr()
    assert cli.main(["data", "tests.loading.test_loading:Missing", "-q"]) == 2
    assert "Missing: fails (FileNotFoundError: no file for fit). Call it" in capsys.readouterr().err
    assert cli.main(["data", "tests.loading.test_loading:nothing", "-q"]) == 2
    assert cli.main(["data", "tests.loading.test_loading:judged_badly", "-q"]) == 2
    assert "judged_badly" in capsys.readouterr().err


@pytest.mark.parametrize(("transfer_ms", "workers", "limit"), [(3, 0, "too few workers"), (5, 0, "transfer")])
def test_a_transfer_that_is_longer_than_loading_gets_no_workers(transfer_ms: int, workers: int, limit: str) -> None:
    stages = (StageTime("collate", 4 * MS), StageTime("transfer between processes", transfer_ms * MS))
    report = judged(stages=stages, cpu_ns=4 * MS, workers=workers, cores=2, step_ms=10)
    assert report.limit == limit
    assert ("Leave num_workers=0" in report.advice) == (limit == "transfer")
