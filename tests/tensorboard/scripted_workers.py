"""Worker processes that run a piece of Python in place of each job."""

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

from lightning_perf.tensorboard.queue import DiffQuery, Done, Failed, Task, Working
from lightning_perf.workers.channel import Channel
from lightning_perf.workers.limits import limit_memory


def main(channel: Channel) -> None:
    """Run the code in a task's ``fetched`` or in place of the first report, and answer with the process's ID."""
    job = channel.receive(Task, DiffQuery)
    names = {"channel": channel, "job": job, "Done": Done, "Failed": Failed, "Working": Working, "Path": Path}
    code = job.fetched if isinstance(job, Task) else job.before
    exec(code, {**names, "os": os, "signal": signal, "subprocess": subprocess, "sys": sys, "time": time})
    channel.send(Done(str(os.getpid()).encode()))


def hungry(channel: Channel) -> None:
    """Be a real worker whose work takes 1 GiB of the 300 MiB that it may have."""
    import numpy

    from lightning_perf.tensorboard import documents

    limit = functools.partial(limit_memory, share=0.0, least_bytes=300 << 20)
    with mock.patch.multiple(
        documents, limit_memory=limit, work=lambda task, say: Failed(str(numpy.ones(1 << 30, dtype="u1").sum()))
    ):
        documents.main(channel)
