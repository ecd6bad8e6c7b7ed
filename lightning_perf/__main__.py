"""The process of a command: ``python -m lightning_perf``, and the script ``lightning-perf``."""

from __future__ import annotations

import gc
import sys

from lightning_perf import cli


def main() -> int:
    """Run the command of this process, and return its exit code."""
    code = cli.main()
    if "torch" not in sys.modules:  # with torch, objects of the user may wait for the collector to close them
        gc.freeze()  # Python would look for garbage in everything that a command has loaded, just before it ends
    return code


if __name__ == "__main__":
    sys.exit(main())
