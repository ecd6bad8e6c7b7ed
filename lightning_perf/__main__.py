"""The process of a command: ``python -m lightning_perf``, and the script ``lightning-perf``."""

from __future__ import annotations

import gc
import sys

from lightning_perf import cli

READING = {"analyze", "diff", "explain", "gate", "history"}
"""Commands that read files and run no code of the user. They make many objects and hardly any garbage."""

FEW_COLLECTIONS = 50_000
"""New objects after which Python looks for garbage in a command that reads, instead of 700."""


def main() -> int:
    """Run the command of this process, and return its exit code."""
    if not READING & set(sys.argv[1:2]):
        return cli.main()
    gc.set_threshold(FEW_COLLECTIONS)
    code = cli.main()
    gc.freeze()  # as it ends, Python would look for garbage in everything that was loaded
    return code


if __name__ == "__main__":
    sys.exit(main())
