import shutil

import torch

from lightning_perf.tune.levers.compiled import Compiled
from lightning_perf.tune.levers.lever import Machine
from lightning_perf.tune.training import Training
from tests.tune.trainings import Tiny

CPU = Machine("cpu", None, 4, "a CPU")
GPU = Machine("cuda", (8, 0), 4, "A100")


def test_cuda_graphs_need_a_gpu():
    assert "CUDA" in Compiled("reduce-overhead").missing(Training(Tiny()), CPU)
    assert Compiled("reduce-overhead").missing(Training(Tiny()), GPU) is None


def test_a_cpu_needs_a_compiler(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "install g++" in Compiled("default").missing(Training(Tiny()), CPU)
    assert Compiled("default").missing(Training(Tiny()), GPU) is None
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert Compiled("default").missing(Training(Tiny()), CPU) is None


def test_the_module_is_wrapped_once():
    training = Training(Tiny())
    module = training.module
    Compiled("default").apply(training)
    assert isinstance(training.module, torch._dynamo.OptimizedModule)
    assert training.module._orig_mod is module
    assert Compiled("default").missing(training, GPU) == "the module is compiled already"


def test_lines():
    training = Training(Tiny())
    assert Compiled("default").lines(training) == ("trainer.fit(torch.compile(module), …)",)
    assert Compiled("reduce-overhead").lines(training)[0].endswith('torch.compile(module, mode="reduce-overhead"), …)')
