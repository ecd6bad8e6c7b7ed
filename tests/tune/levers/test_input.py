import pytest
from torch.utils.data import DataLoader

from lightning_perf.tune.levers.input import PinnedMemory, Workers, training_loader
from lightning_perf.tune.levers.lever import Machine
from lightning_perf.tune.training import Training
from tests.tune.trainings import Data, Pictures, Stream, Tiny, WithOwnLoader

CPU = Machine("cpu", None, 4, "a CPU")
GPU = Machine("cuda", (8, 0), 4, "A100")


@pytest.mark.parametrize(
    ("loader", "lever", "said"),
    [
        (DataLoader(Pictures()), Workers(2), None),
        (DataLoader(Pictures()), Workers(8), "there are 4 cores"),
        (DataLoader(Pictures(), num_workers=2, persistent_workers=True), Workers(2), "is so already"),
        (DataLoader(Pictures(), num_workers=2, persistent_workers=True), Workers(2, prefetch=4), None),
        (DataLoader(Pictures(), num_workers=2), Workers(2), None),
        (DataLoader(Stream()), Workers(1), None),
        (DataLoader(Stream()), Workers(2), "shares them out"),
        ([1, 2], Workers(1), "come from list, not from a plain DataLoader"),
    ],
)
def test_where_workers_apply(loader, lever, said):
    reason = lever.missing(Training(Tiny(), loader), CPU)
    assert reason is None if said is None else said in reason


def test_workers_are_set():
    training = Training(Tiny(), Data(num_workers=1))
    lever = Workers(2, prefetch=4)
    assert lever.lines(training) == ("DataLoader(…, num_workers=2, persistent_workers=True, prefetch_factor=4)",)
    lever.apply(training)
    loader = training_loader(training)
    assert (loader.num_workers, loader.persistent_workers, loader.prefetch_factor) == (2, True, 4)
    assert loader.batch_size == 4


def test_pinned_memory():
    training = Training(WithOwnLoader())
    lever = PinnedMemory()
    assert lever.missing(training, CPU) == "needs a CUDA GPU"
    assert lever.missing(training, GPU) is None
    assert lever.lines(training) == ("DataLoader(…, pin_memory=True)",)
    lever.apply(training)
    assert training_loader(training).pin_memory
    assert lever.missing(training, GPU) == "is so already"
    assert "plain" in lever.missing(Training(Tiny(), {"a": DataLoader(Pictures())}), GPU)
