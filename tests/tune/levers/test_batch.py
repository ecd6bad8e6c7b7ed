import itertools

import pytest
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler, SequentialSampler, SubsetRandomSampler

from lightning_perf.tune.levers.lever import Machine
from lightning_perf.tune.levers.loader import BatchSize, FewerMicroBatches, training_loader
from lightning_perf.tune.training import Training
from tests.tune.trainings import Data, Pictures, Stream, Tiny

CPU = Machine("cpu", None, 4, "a CPU")


class TheirSampler(BatchSampler):
    pass


class WithoutEnd(Sampler):
    def __iter__(self):
        return itertools.cycle(range(8))


class WithoutLength(Dataset):
    def __getitem__(self, index):
        return Pictures()[index]


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        (DataLoader(Pictures(), batch_size=16), None),
        (DataLoader(Pictures(), batch_size=33), "fewer samples"),
        (DataLoader(Stream(), batch_size=400), None),
        (DataLoader(Pictures(), batch_size=None), "makes no batches itself"),
        (DataLoader(Pictures(), batch_sampler=TheirSampler(SequentialSampler(Pictures()), 4, False)), "of its own"),
        (DataLoader(Pictures(), batch_sampler=BatchSampler(SequentialSampler(Pictures()), 4, False)), "of its own"),
        (DataLoader(WithoutLength(), batch_size=16, sampler=WithoutEnd()), None),
        (DataLoader(Pictures(), batch_size=16, sampler=SubsetRandomSampler(range(31))), "fewer samples"),
        ("no loader", "not from a plain DataLoader"),
    ],
)
def test_where_batches_can_grow(loader, said):
    reason = BatchSize(2).missing(Training(Tiny(), loader), CPU)
    assert reason is None if said is None else said in reason


def test_batch_size():
    training = Training(Tiny(), Data())
    lever = BatchSize(4)
    assert lever.missing(training, CPU) is None
    assert lever.lines(training)[0] == "DataLoader(…, batch_size=16)"
    assert lever.lines(training)[1].startswith("lr = 4 * lr")
    lever.apply(training)
    assert [len(labels) for _, labels in training_loader(training)] == [16] * 4


def test_the_size_is_not_named_where_another_lever_may_change_it():
    training = Training(Tiny(), Data(), {"accumulate_grad_batches": 4})
    assert BatchSize(2).lines(training)[0] == "DataLoader(…, batch_size=2 * batch_size)"


@pytest.mark.parametrize("batches", [1, 3])
def test_an_odd_accumulation_stays(batches):
    training = Training(Tiny(), Data(), {"accumulate_grad_batches": batches})
    assert "even number" in FewerMicroBatches().missing(training, CPU)


def test_fewer_micro_batches_hold_the_same_samples_a_step():
    training = Training(Tiny(), Data(), {"accumulate_grad_batches": 4})
    lever = FewerMicroBatches()
    assert lever.missing(training, CPU) is None
    assert lever.lines(training) == ("DataLoader(…, batch_size=8)", "Trainer(accumulate_grad_batches=2)")
    lever.apply(training)
    assert training.trainer["accumulate_grad_batches"] == 2
    assert training_loader(training).batch_size == 8
