import pytest

from lightning_perf.tune.errors import NotApplicableError
from lightning_perf.tune.levers import memory
from lightning_perf.tune.levers.lever import Machine
from lightning_perf.tune.levers.memory import KeptMemory
from lightning_perf.tune.training import Training
from tests.tune.trainings import Tiny

CPU = Machine("cpu", None, 2, "a CPU")
GPU = Machine("cuda", (8, 0), 2, "A100")


@pytest.mark.parametrize(
    ("machine", "allocator", "said"),
    [
        (CPU, "glibc", None),
        (GPU, "glibc", "the model trains on a device"),
        (CPU, "jemalloc", "needs glibc's allocator, and this is jemalloc"),
        (CPU, None, "needs glibc's allocator, and this is another one"),
    ],
)
def test_where_it_applies(machine, allocator, said, monkeypatch):
    monkeypatch.setattr(memory, "allocator_name", lambda: allocator)
    assert KeptMemory().missing(Training(Tiny()), machine) == said


def test_the_line_sets_what_is_tried(monkeypatch):
    (line,) = KeptMemory().lines(Training(Tiny()))
    assert line.startswith("export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184 ")
    told = []
    monkeypatch.setattr(memory, "keep_memory", lambda: told.append("kept") or True)
    KeptMemory().apply(Training(Tiny()))
    assert told == ["kept"]


def test_a_c_library_that_refuses(monkeypatch):
    monkeypatch.setattr(memory, "keep_memory", lambda: False)
    with pytest.raises(NotApplicableError, match="glibc does not take"):
        KeptMemory().apply(Training(Tiny()))
