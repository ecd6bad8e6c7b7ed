"""The worker in this process, with a thread for the tuner: it reads an order, and trains until it is told to stop."""

import os
import sys
import threading
from multiprocessing.connection import Pipe

import cloudpickle
import torch

from lightning_perf.tune import worker
from lightning_perf.tune.flags import TorchFlags
from lightning_perf.tune.messages import Failed, Order, Run, Scouted, Stop


def order(source, folder, *levers, seed=0, scout=False):
    if not isinstance(source, str):
        source = cloudpickle.dumps((TorchFlags.current(), source))
    return Order(source, tuple(sys.path), levers, seed, scout, str(folder))


def converse(order, *windows):
    """Let the worker train windows of so many steps; what it answers."""
    ours, theirs = Pipe()
    answers = []

    def tuner():
        ours.send(order)
        for message in [*map(Run, windows), Stop()]:
            answers.append(ours.recv())
            if isinstance(answers[-1], (Failed, Scouted)):
                return
            ours.send(message)

    thread = threading.Thread(target=tuner, daemon=True)
    thread.start()
    state = torch.random.get_rng_state()
    try:
        worker.main(os.dup(theirs.fileno()))
    except BaseException as error:
        if not answers and not ours.poll(0):
            raise AssertionError("it raised without an answer") from error
    finally:
        torch.random.set_rng_state(state)
        theirs.close()
    thread.join(10)
    assert not thread.is_alive()
    return answers
