"""torch's profiler for one window, and the watch over torch's one recorder that all profilers share."""

from __future__ import annotations

import inspect
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch.autograd.profiler import profile as autograd_profile
from torch.profiler import ProfilerActivity, profile

from lightning_perf.callbacks.recording.recording_plan import Recording
from lightning_perf.callbacks.wrapped_methods import WrappedMethods

_ACTIVITIES = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU}


def new_recorder(recording: Recording, device_type: str) -> profile:
    """Make a profiler for one window, with no schedule of its own."""
    # It logs each start and stop, and that a machine has no GPU, as if they were errors.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    # Without it CUPTI stays attached after the window and slows down every later step (pytorch#144455).
    os.environ.setdefault("TEARDOWN_CUPTI", "1")
    device = [_ACTIVITIES[device_type]] if device_type in _ACTIVITIES else []
    return profile(
        activities=[ProfilerActivity.CPU, *device],
        record_shapes=recording.record_shapes,
        profile_memory=recording.profile_memory,
        with_stack=recording.with_stack,
        with_flops=recording.with_flops,
    )


def recorder_is_taken() -> bool:
    """Whether a profiler records; one that still warms up is not seen."""
    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]  # private, without a public equal


def device_recording_stopped() -> bool:
    """Whether kineto has dropped events of a device, because its buffer for them was full (128 MB by default).

    Otherwise only ``profile.step`` asks, which windows do not call. The warning is below the log level.
    """
    asked = getattr(torch.autograd, "_is_kineto_stopped", None)  # private, and new
    return asked is not None and bool(asked())


def export_options(stopped: profile) -> dict[str, Mapping[int, Any]]:
    """Return the names that the program gave to kernels in CUDA graphs, for the export, as torch 2.15 takes them.

    Without such names there is no option, because torch then exports events in Python, which takes longer.
    """
    module = getattr(torch.cuda, "graph_annotations", None)
    named: Mapping[int, Any] = getattr(module, "get_kernel_annotations", dict)()
    known = "cuda_graph_annotations" in inspect.signature(stopped.export_chrome_trace).parameters
    return {"cuda_graph_annotations": named} if named and known else {}


_THREAD_ERROR = b"External init callback must run in same thread as registerClient"


@contextmanager
def without_thread_error() -> Iterator[None]:
    """Leave out the line that kineto writes to standard error when its first recording starts in a thread.

    Kineto writes it with ``fprintf``, whatever its log level. It means that recordings cannot be requested by kineto's
    daemon. Other lines that are written meanwhile follow at the end.
    """
    if threading.current_thread() is threading.main_thread():
        yield
        return
    try:
        own = os.dup(2)
    except OSError:  # the process has no standard error
        yield
        return
    try:
        with tempfile.TemporaryFile() as held:
            os.dup2(held.fileno(), 2)
            try:
                yield
            finally:
                os.dup2(own, 2)
                held.seek(0)
                for line in held:
                    if _THREAD_ERROR not in line:
                        with suppress(OSError):
                            os.write(2, line)
    finally:
        os.close(own)


class RecorderWatch:
    """Calls a listener before any profiler prepares to record, until it is removed.

    Torch has one recorder a process. A profiler that takes it from another leaves that one with a session that is gone:
    to start or export it then ends the process.

    Args:
        on_taken: Called before a profiler prepares. It must not raise.
    """

    def __init__(self, on_taken: Callable[[], None]) -> None:
        self._wrapped = wrapped = WrappedMethods()

        def watched(original: Callable[..., Any]) -> Callable[..., Any]:
            def prepare(*args: Any, **kwargs: Any) -> Any:
                if wrapped.active:
                    on_taken()
                return original(*args, **kwargs)

            return prepare

        # Private; all of torch's profilers come by here before they touch the recorder.
        wrapped.wrap(autograd_profile, "_prepare_trace", watched)

    def remove(self) -> None:
        """Watch no longer. Does nothing the second time."""
        self._wrapped.restore()
