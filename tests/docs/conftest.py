"""A folder that holds what the docs name: a run's folder, runs of several settings."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_perf import PerfCallback
from tests.callbacks.training import loader, make_module, make_trainer
from tests.compare.support import write_run
from tests.memory_snapshot.allocator import Allocator, train


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which a reader of the docs would stand; torch computes on one thread meanwhile."""
    folder = tmp_path_factory.mktemp("reader")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for name in ("lightning_logs/version_0", "lightning_logs/version_1", "before", "after"):
        _fit(folder / name)
    for n in range(6):
        write_run(folder / "logs" / "fp32" / f"run{n}", step_ms=100 + n, train__seed=n, started=2.0 * n)
        fast: dict[str, Any] = {"step_ms": 90 + n, "train__seed": n, "started": 2.0 * n + 1}
        write_run(folder / "logs" / "amp" / f"run{n}", train__precision="16-mixed", **fast)
        write_run(folder / "logs" / "main" / f"run{n}", step_ms=100 + n, train__seed=n, started=2.0 * n)
        write_run(folder / "logs" / "branch" / f"run{n}", code__revision="c2", **fast)
    for name in ("snapshot", "before", "after"):
        allocator = Allocator()
        train(allocator, 2)
        allocator.write(folder / f"{name}.pickle")
    yield folder
    torch.set_num_threads(threads)


def _fit(folder: Path) -> None:
    callback = PerfCallback(skip_first=2, warmup=1, active=2, repeat=1, report="none")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice on so small a training
        make_trainer(folder, callback).fit(make_module(), loader(8))
    assert (folder / "perf" / "report.json").is_file()
