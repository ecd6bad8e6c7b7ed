"""Levers of the input pipeline: workers, pinned memory, and the samples of a batch."""

import itertools
import os
import subprocess
import sys
import time

import pytest
import torch
from msgspec.structs import replace
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from lightning_perf.tune.levers.lever import Machine
from lightning_perf.tune.levers.loader import (
    BatchSize,
    FewerMicroBatches,
    PinnedMemory,
    Workers,
    change_loader,
    fetch_cpu_share,
    rebuilt,
    training_loader,
)
from lightning_perf.tune.training import Training
from tests.tune.trainings import Data, Pictures, Stream, Tiny, WithOwnLoader, lines

CPU = Machine("cpu", None, 4, "a CPU")
GPU = Machine("cuda", (8, 0), 4, "A100")


@pytest.mark.parametrize(
    ("loader", "lever", "said"),
    [
        (DataLoader(Pictures()), Workers(2), None),
        (DataLoader(Pictures()), Workers(8), "there are 4 cores"),
        (DataLoader(Pictures(), num_workers=2, persistent_workers=True), Workers(2), "it is already set"),
        (DataLoader(Pictures(), num_workers=2, persistent_workers=True), Workers(2, prefetch=4), None),
        (DataLoader(Pictures(), num_workers=2), Workers(2), None),
        (DataLoader(Stream()), Workers(1), None),
        (DataLoader(Stream()), Workers(2), "splits them itself"),
        ([1, 2], Workers(1), "come from list, not from a plain DataLoader"),
    ],
)
def test_where_workers_apply(loader, lever, said):
    reason = lever.missing(Training(Tiny(), loader), CPU)
    assert reason is None if said is None else said in reason


class Slow(Pictures):
    """A data set that waits for a disk, or works as long."""

    def __init__(self, *, waits):
        super().__init__()
        self.waits = waits

    def __getitem__(self, index):
        begin = time.perf_counter()
        while time.perf_counter() - begin < 0.005:
            if self.waits:
                time.sleep(0.005)
        return super().__getitem__(index)


class SlowBatches(Slow):
    """A data set that waits only for the samples of a batch, like one of Hugging Face."""

    __getitem__ = Pictures.__getitem__

    def __getitems__(self, indices):
        return [Slow.__getitem__(self, index) for index in indices]


@pytest.mark.parametrize(("workers", "share", "applies"), [(8, 0.1, True), (8, 0.9, False), (41, 0.1, False)])
def test_workers_beyond_the_cores_are_tried_where_loading_waits(workers, share, applies):
    training = Training(Tiny(), DataLoader(Pictures()))
    assert (Workers(workers).missing(training, replace(CPU, fetch_cpu_share=share)) is None) == applies


def test_the_share_of_processor_time_tells_waiting_from_working():
    for data in (Slow, SlowBatches):
        waiting = fetch_cpu_share(Training(Tiny(), DataLoader(data(waits=True))))
        working = fetch_cpu_share(Training(Tiny(), DataLoader(data(waits=False))))
        assert waiting < min(working, 0.5)
    assert fetch_cpu_share(Training(Tiny(), DataLoader(Stream()))) is None
    assert fetch_cpu_share(Training(Tiny(), [1, 2])) is None


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_a_core_that_other_programs_use_is_no_slow_disk():
    cores = os.sched_getaffinity(0)
    core = f"import os\nos.sched_setaffinity(0, [{min(cores)}])\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", core]) as other:
        os.sched_setaffinity(0, [min(cores)])
        try:
            waiting = fetch_cpu_share(Training(Tiny(), DataLoader(Slow(waits=True))))
            working = fetch_cpu_share(Training(Tiny(), DataLoader(Slow(waits=False))))
        finally:
            os.sched_setaffinity(0, cores)
            other.kill()
    assert waiting < 0.5 < 0.8 < working


def test_workers_are_set():
    training = Training(Tiny(), Data(num_workers=1))
    lever = Workers(2, prefetch=4)
    assert lines(lever, training) == ("DataLoader(…, num_workers=2, persistent_workers=True, prefetch_factor=4)",)
    lever.apply(training)
    loader = training_loader(training)
    assert (loader.num_workers, loader.persistent_workers, loader.prefetch_factor) == (2, True, 4)
    assert loader.batch_size == 4


def test_pinned_memory():
    training = Training(WithOwnLoader())
    lever = PinnedMemory()
    assert lever.missing(training, CPU) == "needs a CUDA GPU"
    assert lever.missing(training, GPU) is None
    assert lines(lever, training) == ("DataLoader(…, pin_memory=True)",)
    lever.apply(training)
    assert training_loader(training).pin_memory
    assert lever.missing(training, GPU) == "it is already set"
    assert "plain" in lever.missing(Training(Tiny(), {"a": DataLoader(Pictures())}), GPU)


def stack(samples):
    return torch.stack([picture for picture, _ in samples]), torch.tensor([label for _, label in samples])


class Backwards(BatchSampler):
    def __iter__(self):
        return reversed(list(super().__iter__()))


PICTURES = Pictures(30)
LOADERS = {
    "plain": lambda: DataLoader(PICTURES, batch_size=4),
    "shuffled": lambda: DataLoader(PICTURES, batch_size=4, shuffle=True, drop_last=True),
    "generator": lambda: DataLoader(PICTURES, 4, shuffle=True, generator=torch.Generator().manual_seed(3)),
    "sampler": lambda: DataLoader(PICTURES, batch_size=4, sampler=WeightedRandomSampler([1.0] * 29 + [9.0], 20)),
    "batch sampler": lambda: DataLoader(PICTURES, batch_sampler=Backwards(SequentialSampler(PICTURES), 4, True)),
    "no batches": lambda: DataLoader(PICTURES, batch_size=None, sampler=RandomSampler(PICTURES)),
    "iterable": lambda: DataLoader(Stream(), batch_size=5, drop_last=True, collate_fn=stack),
    "iterable without batches": lambda: DataLoader(Stream(), batch_size=None),
}


def order_of(loader, seed=0):
    torch.manual_seed(seed)
    return [pictures.flatten().tolist() for pictures, _ in loader]


@pytest.mark.parametrize(("kind", "workers"), [*((kind, 0) for kind in LOADERS), ("shuffled", 1), ("batch sampler", 1)])
def test_a_rebuilt_loader_gives_the_same_batches_in_the_same_order(kind, workers):
    loader = rebuilt(LOADERS[kind](), num_workers=workers, persistent_workers=False, prefetch_factor=3)
    assert order_of(loader) == order_of(LOADERS[kind]())


def test_everything_else_of_a_loader_is_kept():
    kept = {"num_workers": 2, "collate_fn": stack, "timeout": 7, "worker_init_fn": torch.manual_seed}
    kept |= {"prefetch_factor": 5, "persistent_workers": True, "in_order": False}
    loader = DataLoader(PICTURES, batch_size=3, multiprocessing_context="spawn", **kept)
    new = rebuilt(loader, batch_size=6)
    assert {name: getattr(new, name) for name in kept} == kept
    assert new.multiprocessing_context.get_start_method() == "spawn"
    assert new.batch_size == 6
    alone = rebuilt(loader, num_workers=0, timeout=0)
    assert (alone.num_workers, alone.persistent_workers, alone.prefetch_factor) == (0, False, None)


def double(loader):
    return rebuilt(loader, batch_size=2 * loader.batch_size)


@pytest.mark.parametrize(("module", "data"), [(Tiny, Data()), (WithOwnLoader, None), (Tiny, DataLoader(PICTURES, 4))])
def test_loaders_are_found_and_changed_wherever_they_are(module, data):
    training = Training(module(), data)
    assert training_loader(training).batch_size == 4
    change_loader(training, double)
    assert training_loader(training).batch_size == 8
    change_loader(training, double)
    assert training_loader(training).batch_size == 16


def test_the_data_are_set_up_once_however_many_ask():
    class Counting(Data):
        calls = 0

        def setup(self, stage):
            Counting.calls += 1
            super().setup(stage)

    training = Training(Tiny(), Counting())
    assert training_loader(training) is training_loader(training)
    assert Counting.calls == 1


def test_what_is_no_plain_loader_is_told():
    class Own(DataLoader):
        pass

    assert (
        training_loader(Training(Tiny(), Own(PICTURES)))
        == "the training data come from Own, not from a plain DataLoader"
    )
    assert "without a running Trainer" in training_loader(Training(Tiny()))


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
    assert lines(lever, training)[0] == "DataLoader(…, batch_size=16)"
    assert lines(lever, training)[1].startswith("lr = 4 * lr")
    lever.apply(training)
    assert [len(labels) for _, labels in training_loader(training)] == [16] * 4


def test_fewer_micro_batches_hold_the_same_samples_a_step():
    training = Training(Tiny(), Data(), {"accumulate_grad_batches": 4})
    assert lines(BatchSize(2), training)[0] == "DataLoader(…, batch_size=2 * batch_size)"  # this lever may change it
    lever = FewerMicroBatches()
    assert lever.missing(training, CPU) is None
    assert lines(lever, training) == ("DataLoader(…, batch_size=8)", "Trainer(accumulate_grad_batches=2)")
    lever.apply(training)
    assert training.trainer["accumulate_grad_batches"] == 2
    assert training_loader(training).batch_size == 8
    for odd in (1, 3):
        accumulating = Training(Tiny(), Data(), {"accumulate_grad_batches": odd})
        assert "even number" in lever.missing(accumulating, CPU)
