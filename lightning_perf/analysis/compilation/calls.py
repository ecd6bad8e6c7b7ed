"""Calls of compiled code in a recording: how often each function ran, and the cost of checking its guards."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.core.averaged_steps import averaged_steps, in_averaged_steps
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
    averaged = in_averaged_steps(trace, operators.start_ns)
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
