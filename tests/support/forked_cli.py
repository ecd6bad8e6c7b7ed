"""``-m tests.support.forked_cli ARGUMENTS``: the command line, whose worker processes are forked."""

import sys

import pytest

from lightning_perf.cli import main
from tests.support.processes import fork_workers

if __name__ == "__main__":
    fork_workers(pytest.MonkeyPatch())
    sys.exit(main(sys.argv[1:]))
