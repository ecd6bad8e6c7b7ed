"""Worker processes that make no documents."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import numpy

from lightning_perf.tensorboard import worker
from lightning_perf.tensorboard.task import Answered, Done, Failed, Refused, TableQuery, Task, Working
from lightning_perf.workers.channel import Channel
from lightning_perf.workers.memory_limit import limit_memory


def main(channel: Channel) -> None:
    """Read a task, run the Python code that its ``fetched`` holds, and answer `Done`."""
    task = channel.receive(Task)
    names = {"channel": channel, "task": task, "Done": Done, "Failed": Failed, "Working": Working, "Path": Path}
    exec(task.fetched, {**names, "os": os, "signal": signal, "subprocess": subprocess, "sys": sys, "time": time})
    channel.send(Done())


def queries(channel: Channel) -> None:
    """Run the Python code of each query, and answer with this process's ID."""
    while True:
        query = channel.receive(TableQuery)
        exec(query.wanted, {"channel": channel, "Refused": Refused, "os": os, "time": time})
        channel.send(Answered(str(os.getpid()).encode()))


def hungry(channel: Channel) -> None:
    """Be a real worker whose work takes 1 GiB of the 300 MiB that it may have."""
    limit = functools.partial(limit_memory, share=0.0, least_bytes=300 << 20)
    with mock.patch.multiple(
        worker, limit_memory=limit, work=lambda task, say: Failed(str(numpy.ones(1 << 30, dtype="u1").sum()))
    ):
        worker.main(channel)
