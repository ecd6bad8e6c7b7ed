"""A watch over torch's one recorder: whether a profiler has it, and when another is about to take it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.profiler import profile

__all__ = ["RecorderWatch", "recorder_is_taken"]

_METHOD = "_prepare_trace"  # private; all of torch's profilers come by here before they touch the recorder


def recorder_is_taken() -> bool:
    """Whether a profiler records; one that still warms up is not seen."""
    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]  # private, without a public equal


class RecorderWatch:
    """Calls a listener before any profiler prepares to record, until it is removed.

    Torch has one recorder a process. A profiler that takes it from another leaves that one with a session that is gone:
    to start or export it then ends the process.

    Args:
        on_taken: Called before a profiler prepares. It must not raise.
    """

    def __init__(self, on_taken: Callable[[], None]) -> None:
        self._original: Callable[..., Any] | None = getattr(profile, _METHOD, None)
        original = self._original
        if original is None:
            return

        def prepare(taker: Any, *args: Any, **kwargs: Any) -> Any:
            if self._original is not None:
                on_taken()
            return original(taker, *args, **kwargs)

        self._wrapper = prepare
        setattr(profile, _METHOD, prepare)

    def remove(self) -> None:
        """Watch no longer. Does nothing the second time."""
        original, self._original = self._original, None
        # Where somebody else has wrapped ours since, ours stays under it and just passes calls on.
        if original is not None and getattr(profile, _METHOD, None) is self._wrapper:
            setattr(profile, _METHOD, original)
