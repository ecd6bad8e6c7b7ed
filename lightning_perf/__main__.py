"""``python -m lightning_perf``: the same as ``lightning-perf``."""

from __future__ import annotations

import sys

from lightning_perf.cli import main

if __name__ == "__main__":
    sys.exit(main())
