"""Every test here trains: on one thread, and without Lightning's advice on data loading."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from lightning_perf.callbacks.precision import switch as precision_switch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    advice = [
        "ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning",  # Lightning's own call
        "ignore:Found `dataloader_iter` argument:UserWarning",
        "ignore:You are using the `dataloader_iter` step flavor:UserWarning",
        "ignore:.*does not have many workers:UserWarning",
        "ignore:.*log_every_n_steps:UserWarning",
        "ignore:.*number of training batches:UserWarning",
        "ignore:You defined a `validation_step` but have no `val_dataloader`:UserWarning",
    ]
    for item in items:
        if "callbacks" in item.path.parts:
            for text in advice:
                item.add_marker(pytest.mark.filterwarnings(text))


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def fp16_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test train in 16-mixed on the CPU."""
    monkeypatch.setattr(precision_switch, "_FP16_ON_CPU", True)
