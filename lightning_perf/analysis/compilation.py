"""The compilations of a fit: their time, the functions, recompilations, graph breaks, and whether they pay."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.intervals import averaged_steps, in_averaged_host_steps
from lightning_perf.run_files.fit.compilations import Compilation, GraphBreak, Moment
from lightning_perf.trace.columns import Int64Array
from lightning_perf.trace.trace import Trace

_CHECK = "TorchDynamo Cache Lookup"
_REGION = "Torch-Compiled Region: "
_COMPILING = ("entire_frame_compile", "entire_backward_compile")


class CompiledFunction(Struct, frozen=True):
    """Calls of one compiled function, over the averaged steps.

    Attributes:
        frame: torch's number of the function: the part of the compile ID before the slash.
        calls: Its calls.
        check_ns: Time of those checks.
    """

    frame: str
    calls: int
    check_ns: int


class CompiledCalls(Struct, frozen=True):
    """The use of code by ``torch.compile``, over the averaged steps. Divide by `steps` for a figure per step.

    Attributes:
        steps: Steps that the figures are over.
        checks: Checks of guards. There is one before each call of a function that has compiled code.
        check_ns: Their time.
        compile_ns: Time of compilations.
        functions: The functions, the most time in checks first.
    """

    steps: int
    checks: int
    check_ns: int
    compile_ns: int
    functions: tuple[CompiledFunction, ...]


def compiled_calls(trace: Trace) -> CompiledCalls | None:
    """Find the calls of compiled code.

    Before each call, TorchDynamo searches the versions of a function for one with guards that hold. The recording shows
    that search as ``TorchDynamo Cache Lookup``, and the call after it as ``Torch-Compiled Region``.
    """
    operators = trace.operators
    check = trace.names_where(lambda name: name == _CHECK)[operators.name]
    region = trace.names_where(lambda name: name.startswith(_REGION))[operators.name]
    if not check.any() and not region.any():
        return None
    averaged = in_averaged_host_steps(trace, operators.start_ns)
    compiling = trace.names_where(_COMPILING.__contains__)[operators.name]
    checks, regions = np.flatnonzero(check & averaged), np.flatnonzero(region & averaged)
    durations = operators.end_ns - operators.start_ns
    return CompiledCalls(
        steps=int(averaged_steps(trace).sum()),
        checks=len(checks),
        check_ns=int(durations[checks].sum()),
        compile_ns=int(durations[compiling & averaged].sum()),
        functions=_functions(trace, checks, regions),
    )


def _functions(trace: Trace, checks: Int64Array, regions: Int64Array) -> tuple[CompiledFunction, ...]:
    check_of = _check_before(trace, checks, regions)
    operators = trace.operators
    frames: dict[str, list[int]] = {}
    for row, compile_id in enumerate(trace.names[name].removeprefix(_REGION) for name in operators.name[regions]):
        frames.setdefault(compile_id.rpartition("/")[0] or compile_id, []).append(row)
    found = []
    for frame, rows in frames.items():
        own = check_of[rows]
        own = own[own >= 0]
        time_ns = int((operators.end_ns[own] - operators.start_ns[own]).sum())
        found.append(CompiledFunction(frame, len(rows), time_ns))
    return tuple(sorted(found, key=lambda each: (-each.check_ns, each.frame)))


def _check_before(trace: Trace, checks: Int64Array, regions: Int64Array) -> Int64Array:
    """Return for each region the row of the check that chose it: the last one before it on its thread, or -1."""
    operators = trace.operators
    found = np.full(len(regions), -1, dtype=np.int64)
    for thread in np.unique(operators.thread[regions]):
        mine = np.flatnonzero(operators.thread[regions] == thread)
        own = checks[operators.thread[checks] == thread]
        if not len(own):
            continue
        # Rows are in the order of their starts. A check belongs to the next region only.
        place = np.searchsorted(operators.start_ns[own], operators.start_ns[regions[mine]], side="right") - 1
        first = np.append(True, place[1:] != place[:-1]) & (place >= 0)
        found[mine[first]] = own[place[first]]
    return found


Cause: TypeAlias = Literal["shape", "value", "tensor", "object", "mode", "other"]
"""The kind of change between two calls.

- ``shape``: the size of an input.
- ``value``: a number, a string or a container of Python.
- ``tensor``: the type, the strides or another property of an input.
- ``object``: another object or type.
- ``mode``: training or validation, autocast, gradients on or off.
- ``other``: anything else.
"""

_PRECEDENCE: tuple[Cause, ...] = ("shape", "value", "tensor", "object", "other", "mode")
"""torch lists one failed condition per compiled version. Versions for validation or without gradients always fail in
the mode, so a reason of another kind says more."""

_VERSION = re.compile(r"^\d+/\d+(?:_\d+)?: ")
_SIZE = re.compile(
    r"tensor '(?P<name>[^']*)' (?P<what>size|rank) mismatch(?: at index (?P<index>\d+))?"
    r"\.? expected (?P<before>[^,]*),? actual (?P<after>\S+)"
)
_TENSOR = re.compile(r"tensor '(?P<name>[^']*)' (?P<what>[\w ]+?) mismatch")
_SYMBOL = re.compile(r"\b(?:Eq|Ne|Mod)\(|\.size\(\)|\.stride\(\)|\bs\d+ ?[=<>!]|tensor\.size")
_MODE = ("GLOBAL_STATE", "grad_mode", "autocast", "inference_mode", "torch_function", ".training ")
_OBJECT = ("___check_obj_id", "___check_type_id", "___check_current_backend", " is ", "BACKEND_MATCH")
_VALUE = ("==", "!=", "len(", "___dict_contains", " in ", "___key_to_id", "KeyError", "dict_keys")
_NO_MODE = ("requires_grad", "dispatch key set")
"""Properties of a tensor that differ between training and validation, and between the first layer and the others."""


class FailedGuard(Struct, frozen=True):
    """A condition that failed, so that a function was compiled again.

    Attributes:
        text: The condition in torch's words, without the version that it belongs to.
        code: The user's line that the condition comes from; empty if torch does not name it.
        name: The input of another shape; empty for any other cause.
        dimension: The dimension that changed; None for any other cause.
    """

    cause: Cause
    text: str
    code: str = ""
    name: str = ""
    dimension: int | None = None


def failed_guard(reasons: Sequence[str]) -> FailedGuard:
    """Choose the condition that explains a recompilation best. The latest version's reason comes first."""
    guards = [read_guard(reason) for reason in reasons]
    return min(guards, key=lambda guard: _PRECEDENCE.index(guard.cause), default=FailedGuard("other", "not reported"))


def read_guard(reason: str) -> FailedGuard:
    """Read one of torch's reasons."""
    text = _VERSION.sub("", reason.strip())
    condition, _, rest = text.partition(" # ")
    code = rest.partition(" # ")[0].strip()
    if code.startswith("("):  # a place in torch instead of a line of the program
        code = ""
    condition = condition.partition(" (HINT:")[0].strip()
    size = _SIZE.match(condition)
    if size is not None:
        index = size["index"]
        return FailedGuard("shape", condition, code, size["name"], int(index) if index else None)
    return FailedGuard(_cause(condition), condition, code)


def _cause(condition: str) -> Cause:
    tensor = _TENSOR.match(condition)
    if tensor is not None:
        return "mode" if any(word in tensor["what"] for word in _NO_MODE) else "tensor"
    if any(word in condition for word in _MODE):
        return "mode"
    if _SYMBOL.search(condition):
        return "shape"
    if any(word in condition for word in _OBJECT):
        return "object"
    if any(word in condition for word in _VALUE):
        return "value"
    return "other"


MAX_ROWS = 200
"""Functions, and graph breaks, that a report lists. Later ones are in its sums only."""

_NO_CALLS = CompiledCalls(0, 0, 0, 0, ())

_RESUMED = re.compile(r"^torch_dynamo_resume_in_(?P<function>.+?)_at_(?P<line>\d+)$")


class Recompilations(Struct, frozen=True):
    """Recompilations of one function because of the same condition.

    Attributes:
        cause: What changed, see `lightning_perf.analysis.compilation.Cause`.
        guard: The condition that failed, in torch's words.
        code: The user's line that the condition comes from; empty if torch does not name it.
        name: The input of another shape; empty for any other cause.
        dimension: The dimension that changed; ``None`` for any other cause.
        count: Recompilations.
        time_ns: Their time.
        first_step: Number of the step of the first one; ``None`` if all of them were before training.
        last_step: The same of the last one.
    """

    cause: Cause
    guard: str
    code: str
    name: str
    dimension: int | None
    count: int
    time_ns: int
    first_step: int | None
    last_step: int | None


class CompiledFrame(Struct, frozen=True):
    """A function that was compiled, or the part of a function after a graph break.

    Attributes:
        function: Its name.
        resumed_at: Line of the graph break after which this part begins; ``None`` for a whole function.
        file: Its file.
        line: Line at which it starts.
        module: Modules of the model that run it; empty if none is known.
        compilations: Versions that were compiled.
        time_ns: Time of all its compilations, backward graphs included.
        backend_ns: The part of the time in the backend; ``None`` if torch does not report it.
        recompile_ns: The part for all versions but the first.
        recompilations: Its recompilations by reason, the longest time first.
        breaks: Graph breaks in its compilations.
        limit_reached: Whether torch gave up on it. New versions of it then run uncompiled.
        guards: Conditions that are checked before each call of the latest version; ``None`` if unknown.
        calls_per_step: Its calls per step in the recording; ``None`` without one.
        check_ns_per_step: Time to check its guards, per step in the recording; ``None`` without one.
    """

    function: str
    resumed_at: int | None
    file: str
    line: int
    module: str
    compilations: int
    time_ns: int
    backend_ns: int | None
    recompile_ns: int
    recompilations: tuple[Recompilations, ...]
    breaks: int
    limit_reached: bool
    guards: int | None
    calls_per_step: float | None
    check_ns_per_step: float | None


class BreakPlace(Struct, frozen=True):
    """A line of the program at which graphs end.

    Attributes:
        file: Its file; empty if torch does not name it.
        line: Its number.
        function: Its function.
        code: Its text; empty if it could not be read.
        reason: torch's reason.
        hint: torch's hint at a fix; empty without one.
        compilations: Compilations that ended a graph there.
        in_training: Whether one of them was in a training step.
        calls_per_step: How often the code after it was entered, per step in the recording; ``None`` if unknown.
        check_ns_per_step: Time to check the guards of that code, per step; ``None`` if unknown.
    """

    file: str
    line: int
    function: str
    code: str
    reason: str
    hint: str
    compilations: int
    in_training: bool
    calls_per_step: float | None
    check_ns_per_step: float | None


class SkippedGraph(Struct, frozen=True):
    """A reason for which no CUDA graph was made.

    Attributes:
        reason: torch's reason.
        count: Compilations that it stopped.
        functions: Names of their functions.
    """

    reason: str
    count: int
    functions: tuple[str, ...]


class CompileReport(Struct, frozen=True):
    """The compilations of a fit by ``torch.compile``.

    Attributes:
        rank: The process that compiled.
        fit_ns: Wall time of the fit, or of its steps in a loop without a Trainer; ``None`` if it is unknown.
        steps: Optimizer steps of the fit; ``None`` if they are unknown.
        compilations: Compilations that gave code, without backward graphs.
        time_ns: Time of all compilations.
        backend_ns: The part in the backend, e.g. in Inductor; ``None`` if torch does not report it.
        before_ns: The part before training, e.g. in the sanity check.
        first_step_ns: The part in the first step.
        step_ns: The part in later steps.
        between_ns: The part between steps, e.g. in validation.
        recompilations: Compilations of a function that had been compiled before.
        recompile_ns: Their time.
        avoidable_ns: The part of that time with another cause than the mode. Code for validation is always compiled
            separately.
        cache_hits: Graphs that were loaded from Inductor's cache; ``None`` if torch does not report it.
        cache_misses: Graphs that were not in it; ``None`` if torch does not report it.
        check_ns_per_step: Time to check guards, per step in the recording; ``None`` without one.
        checks_per_step: Checks of guards per step in the recording; ``None`` without one.
        recorded_ns_per_step: Time of compilations per step in the recording; ``None`` without one.
        frames: The functions, the longest time first.
        breaks: Graph breaks, the one in most compilations first.
        skipped_graphs: Reasons for which CUDA graphs were skipped.
    """

    rank: int
    fit_ns: int | None
    steps: int | None
    compilations: int
    time_ns: int
    backend_ns: int | None
    before_ns: int
    first_step_ns: int
    step_ns: int
    between_ns: int
    recompilations: int
    recompile_ns: int
    avoidable_ns: int
    cache_hits: int | None
    cache_misses: int | None
    check_ns_per_step: float | None
    checks_per_step: float | None
    recorded_ns_per_step: float | None
    frames: tuple[CompiledFrame, ...]
    breaks: tuple[BreakPlace, ...]
    skipped_graphs: tuple[SkippedGraph, ...]


_Key = tuple[str, str, int]


def summarize_compilations(
    compilations: Sequence[Compilation],
    *,
    rank: int = 0,
    fit_ns: int | None = None,
    steps: int | None = None,
    calls: CompiledCalls | None = None,
) -> CompileReport | None:
    """Summarize the compilations of a fit, in the order in which they ended."""
    if not compilations:
        return None
    by_frame: dict[_Key, list[Compilation]] = {}
    for each in compilations:
        if each.compile_id:
            by_frame.setdefault((each.function, each.file, each.line), []).append(each)
    calls = calls or _NO_CALLS
    frames = [_frame(key, own, calls) for key, own in by_frame.items()]
    frames.sort(key=lambda frame: (-frame.time_ns, frame.file, frame.line, frame.function))
    recompilations = [group for frame in frames for group in frame.recompilations]
    return CompileReport(
        rank=rank,
        fit_ns=fit_ns,
        steps=steps,
        compilations=sum(frame.compilations for frame in frames),
        time_ns=_time(compilations),
        backend_ns=_backend_ns(compilations),
        before_ns=_during(compilations, "before training"),
        first_step_ns=_during(compilations, "first step"),
        step_ns=_during(compilations, "step"),
        between_ns=_during(compilations, "between steps"),
        recompilations=sum(group.count for group in recompilations),
        recompile_ns=sum(frame.recompile_ns for frame in frames),
        avoidable_ns=sum(group.time_ns for group in recompilations if group.cause != "mode"),
        cache_hits=_sum(each.cache_hits for each in compilations),
        cache_misses=_sum(each.cache_misses for each in compilations),
        check_ns_per_step=_per_step(calls.check_ns, calls.steps),
        checks_per_step=_per_step(calls.checks, calls.steps),
        recorded_ns_per_step=_per_step(calls.compile_ns, calls.steps),
        frames=tuple(frames[:MAX_ROWS]),
        breaks=_breaks(compilations, frames),
        skipped_graphs=_skipped(compilations),
    )


def _frame(key: _Key, own: Sequence[Compilation], calls: CompiledCalls) -> CompiledFrame:
    function, file, line = key
    resumed = _RESUMED.match(function)
    versions = [each for each in own if each.kind == "forward"]
    again = {each.compile_id for each in versions if each.recompile_reasons}
    latest = next((each for each in reversed(versions) if each.compiled), None)
    ids = {each.compile_id.rpartition("/")[0] for each in own}
    used = [each for each in calls.functions if each.frame in ids]
    return CompiledFrame(
        function=resumed["function"] if resumed else function,
        resumed_at=int(resumed["line"]) if resumed else None,
        file=file,
        line=line,
        module=next((each.module for each in own if each.module), ""),
        compilations=sum(each.compiled for each in versions),
        time_ns=_time(own),
        backend_ns=_backend_ns(own),
        recompile_ns=_time(each for each in own if each.compile_id in again),
        recompilations=_recompilations(own),
        breaks=sum(len(each.breaks) for each in own),
        limit_reached=any(each.limit_reached for each in own),
        guards=latest.guards if latest is not None else None,
        calls_per_step=_per_step(sum(each.calls for each in used), calls.steps),
        check_ns_per_step=_per_step(sum(each.check_ns for each in used), calls.steps),
    )


def _recompilations(own: Sequence[Compilation]) -> tuple[Recompilations, ...]:
    groups: defaultdict[tuple[Cause, object], list[tuple[FailedGuard, Compilation]]] = defaultdict(list)
    backward_ns: Counter[str] = Counter()
    for each in own:
        if each.kind == "backward":
            backward_ns[each.compile_id] += each.time_ns
        elif each.kind == "forward" and each.recompile_reasons:
            guard = failed_guard(each.recompile_reasons)
            # The values in a condition differ each time, so sizes are grouped by their input and values by their line.
            same = (guard.name, guard.dimension) if guard.name else guard.code or guard.text
            groups[guard.cause, same].append((guard, each))
    rows = []
    for group in groups.values():
        guard = group[-1][0]
        steps = [each.step for _, each in group if each.step is not None]
        rows.append(
            Recompilations(
                cause=guard.cause,
                guard=guard.text,
                code=guard.code,
                name=guard.name,
                dimension=guard.dimension,
                count=len(group),
                time_ns=sum(each.time_ns + backward_ns[each.compile_id] for _, each in group),
                first_step=min(steps, default=None),
                last_step=max(steps, default=None),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.time_ns, row.guard)))


def _breaks(compilations: Sequence[Compilation], frames: Sequence[CompiledFrame]) -> tuple[BreakPlace, ...]:
    resumed = {(frame.file, frame.resumed_at): frame for frame in frames if frame.resumed_at is not None}
    found: defaultdict[tuple[str, int, str], list[tuple[GraphBreak, Compilation]]] = defaultdict(list)
    for each in compilations:
        for at in each.breaks:
            found[at.file, at.line, at.reason].append((at, each))
    rows = []
    for (file, line, _), own in found.items():
        at, after = own[-1][0], resumed.get((file, line))
        rows.append(
            BreakPlace(
                file=at.file,
                line=at.line,
                function=at.function,
                code=at.code,
                reason=at.reason,
                hint=at.hint,
                compilations=len(own),
                in_training=any(each.moment in ("first step", "step") for _, each in own),
                calls_per_step=after.calls_per_step if after is not None else None,
                check_ns_per_step=after.check_ns_per_step if after is not None else None,
            )
        )
    rows.sort(key=lambda row: (-row.compilations, row.file, row.line))
    return tuple(rows[:MAX_ROWS])


def _skipped(compilations: Sequence[Compilation]) -> tuple[SkippedGraph, ...]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for each in compilations:
        if each.cudagraph_skip:
            found[each.cudagraph_skip].append(each.function)
    rows = [
        SkippedGraph(reason, len(names), tuple(sorted({name for name in names if name})))
        for reason, names in found.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.count, row.reason)))


def _during(compilations: Iterable[Compilation], moment: Moment) -> int:
    return _time(each for each in compilations if each.moment == moment)


def _time(compilations: Iterable[Compilation]) -> int:
    return sum(each.time_ns for each in compilations)


def _backend_ns(compilations: Sequence[Compilation]) -> int | None:
    """Return the time in the backend. torch reports none for a backward graph, which only the backend compiles."""
    known = _sum(each.backend_ns for each in compilations)
    if known is None:
        return None
    return known + _time(each for each in compilations if each.kind == "backward" and each.backend_ns is None)


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _per_step(total: int, steps: int) -> float | None:
    return total / steps if steps else None
