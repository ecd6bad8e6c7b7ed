"""The worker's part in this process: it reads an order, and trains until it is asked to stop."""

import cloudpickle
import torch

from lightning_perf.tune import worker
from lightning_perf.tune.errors import describe_error
from lightning_perf.tune.messages import Order, Ready, Run, Scouted, Window
from lightning_perf.tune.tuner import TorchFlags
from lightning_perf.workers.channel import Failure, StopRequestedError, decode, encode


def order(source, folder, *levers, seed=0, scout=False):
    if isinstance(source, str):
        return Order(source, None, None, levers, seed, scout, str(folder))
    return Order(None, None, cloudpickle.dumps((TorchFlags.current(), source)), levers, seed, scout, str(folder))


class Conversation:
    """A `Channel` whose supervisor asks for windows of so many steps, and then to stop."""

    def __init__(self, order, *windows):
        self.waiting = [order, *map(Run, windows)]
        self.answers = []

    def send(self, message):
        self.answers.append(decode(encode(message), Ready, Window, Scouted))

    def receive(self, *kinds):
        if not self.waiting:
            raise StopRequestedError
        return decode(encode(self.waiting.pop(0)), *kinds)


def converse(order, *windows):
    """Let the worker train windows of so many steps; what it answers, an error as the last."""
    channel = Conversation(order, *windows)
    state = torch.random.get_rng_state()
    try:
        worker.work(channel)
    except Exception as error:
        return [*channel.answers, Failure(type(error).__name__, describe_error(error))]
    finally:
        torch.random.set_rng_state(state)
    return channel.answers
