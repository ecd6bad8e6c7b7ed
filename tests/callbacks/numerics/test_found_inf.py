from __future__ import annotations

import itertools

import torch

from lightning_perf.callbacks.numerics.loss_scale import PendingVerdict


def test_verdict_that_has_not_arrived_is_waited_for_only_at_the_end():
    arrived = itertools.chain([False, False], itertools.repeat(True))
    verdict = PendingVerdict(torch.tensor(1.0))

    class Event:
        synchronized = False

        def query(self) -> bool:
            return next(arrived)

        def synchronize(self) -> None:
            self.synchronized = True

    verdict._event = Event()
    assert verdict.read() is None
    assert verdict.read(wait=True) is True
    assert verdict._event.synchronized
    assert verdict.read() is True


def test_verdict_is_a_copy():
    found = torch.tensor(1.0)
    verdict = PendingVerdict(found)
    found.zero_()
    assert verdict.read() is True
