import pytest
import torch
from torch import nn

from lightning_perf.tune.levers.layout import ChannelsLast, CudnnBenchmark
from lightning_perf.tune.levers.lever import Machine
from lightning_perf.tune.training import Training
from tests.tune.trainings import Tiny

CPU = Machine("cpu", None, 2, "a CPU")
GPU = Machine("cuda", (8, 0), 2, "A100")


def test_channels_last_lays_the_weights_out_anew():
    training = Training(Tiny())
    values = training.module.layer.weight.clone()
    lever = ChannelsLast()
    assert lever.missing(training, CPU) is None
    assert lever.lines(training) == ("module = module.to(memory_format=torch.channels_last)",)
    lever.apply(training)
    weight = training.module.layer.weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()
    assert torch.equal(weight, values)
    assert lever.missing(training, CPU) == "the weights are in this order already"


def test_without_a_convolution_there_is_nothing_to_lay_out():
    module = Tiny()
    module.layer = nn.Linear(2, 2)
    assert ChannelsLast().missing(Training(module), CPU) == "the module has no 2-D convolution"
    assert CudnnBenchmark().missing(Training(module), GPU) == "the module has no convolution"


@pytest.mark.parametrize(
    ("machine", "trainer", "said"),
    [
        (CPU, {}, "needs a CUDA GPU"),
        (GPU, {"deterministic": True}, "the Trainer is deterministic"),
        (GPU, {"benchmark": True}, "is on already"),
        (GPU, {}, None),
    ],
)
def test_cudnn_benchmark(machine, trainer, said):
    training = Training(Tiny(), None, dict(trainer))
    assert CudnnBenchmark().missing(training, machine) == said
    if said is None:
        CudnnBenchmark().apply(training)
        assert training.trainer == {"benchmark": True}
        assert CudnnBenchmark().lines(training) == ("Trainer(benchmark=True)",)
