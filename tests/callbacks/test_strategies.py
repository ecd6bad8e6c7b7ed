from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest

from lightning_perf.callbacks.lightning_compat import holds_whole_model
from tests.callbacks.training import PACKAGES


@pytest.mark.parametrize("name", PACKAGES)
def test_a_model_is_whole_where_lightning_replicates_it(name: str) -> None:
    strategies = importlib.import_module(f"{name}.strategies")

    def whole(strategy: type) -> bool:
        return holds_whole_model(SimpleNamespace(strategy=strategy.__new__(strategy)))

    class Users(strategies.DDPStrategy):
        pass

    class UsersSharded(strategies.FSDPStrategy):
        pass

    assert [whole(each) for each in (strategies.SingleDeviceStrategy, strategies.DDPStrategy, Users)] == [True] * 3
    sharded = (strategies.FSDPStrategy, strategies.DeepSpeedStrategy, strategies.ModelParallelStrategy, UsersSharded)
    assert [whole(each) for each in (*sharded, object)] == [False] * 5
