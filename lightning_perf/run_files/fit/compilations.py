"""``compile.rank0.jsonl``: each compilation of a fit by ``torch.compile``, with its time, its reason and its place."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from lightning_perf.run_files.jsonl import Count, RankLog

Moment: TypeAlias = Literal["before training", "first step", "step", "between steps"]
"""The part of the fit in which a compilation ran. Validation and epoch boundaries are between steps."""


WRAPPER = ("_dynamo", "external_utils.py")
"""The end of the path of torch's function around a compiled module of its own classes, e.g. of ``torch.nn``."""


class GraphBreak(Struct, frozen=True):
    """A place at which ``torch.compile`` had to end a graph, so that Python runs the code.

    Attributes:
        reason: torch's reason, in one line.
        hint: torch's first hint at a fix; empty without one.
        file: File of the user's line; empty if it is unknown.
        line: Its number; 0 if it is unknown.
        code: Its text; empty if the file cannot be read.
    """

    reason: str
    hint: str = ""
    file: str = ""
    line: Count = 0
    function: str = ""
    code: str = ""


class Compilation(Struct, frozen=True):
    """One compilation of a function, a resumed part of a function, or a backward graph.

    A figure that torch does not report is null, and a text that it does not report is empty.

    Attributes:
        compile_id: torch's number: the function, and how often it was compiled before, e.g. ``0/1``.
        kind: ``forward``: Python code was traced. ``backward``: a backward graph was compiled when it first ran.
            ``run``: work at a call, such as the search for the fastest Triton kernel.
        step: Number of the step that was open, or of the last one before it. Null before training.
        recorded: Whether the profiler recorded that step.
        line: Line at which the function starts.
        module: Modules of the model that run the function; empty if none is known.
        backend_ns: The part of the time in the backend, e.g. in Inductor.
        compiled: Whether compiled code resulted.
        guards: Conditions that are checked before each call of the compiled code.
        guard_ns: Time of one check of them, as torch measured it once with cold caches.
        cache_hits: Graphs that were loaded from the FX graph cache of Inductor.
        cache_misses: Graphs that were not in it.
        recompile_reasons: The conditions that failed, so that the function was compiled again: one per version of it.
        limit_reached: Whether torch gave up, because the function had been compiled too often.
        failure: Why no code resulted.
        cudagraph_skip: Why no CUDA graph was made.
    """

    compile_id: str
    kind: Literal["forward", "backward", "run"]
    moment: Moment
    step: Count | None
    recorded: bool
    time_ns: Count
    function: str = ""
    file: str = ""
    line: Count = 0
    module: str = ""
    backend_ns: Count | None = None
    compiled: bool = True
    guards: Count | None = None
    guard_ns: Count | None = None
    cache_hits: Count | None = None
    cache_misses: Count | None = None
    recompile_reasons: tuple[str, ...] = ()
    limit_reached: bool = False
    failure: str = ""
    breaks: tuple[GraphBreak, ...] = ()
    cudagraph_skip: str = ""


COMPILATIONS: RankLog[Compilation] = RankLog(Compilation, "compile", "compilation", restart=b'{"compile_id"')
