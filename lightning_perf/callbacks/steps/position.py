"""Where a process is: its threads' Python stacks, its child processes, and its last collective operation."""

from __future__ import annotations

import pickle
import subprocess
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from lightning_perf.machine.processor import process_counters

_PROC = Path("/proc")

_PACKAGE = str(Path(__file__).parents[2])

_HOOKS = {
    "training_step": "forward",
    "validation_step": "forward",
    "backward": "backward",
    "optimizer_step": "optimizer",
    "batch_to_device": "transfer",
    "save_checkpoint": "checkpoint",
}

_PHASES = (
    ("/torch/utils/data/dataloader.py", "fetch"),
    ("/loops/fetchers.py", "fetch"),
    ("/torch/_dynamo/convert_frame.py", "compilation"),
    ("/torch/_inductor/compile_fx.py", "compilation"),
    ("/torch/_tensor.py", "backward"),
    ("/torch/autograd/graph.py", "backward"),
    ("/torch/optim/", "optimizer"),
)
"""Parts of file names, and the phase in which their functions run. The innermost function decides."""

_STATES = {
    "R": "running or ready to run",
    "S": "waiting",
    "D": "waiting for a disk or a file system",
    "T": "stopped",
    "t": "stopped",
    "Z": "ended",
}
"""The states of a process (proc_pid_stat(5))."""

PY_SPY_S = 20.0


def position_of(thread: int) -> tuple[str, str]:
    """Return the phase of the training that a thread of this process is in, and the file and line."""
    frames = [frame for frame, _ in traceback.walk_stack(sys._current_frames()[thread])]
    own = next((each for each in frames if _is_own(each.f_code.co_filename)), frames[0])
    places = dict.fromkeys(_place(each) for each in (own, frames[0]))
    return _phase(frames[::-1]), ", ".join(places)


def _is_own(path: str) -> bool:
    foreign = (sysconfig.get_path("stdlib"), _PACKAGE, "<")
    return "site-packages" not in path and "dist-packages" not in path and not path.startswith(foreign)


def _place(frame: FrameType) -> str:
    path = frame.f_code.co_filename
    short = path.rpartition("site-packages/")[2] if "site-packages/" in path else Path(path).name
    return f"{short}:{frame.f_lineno} in {frame.f_code.co_name}"


def _phase(frames: Sequence[FrameType]) -> str:
    """Return the innermost phase that the functions of a stack show, from the outermost function on."""
    found, validates, called = "", False, False
    for frame in frames:
        path, name = frame.f_code.co_filename.replace("\\", "/"), frame.f_code.co_name
        validates = validates or path.endswith("/loops/evaluation_loop.py")
        if called and not name.startswith("_"):  # a hook that the Trainer calls
            found = _HOOKS.get(name, str(getattr(frame.f_code, "co_qualname", name)))  # Python 3.10 has no class in it
        elif name == "save_checkpoint":
            found = "checkpoint"
        elif path.endswith("/torch/distributed/distributed_c10d.py") and name != "wrapper":
            found = f"torch.distributed.{name}"
        else:
            found = next((phase for part, phase in _PHASES if part in path), found)
        called = path.endswith("/trainer/call.py")
    return ", ".join(filter(None, ("validation" if validates else "", found))) or "training"


def stacks() -> Iterator[str]:
    """Return the Python stacks of all threads of this process but the current one."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            yield f"Thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"


def children() -> list[int]:
    """Return the process IDs of the child processes; none on a system without ``/proc``."""
    found: list[int] = []
    with suppress(OSError):
        for path in (_PROC / "self" / "task").glob("*/children"):
            found += map(int, path.read_text(encoding="ascii").split())
    return sorted(found)


def state_of(pid: int) -> str:
    """Return the state of a process in words, with the function of the kernel in which it waits."""
    folder = _PROC / str(pid)
    try:
        name, state = (folder / "comm").read_text(errors="replace").strip(), process_counters(pid)[0]
    except (OSError, IndexError):
        return f"process {pid} has ended"
    waits_in = ""
    with suppress(OSError):
        waits_in = (folder / "wchan").read_text(encoding="ascii").partition(".")[0]
    return f"process {pid} ({name}) is {_STATES.get(state, state)}{f' in {waits_in}' if waits_in > '0' else ''}"


def stack_of(pid: int) -> str:
    """Return the Python stack of another process, by py-spy; empty if it is not installed or may not read it."""
    with suppress(OSError, subprocess.SubprocessError):
        command = ["py-spy", "dump", "--pid", str(pid)]
        return subprocess.run(command, capture_output=True, timeout=PY_SPY_S, check=True, text=True).stdout
    return ""


def last_collective() -> str:
    """Describe the last collective operation that torch's flight recorder has; empty if it records none.

    It reads ``torch._C._distributed_c10d``, as torch 2.5 to 2.15 have it. torch records if TORCH_FR_BUFFER_SIZE is set.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return ""
    from torch._C import _distributed_c10d

    for name in ("_dump_nccl_trace", "_dump_fr_trace"):
        with suppress(Exception):  # private functions, which differ from version to version
            entries = pickle.loads(getattr(_distributed_c10d, name)(True, False, False))["entries"]
            last = entries[-1]
            state = "completed" if last.get("retired") else str(last["state"])
            group = last["process_group"][1] or last["process_group"][0]
            return f"{last['profiling_name']} number {last['collective_seq_id']} of {group} ({state})"
    return ""
