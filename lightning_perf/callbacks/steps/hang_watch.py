"""Reports where a rank is when no step or batch has ended for long. It never ends a training."""

from __future__ import annotations

import faulthandler
import os
import pickle
import subprocess
import sys
import sysconfig
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from types import FrameType

from msgspec.structs import replace

from lightning_perf.callbacks.background import BackgroundThread
from lightning_perf.callbacks.steps.fit_state import FitContext
from lightning_perf.callbacks.steps.observers import FitObserver
from lightning_perf.machine.processor import process_counters
from lightning_perf.run_files.hangs import HANGS, HangReport, stacks_path
from lightning_perf.run_files.run_folder import RankMarkers
from lightning_perf.units import format_duration

LOOK_EVERY_S = 1.0
"""Time between two looks at the counters, or a tenth of the limit if that is shorter."""

MAX_WORKERS = 16
MAX_NAMED = 4
"""Child processes in a report, and in its warning."""

_armed: weakref.WeakSet[HangWatch] = weakref.WeakSet()


class HangWatch(FitObserver):
    """A thread that looks at the counters of steps and batches, and reports when none has changed for `after_s`.

    A step itself costs nothing. The next report of the same standstill comes after twice the time. A phase that took
    long and then ended, such as a validation, has twice its time from then on.

    The thread cannot run while an extension holds Python's global lock. So it also sets the timer of faulthandler, a
    thread in C, and sets it back as long as it runs itself. While Python functions are recorded, only that timer runs.

    Args:
        progress: Returns counters of everything that counts as progress.
    """

    consequence = "hangs are not watched any more"

    def __init__(self, after_s: float, context: FitContext, progress: Callable[[], tuple[int, ...]]) -> None:
        self._after_s = after_s
        self._look_s = min(LOOK_EVERY_S, after_s / 10)
        self._state = context.state
        self._progress = progress
        self._folder = context.folder
        self._rank = context.loop.rank
        self._errors = context.errors
        self._log = context.writer(HANGS, "hangs are no longer saved")
        self._thread = threading.get_ident()
        self._looking = BackgroundThread(self._run(), "lightning_perf hang watch")
        self._lock = threading.Lock()  # of the file and its timer
        self._file: TextIOWrapper | None = None
        self._latest: HangReport | None = None
        self._patience_s: dict[str, float] = {}
        self._counts: tuple[int, ...] = ()
        self._since_s = self._looked_s = self._armed_s = time.monotonic()
        self._next_s = after_s

    def open(self) -> None:
        """Watch until `close`."""
        if self._folder is not None:
            self._file = stacks_path(self._folder, self._rank).open("a", encoding="utf-8", errors="replace")
            _armed.add(self)
            self._arm(time.monotonic())
        self._counts = self._progress()
        self._looking.start()

    def close(self) -> None:
        """Stop to watch, and remove the file of stacks if it is empty. A second call does nothing."""
        self._looking.stop(0)
        _armed.discard(self)
        with self._lock:
            file, self._file = self._file, None
            if file is None:
                return
            faulthandler.cancel_dump_traceback_later()
            file.close()
        path = Path(file.name)
        if not path.stat().st_size:
            path.unlink()

    def disarm(self) -> None:
        """Stop the timer in C until the next look."""
        with self._lock:
            self._armed_s = float("-inf")
            faulthandler.cancel_dump_traceback_later()

    def _run(self) -> Generator[float, None, None]:
        with self._errors.instead(self.consequence, kind="hangs"):
            while True:
                yield self._look_s
                self.look(time.monotonic())

    def look(self, now_s: float) -> None:
        """Look at the counters once."""
        gap_s = now_s - self._looked_s - self._look_s
        if gap_s > self._after_s / 2:  # the whole process was stopped, or this thread could not run
            self._since_s += gap_s
        self._looked_s = now_s
        counts = self._progress()
        if counts != self._counts:
            self._continue(now_s)
            self._counts, self._since_s, self._next_s = counts, now_s, self._after_s
        elif now_s - self._since_s >= self._next_s:
            self._report(now_s - self._since_s)
        if now_s - self._armed_s >= self._after_s / 2:
            self._arm(now_s)

    def _arm(self, now_s: float) -> None:
        """Set the timer of faulthandler back. Each time costs a new thread, so this is done rarely."""
        with self._lock:
            if self._file is not None:
                self._armed_s = now_s
                faulthandler.dump_traceback_later(2 * self._after_s, file=self._file)

    def _continue(self, now_s: float) -> None:
        report, self._latest = self._latest, None
        if report is None:
            return
        seconds = now_s - self._since_s
        self._patience_s[report.phase] = 2 * seconds
        self._log.append(replace(report, seconds=round(seconds, 1), workers=(), collective="", continued=True))

    def _report(self, seconds: float) -> None:
        phase, place = position_of(self._thread)
        patience_s = self._patience_s.get(phase, 0.0)
        if seconds < patience_s:
            self._next_s = patience_s
            return
        self._next_s = 2 * seconds
        workers = children()[:MAX_WORKERS]
        report = HangReport(
            rank=self._rank,
            step=self._state.first_number + self._state.whole_steps,
            phase=phase,
            place=place,
            since_s=time.time() - seconds,
            seconds=round(seconds, 1),
            workers=tuple(map(state_of, workers)),
            collective=last_collective(),
        )
        first, self._latest = self._latest is None, report
        self._log.append(report)
        if first:
            self._warn(report)
        self._write_stacks(report, workers)

    def _warn(self, report: HangReport) -> None:
        gone = RankMarkers(self._folder).dead() if self._folder is not None else []
        age = format_duration(1e9 * report.seconds)
        sentences = (
            f"{self._errors.name}: on rank {self._rank}, no step or batch has ended for {age}.",
            f"It is in step {report.step}, {report.phase}: {report.place}.",
            *(f"Child {each}." for each in report.workers[:MAX_NAMED]),
            f"Last collective: {report.collective}." if report.collective else "",
            *(f"The process of rank {rank} is gone." for rank in gone),
            f"Python stacks: {self._file.name}." if self._file is not None else "",
            "The training is left alone.",
        )
        self._errors.warn(" ".join(filter(None, sentences)))

    def _write_stacks(self, report: HangReport, workers: list[int]) -> None:
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        lines = [
            f"{now}: rank {self._rank}, step {report.step}, {report.phase}, for {report.seconds:g} s",
            f"Last collective: {report.collective}" if report.collective else "",
            *stacks(),
            *report.workers,
            *map(stack_of, workers),
        ]
        with self._lock:
            if self._file is not None:
                self._file.write("\n".join(filter(None, lines)) + "\n\n")
                self._file.flush()


def _disarm_before_fork() -> None:
    """Stop the timers: a child that has inherited one would wait for its thread forever when it ends."""
    for watch in tuple(_armed):
        watch.disarm()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_disarm_before_fork)


# The position of a process: its threads' Python stacks, its child processes, and its last collective operation.

_PROC = Path("/proc")

_PACKAGE = str(Path(__file__).parents[2])

_HOOKS = {
    "training_step": "forward",
    "validation_step": "forward",
    "backward": "backward",
    "optimizer_step": "optimizer",
    "batch_to_device": "transfer",
    "transfer_batch_to_device": "transfer",
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
    return training_phase(frames[::-1]), ", ".join(places)


def _is_own(path: str) -> bool:
    foreign = (sysconfig.get_path("stdlib"), _PACKAGE, "<")
    return "site-packages" not in path and "dist-packages" not in path and not path.startswith(foreign)


def _place(frame: FrameType) -> str:
    path = frame.f_code.co_filename
    short = path.rpartition("site-packages/")[2] if "site-packages/" in path else Path(path).name
    return f"{short}:{frame.f_lineno} in {frame.f_code.co_name}"


def training_phase(frames: Sequence[FrameType]) -> str:
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
        elif name == "forward" and not found:  # in a loop without a Trainer
            found = "forward"
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
