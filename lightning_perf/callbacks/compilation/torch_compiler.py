"""Reads from torch which functions ``torch.compile`` has compiled. All private names of torch are in this module.

It works with torch 2.11 to 2.15. If a later version drops a name, the figure that came from it is missing.

Nothing of ``torch._dynamo`` is imported here: as long as the training has not imported it, nothing was compiled.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from msgspec.structs import replace

from lightning_perf.run_files.fit.compilations import Compilation, GraphBreak

MAX_CHARACTERS = 400
"""Length to which texts of torch are cut. A reason may quote a whole line of the program."""

MAX_REASONS = 16
"""Failed conditions that are kept of one recompilation. torch keeps 8 versions of a function by default."""

NO_GPU_SKIP = "skipping cudagraphs due to cpu device: torch finds no GPU"
UNNAMED_SKIP = "torch gives the reason in its log only: TORCH_LOGS=cudagraphs"
"""The reason of a skip that torch counts without one: on a CPU, and at a call outside of any compilation."""

LIMIT_FAILURES = ("recompile limit exceeded", "cache size limit")

Place = tuple[str, str, int]


class TorchCompiler:
    """Returns the compilations of this process that are new since the last look.

    torch keeps the figures of the last 64 compilations (``torch._dynamo.utils.get_compilation_metrics``), so look
    again when the next compilation starts. `listen` announces that moment.
    """

    def __init__(self, since_ns: int) -> None:
        self._places: dict[str, Place] = {}
        self._last: Any = None
        self._breaks: list[Any] = []
        self._failures: dict[Place, list[str]] = {}
        self._seen_failures: dict[Any, int] = {}
        self._seen_breaks = self._seen_skips = 0
        self._handler: Any = None
        self._on_start: Callable[..., None] | None = None
        self._used = False
        metrics = self._metrics()
        earlier = sum(_started_ns(each) < since_ns for each in metrics)
        if earlier:
            self._last = metrics[earlier - 1]
        stopped = sum(_stopped_at_break(each) for each in metrics[earlier:])
        self._seen_breaks = max(0, len(self._break_list()) - stopped)
        self._seen_skips = self._skips()

    def listen(self, on_start: Callable[[], None]) -> None:
        """Have a function called when a compilation starts. Nothing happens before torch's compiler is imported.

        The function must not raise, because torch would let the training fail.
        """
        if self._on_start is not None:
            return
        handler = getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)
        register = getattr(handler, "register_start_callback", None)
        if callable(register):

            def announce(*_: Any) -> None:
                self._used = True
                on_start()

            register(announce)
            self._handler, self._on_start = handler, announce
            self._used = bool(self._metrics()) or self._skips() > 0

    @property
    def is_unused(self) -> bool:
        """Whether torch has surely compiled nothing in this process."""
        # torch._dynamo.reset() may take the announcement away.
        listening = self._on_start is not None and self._on_start in getattr(self._handler, "start_callbacks", ())
        return listening and not self._used

    def close(self) -> None:
        """Stop listening."""
        announce, self._on_start = self._on_start, None
        if announce is not None and announce in getattr(self._handler, "start_callbacks", ()):
            self._handler.remove_start_callback(announce)

    def new_compilations(self) -> list[Compilation]:
        """Return the compilations since the last call, in the order in which they ended. The moment is left open."""
        fresh = self._new_metrics()
        if not fresh:
            return self._with_unnamed_skips([])
        found = self._break_list()
        if len(found) < self._seen_breaks:  # torch._dynamo.reset() has emptied the list
            self._seen_breaks = 0
        self._breaks += found[self._seen_breaks :]
        self._seen_breaks = len(found)
        self._add_failures()
        made = []
        for number, metrics in enumerate(fresh, start=1):
            more = sum(_stopped_at_break(later) for later in fresh[number:])
            made.append(self._compilation(metrics, _take_breaks(metrics, self._breaks, leave=more)))
        return self._with_unnamed_skips(made)

    def _compilation(self, metrics: Any, breaks: tuple[GraphBreak, ...]) -> Compilation:
        compile_id = _text(metrics, "compile_id")
        frame = compile_id.rpartition("/")[0]
        function = _text(metrics, "co_name")
        if function:
            self._places[frame] = (function, _text(metrics, "co_filename"), _count(metrics, "co_firstlineno") or 0)
        function, file, line = self._places.get(frame, ("", "", 0))
        failure = _text(metrics, "fail_reason")
        kind = _kind(metrics)
        return Compilation(
            compile_id=compile_id,
            kind=kind,
            moment="before training",
            step=None,
            recorded=False,
            time_ns=_time_ns(metrics, kind),
            function=function,
            file=file,
            line=line,
            backend_ns=_scaled(metrics, "backend_compile_time_s", 1e9) if kind == "forward" else None,
            compiled=kind != "forward" or (not failure and getattr(metrics, "has_guarded_code", True) is not False),
            guards=_count(metrics, "guard_count"),
            guard_ns=_scaled(metrics, "guard_latency_us", 1000),
            cache_hits=_sum(metrics, "inductor_fx_local_cache_hit_count", "inductor_fx_remote_cache_hit_count"),
            cache_misses=_sum(metrics, "inductor_fx_local_cache_miss_count", "inductor_fx_remote_cache_miss_count"),
            recompile_reasons=_reasons(metrics, self._failures.get((function, file, line), [])),
            limit_reached=_is_limit(failure),
            failure=failure,
            breaks=breaks,
            cudagraph_skip=_text(metrics, "cudagraph_skip_reason"),
        )

    def _with_unnamed_skips(self, made: list[Compilation]) -> list[Compilation]:
        """Add CUDA graphs that torch skipped without a reason, to the new compilations or as an entry of its own."""
        skips = self._skips()
        more = skips - self._seen_skips - sum(bool(each.cudagraph_skip) for each in made)
        self._seen_skips = skips
        if more <= 0:
            return made
        reason = UNNAMED_SKIP if torch.cuda.is_available() else NO_GPU_SKIP
        without = [place for place, each in enumerate(made) if each.compiled and not each.cudagraph_skip]
        for place in without[-more:]:
            made[place] = replace(made[place], cudagraph_skip=reason)
        if not without:
            made.append(Compilation("", "run", "before training", None, False, 0, cudagraph_skip=reason))
        return made

    def _new_metrics(self) -> list[Any]:
        metrics = self._metrics()
        if not metrics or metrics[-1] is self._last:
            return []
        known = next((place for place in range(len(metrics) - 1, -1, -1) if metrics[place] is self._last), -1)
        self._last = metrics[-1]
        return list(metrics[known + 1 :])

    def _add_failures(self) -> None:
        """Collect the conditions that failed since the last call. torch adds them before a function is compiled."""
        failures = getattr(sys.modules.get("torch._dynamo.utils"), "guard_failures", None)
        for code, reasons in failures.items() if isinstance(failures, dict) else ():
            seen = self._seen_failures.get(code, 0)
            place = (code.co_name, code.co_filename, code.co_firstlineno)
            if len(reasons) != seen:
                self._failures.setdefault(place, []).extend(reasons[seen if seen < len(reasons) else 0 :])
                self._seen_failures[code] = len(reasons)

    def _metrics(self) -> Sequence[Any]:
        read = getattr(sys.modules.get("torch._dynamo.utils"), "get_compilation_metrics", None)
        return read() if callable(read) else ()

    def _break_list(self) -> Sequence[Any]:
        found = getattr(sys.modules.get("torch._dynamo.utils"), "graph_break_reasons", None)
        return found if isinstance(found, list) else ()

    def _skips(self) -> int:
        counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
        inductor = counters.get("inductor") if isinstance(counters, dict) else None
        return int(inductor.get("cudagraph_skips", 0)) if isinstance(inductor, dict) else 0


_Kind = Literal["forward", "backward", "run"]


def _kind(metrics: Any) -> _Kind:
    if getattr(metrics, "is_runtime", False):
        return "run"
    return "backward" if getattr(metrics, "is_forward", None) is False else "forward"


_TIMES: dict[_Kind, tuple[str, ...]] = {
    "forward": ("dynamo_cumulative_compile_time_us", "duration_us"),
    "backward": ("backward_cumulative_compile_time_us", "duration_us"),
    "run": ("runtime_triton_autotune_time_us", "runtime_cudagraphify_time_us", "duration_us"),
}


def _time_ns(metrics: Any, kind: _Kind) -> int:
    times = [time for name in _TIMES[kind] if (time := _scaled(metrics, name, 1000))]
    return times[0] if times else _scaled(metrics, "entire_frame_compile_time_s", 1e9) or 0


def _started_ns(metrics: Any) -> int:
    started = _scaled(metrics, "start_time_us", 1000)
    return sys.maxsize if started is None else started


def _stopped_at_break(metrics: Any) -> bool:
    return bool(getattr(metrics, "restart_reasons", None) or getattr(metrics, "fail_reason", None))


def _is_limit(failure: str) -> bool:
    return any(words in failure for words in LIMIT_FAILURES)


def _reasons(metrics: Any, failures: list[str]) -> tuple[str, ...]:
    """Return the conditions that failed, one for each version of the function, and take them out of the list.

    torch lists the failures of a compilation when it starts, so those of the next one may follow in the list. Each
    begins with the compile ID of its version, such as ``0/1``, and a version fails once per compilation.
    """
    first = getattr(metrics, "recompile_reason", None)
    if not first:
        return ()
    number = _version(_text(metrics, "compile_id"))
    taken: dict[int, str] = {}
    while failures:
        version = _version(failures[0].partition(":")[0])
        if version in taken or version >= number >= 0:
            break
        taken[version] = failures.pop(0)
    texts = [_first_line(each) for each in [str(first), *taken.values()]]
    return tuple(dict.fromkeys(texts))[:MAX_REASONS]


def _version(compile_id: str) -> int:
    number = compile_id.rpartition("/")[2].partition("_")[0]
    return int(number) if number.isdecimal() else -1


def _take_breaks(metrics: Any, breaks: list[Any], *, leave: int) -> tuple[GraphBreak, ...]:
    """Take the breaks of a compilation out of the list, and leave one for each later compilation that found any."""
    if not _stopped_at_break(metrics):
        return ()
    place = (_text(metrics, "co_filename"), _text(metrics, "co_name"))
    reasons = {str(reason) for reason in getattr(metrics, "restart_reasons", None) or ()}
    own = [each for each in breaks if _outermost(each) == place][: max(1, len(breaks) - leave)]
    own = own or [each for each in breaks if str(getattr(each, "reason", "")) in reasons][:1]
    for each in own:
        breaks.remove(each)
    failure = str(getattr(metrics, "fail_reason", None) or "")
    if not own and failure and not _is_limit(failure):
        file, line = _text(metrics, "fail_user_frame_filename"), _count(metrics, "fail_user_frame_lineno") or 0
        return (_break_at(failure, file, line, ""),)
    return tuple(map(_graph_break, own))


def _outermost(reason: Any) -> tuple[str, str]:
    """Return file and function of the code that was traced when the break was found."""
    stack = list(getattr(reason, "user_stack", None) or ())
    return (str(stack[0].filename), str(stack[0].name)) if stack else ("", "")


def _graph_break(reason: Any) -> GraphBreak:
    """Return a graph break with the innermost line of the program that is not torch's own."""
    stack = list(getattr(reason, "user_stack", None) or ())
    own = [frame for frame in stack if "/torch/" not in str(frame.filename).replace("\\", "/")] or stack
    text = str(getattr(reason, "reason", ""))
    if not own:
        return _break_at(text, "", 0, "")
    return _break_at(text, str(own[-1].filename), int(own[-1].lineno or 0), str(own[-1].name))


def _break_at(text: str, file: str, line: int, function: str) -> GraphBreak:
    lines = [each.strip() for each in text.splitlines() if each.strip()]
    hint = next((each.removeprefix("Hint: ") for each in lines if each.startswith("Hint: ")), "")
    code = linecache.getline(file, line).strip() if file and line else ""
    return GraphBreak(_cut(lines[0] if lines else ""), _cut(hint), file, max(0, line), function, _cut(code))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"


def _text(metrics: Any, name: str) -> str:
    """Return the first line of a text, without runs of blanks; empty if torch does not report it."""
    value = getattr(metrics, name, None)
    return "" if value is None else _first_line(str(value))


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return _cut(" ".join(lines[0].split())) if lines else ""


def _scaled(metrics: Any, name: str, factor: float) -> int | None:
    """Return a number in another unit; None if torch does not report it."""
    value = getattr(metrics, name, None)
    return round(value * factor) if isinstance(value, (int, float)) and value >= 0 else None


def _count(metrics: Any, name: str) -> int | None:
    return _scaled(metrics, name, 1)


def _sum(metrics: Any, *names: str) -> int | None:
    counts = [count for name in names if (count := _count(metrics, name)) is not None]
    return sum(counts) if counts else None
