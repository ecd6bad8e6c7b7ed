"""One class for both packages."""

from __future__ import annotations

import importlib
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import lightning.pytorch
import pytest
import pytorch_lightning

from lightning_perf import PerfCallback
from lightning_perf.callbacks.lightning_compat import LightningCallback, holds_whole_model
from lightning_perf.lazy_imports import install_command
from tests.callbacks.training import PACKAGES


def test_a_callback_of_both_packages() -> None:
    assert issubclass(LightningCallback, lightning.pytorch.Callback)
    assert issubclass(LightningCallback, pytorch_lightning.Callback)


def test_no_name_that_a_trainer_overwrites() -> None:
    assert not {"log", "log_dict"} & {*vars(PerfCallback())}
    assert "log_dict" not in vars(PerfCallback)
    assert hasattr(vars(PerfCallback)["log"], "__set__"), "a descriptor is called, and not overwritten"


@pytest.mark.parametrize("hidden", ["lightning", "pytorch_lightning"])
def test_one_of_the_packages_is_enough(hidden: str) -> None:
    other = "pytorch_lightning" if hidden == "lightning" else "lightning.pytorch"
    code = f"""
import sys
sys.modules[{hidden!r}] = None
sys.modules["{hidden}.pytorch"] = None
from lightning_perf import PerfCallback
callback = PerfCallback()
assert not {{"lightning", "pytorch_lightning"}} & {{name for name, module in sys.modules.items() if module}}
import {other}
assert isinstance(callback, {other}.Callback)
assert [base.__module__.split(".")[0] for base in PerfCallback.__mro__].count({other.split(".")[0]!r}) == 1
assert not sys.modules.get({hidden!r})
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_without_either_the_error_says_what_to_install() -> None:
    code = """
import sys
sys.modules.update({name: None for name in ("lightning", "lightning.pytorch", "pytorch_lightning")})
import lightning_perf.callbacks.perf
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert install_command("train") in done.stderr


@pytest.mark.parametrize("name", PACKAGES)
def test_a_model_is_whole_where_lightning_replicates_it(name: str) -> None:
    strategies = importlib.import_module(f"{name}.strategies")
    ddp: Any = strategies.DDPStrategy
    fsdp: Any = strategies.FSDPStrategy

    def whole(strategy: Any) -> bool:
        return holds_whole_model(SimpleNamespace(strategy=strategy.__new__(strategy)))

    class Users(ddp):
        pass

    class UsersSharded(fsdp):
        pass

    assert [whole(each) for each in (strategies.SingleDeviceStrategy, ddp, Users)] == [True] * 3
    sharded = (fsdp, strategies.DeepSpeedStrategy, strategies.ModelParallelStrategy, UsersSharded)
    assert [whole(each) for each in (*sharded, object)] == [False] * 5
