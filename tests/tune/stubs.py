"""Worker processes that train nothing, for the tests of the tuner's side."""

import math
import os
import signal
import subprocess
import time
from pathlib import Path

from lightning_perf.tune.errors import NotApplicableError, NoTrainingError, TrialError
from lightning_perf.tune.messages import Order, Ready, Run, Window
from lightning_perf.tune.worker import describe_error


def diverge(channel):
    channel.receive(Order)
    channel.send(Ready())
    channel.receive(Run)
    channel.send(Window(1.5, 3, None, (math.nan, math.inf, -math.inf)))


def crash(channel):
    channel.receive(Order)
    print("noise\n" * 9 + "last words")
    os.kill(os.getpid(), signal.SIGSEGV)


def leave(channel):
    channel.receive(Order)
    os._exit(3)


def leave_after_ready(channel):
    channel.receive(Order)
    channel.send(Ready())
    os._exit(5)


def hang(channel):
    child = subprocess.Popen(["sleep", "100"])
    Path(channel.receive(Order).folder).write_text(str(child.pid))
    channel.send(Ready())
    time.sleep(100)


def die_beside_a_paused_child(channel):
    channel.receive(Order)
    child = os.fork()
    if child == 0:
        time.sleep(100)
    os.kill(child, signal.SIGSTOP)
    channel.send(Ready())
    channel.receive(Run)
    os.kill(os.getpid(), signal.SIGKILL)


def _fail(channel, error):
    channel.receive(Order)
    channel.describe = describe_error
    raise error


def not_applicable(channel):
    _fail(channel, NotApplicableError("not_applicable"))


def no_training(channel):
    _fail(channel, NoTrainingError("no_training"))


def broken(channel):
    _fail(channel, TrialError("broken"))
