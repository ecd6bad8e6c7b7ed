"""Batches that the probe sends between processes: which are sent, and that the times come back."""

import multiprocessing

import pytest
from msgspec.structs import asdict

from lightning_perf.probe.plan import plan_probe
from lightning_perf.probe.replay.worker import MOST_BYTES, time_transfer
from lightning_perf.trace.description import BATCH_KEY, Batch
from tests.findings.host_recordings import convolving, on_processor
from tests.support.trace_builder import FETCH

SENT = Batch(tensors=3, tensor_bytes=300_000, objects=5, object_bytes=10)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="it needs fork")
def test_times_of_sent_batches() -> None:
    times = time_transfer(SENT, 5.0)
    assert times is not None
    assert len(times.sent_ns) > 1
    assert len(times.received_ns) > 1
    assert min(times.received_ns) > 0


def test_a_batch_of_gigabytes_is_not_sent() -> None:
    assert time_transfer(Batch(1, MOST_BYTES + 1, 0, 0), 5.0) is None


@pytest.mark.parametrize(("fetch_us", "sent"), [(400, False), (600, True)])
def test_a_batch_is_sent_if_the_training_waits_for_batches(fetch_us: float, sent: bool) -> None:
    builder = convolving(on_processor())
    builder.top_level[BATCH_KEY] = asdict(SENT)
    for step in range(3):
        builder.annotation(FETCH, step * 10_000 + 100, fetch_us)
    plan = plan_probe(builder.build(), 5.0, has_cuda=False)
    assert plan is not None
    assert plan.task.batch == (SENT if sent else None)
