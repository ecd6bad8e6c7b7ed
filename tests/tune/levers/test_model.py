"""Levers of precision, layout, memory and compilation."""

import shutil

import pytest
import torch
from torch import nn

from lightning_perf.tune.errors import NotApplicableError
from lightning_perf.tune.levers import model
from lightning_perf.tune.levers.lever import Machine
from lightning_perf.tune.levers.model import TF32, ChannelsLast, Compiled, CudnnBenchmark, KeptMemory, MixedPrecision
from lightning_perf.tune.training import Training
from tests.tune.trainings import Tiny, lines

CPU = Machine("cpu", None, 2, "a CPU")
VOLTA = Machine("cuda", (7, 0), 2, "V100")
AMPERE = Machine("cuda", (8, 0), 2, "A100")


@pytest.mark.parametrize(
    ("name", "machine", "precision", "said"),
    [
        ("bf16-mixed", CPU, None, None),
        ("bf16-mixed", AMPERE, "32-true", None),
        ("bf16-mixed", VOLTA, None, "this GPU has no bfloat16 arithmetic"),
        ("16-mixed", CPU, None, "needs a CUDA GPU"),
        ("16-mixed", VOLTA, 32, None),
        ("bf16-mixed", AMPERE, "16-true", "the Trainer has a precision already, 16-true"),
    ],
)
def test_mixed_precision(name, machine, precision, said):
    training = Training(Tiny(), None, {"precision": precision})
    lever = MixedPrecision(name)
    assert lever.missing(training, machine) == said
    assert lines(lever, training) == (f'Trainer(precision="{name}")',)
    lever.apply(training)
    assert training.trainer == {"precision": name}


def test_tf32():
    training = Training(Tiny())
    assert TF32().missing(training, CPU) == TF32().missing(training, VOLTA) == "needs a CUDA GPU with TF32"
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        assert TF32().missing(training, AMPERE) is None
        TF32().apply(training)
        assert torch.get_float32_matmul_precision() == "high"
        assert TF32().missing(training, AMPERE) == "is on already"
    finally:
        torch.set_float32_matmul_precision(before)
    assert "high" in lines(TF32(), training)[0]


def test_channels_last_changes_the_order_of_the_weights():
    training = Training(Tiny())
    values = training.module.layer.weight.clone()
    lever = ChannelsLast()
    assert lever.missing(training, CPU) is None
    assert lines(lever, training) == ("module = module.to(memory_format=torch.channels_last)",)
    lever.apply(training)
    weight = training.module.layer.weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(weight, values)
    assert lever.missing(training, CPU) == "the weights are in this order already"
    training.module.layer = nn.Linear(2, 2)
    assert lever.missing(training, CPU) == "the module has no 2-D convolution"
    assert CudnnBenchmark().missing(training, AMPERE) == "the module has no convolution"


@pytest.mark.parametrize(
    ("machine", "trainer", "said"),
    [
        (CPU, {}, "needs a CUDA GPU"),
        (AMPERE, {"deterministic": True}, "the Trainer is deterministic"),
        (AMPERE, {"benchmark": True}, "is on already"),
        (AMPERE, {}, None),
    ],
)
def test_cudnn_benchmark(machine, trainer, said):
    training = Training(Tiny(), None, dict(trainer))
    assert CudnnBenchmark().missing(training, machine) == said
    CudnnBenchmark().apply(training)
    assert training.trainer["benchmark"] is True
    assert lines(CudnnBenchmark(), training) == ("Trainer(benchmark=True)",)


@pytest.mark.parametrize(
    ("machine", "allocator", "said"),
    [
        (CPU, "glibc", None),
        (AMPERE, "glibc", "the model trains on a device"),
        (CPU, "jemalloc", "needs glibc's allocator, and this is jemalloc"),
        (CPU, None, "needs glibc's allocator, and this is another one"),
    ],
)
def test_where_memory_can_be_kept(machine, allocator, said, monkeypatch):
    monkeypatch.setattr(model, "allocator_name", lambda: allocator)
    assert KeptMemory().missing(Training(Tiny()), machine) == said


def test_memory_is_kept_or_glibc_refuses(monkeypatch):
    (line,) = lines(KeptMemory(), Training(Tiny()))
    assert line.startswith("export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184 ")
    monkeypatch.setattr(model, "keep_memory", lambda: False)
    with pytest.raises(NotApplicableError, match="glibc does not take"):
        KeptMemory().apply(Training(Tiny()))


def test_compilation_needs_a_compiler_or_a_gpu(monkeypatch):
    training = Training(Tiny())
    assert "CUDA" in Compiled("reduce-overhead").missing(training, CPU)
    assert Compiled("reduce-overhead").missing(training, AMPERE) is None
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "install g++" in Compiled("default").missing(training, CPU)
    assert Compiled("default").missing(training, AMPERE) is None
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert Compiled("default").missing(training, CPU) is None
    assert lines(Compiled("default"), training) == ("trainer.fit(torch.compile(module), …)",)
    assert lines(Compiled("reduce-overhead"), training)[0].endswith('torch.compile(module, mode="reduce-overhead"), …)')
    Compiled("default").apply(training)
    assert isinstance(training.module, torch._dynamo.OptimizedModule)
    assert Compiled("default").missing(training, AMPERE) == "the module is compiled already"
