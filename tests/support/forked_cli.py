"""``-m tests.support.forked_cli ARGUMENTS``: the command line, whose worker processes are forked."""

import faulthandler
import os
import signal
import sys

import pytest

from lightning_perf.cli import main
from tests.support.processes import fork_workers

if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)
    fork_workers(pytest.MonkeyPatch())
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Multiprocessing would wait for a worker that Ctrl-C met while it was forked. It ends with this process.
    os._exit(code)
