"""``python -m lightning_perf.workers TARGET DESCRIPTOR``: how `WorkerProcess` starts a worker process."""

from __future__ import annotations

import sys

from lightning_perf.workers.channel import serve

if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
