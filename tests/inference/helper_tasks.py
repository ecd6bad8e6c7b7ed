"""What a helper process does in the tests: as its first argument says."""

from __future__ import annotations

import os
import signal
import sys
import time

from lightning_perf.inference.helper_main import run_helper
from lightning_perf.inference.messages import Built, WorkOrder


def task(order, channel):
    match order.folder:
        case "chat":
            print("a library talks")
            os.write(1, b'{"type": "built"}\n')
            channel.reply(Built(1.5))
            for request in channel.requests():
                channel.reply(Built(request.seconds))
        case "raise":
            raise OSError("the disk is gone")
        case "exit":
            print("first\nthe reason", file=sys.stderr, flush=True)
            os._exit(3)
        case "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            time.sleep(60)


if __name__ == "__main__":
    run_helper(WorkOrder, task)
