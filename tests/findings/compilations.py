"""Made compilations of fits, one for each rule, and their reports."""

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from lightning_perf.analysis.compilation import (
    CompiledCalls,
    CompiledFunction,
    CompileReport,
    summarize_compilations,
)
from lightning_perf.report.document import PerfReport
from lightning_perf.run_files.fit.compilations import COMPILATIONS, Compilation, GraphBreak
from tests.findings import accounts
from tests.findings.accounts import STEPS_MADE, S

FIT_S = 150.0
MODEL = "/home/user/project/model.py"

ITEM = GraphBreak(
    reason="Unsupported Tensor.item() call with capture_scalar_outputs=False",
    hint="Set `torch._dynamo.config.capture_scalar_outputs = True`",
    file=MODEL,
    line=31,
    function="forward",
    code="if scale.item() > 1:",
)


def compilation(compile_id: str = "0/0", seconds: float = 10.0, **fields: Any) -> Compilation:
    """The first compilation of a model's `forward`."""
    usual = Compilation(
        compile_id=compile_id,
        kind="forward",
        moment="first step",
        step=0,
        recorded=False,
        time_ns=round(seconds * S),
        function="forward",
        file=MODEL,
        line=24,
        module="blocks.0 and 11 more (Block)",
        backend_ns=round(0.8 * seconds * S),
        guards=40,
        guard_ns=90_000,
        cache_hits=0,
        cache_misses=2,
    )
    return replace(usual, **fields)


def again(number: int, reason: str, *, step: int, seconds: float = 4.0, **fields: Any) -> Compilation:
    """A recompilation of it."""
    reasons = (f"0/{number - 1}: {reason}",)
    return compilation(f"0/{number}", seconds, moment="step", step=step, recompile_reasons=reasons, **fields)


CALLS = CompiledCalls(
    steps=5,
    checks=10,
    check_ns=1_000_000,
    compile_ns=2 * S,
    functions=(CompiledFunction("0", 5, 400_000), CompiledFunction("1", 5, 600_000)),
)


def report(*made: Compilation, calls: CompiledCalls | None = None, fit_s: float | None = FIT_S) -> CompileReport:
    fit_ns = None if fit_s is None else round(fit_s * S)
    summary = summarize_compilations(made, fit_ns=fit_ns, steps=STEPS_MADE, calls=calls)
    assert summary is not None
    return summary


SHAPES = (
    compilation(seconds=2.0),
    again(1, "tensor 'x' size mismatch at index 1. expected 512, actual 384", step=7),
    again(2, "tensor 'x' size mismatch at index 1. expected 384, actual 256", step=90),
)
COSTLY = (compilation(seconds=36.0), compilation("0/0", 4.0, kind="backward", backend_ns=None, cache_misses=0))
BROKEN = (
    compilation(seconds=0.5, breaks=(ITEM,)),
    compilation("1/0", 0.3, function="torch_dynamo_resume_in_forward_at_31", line=31),
)
SKIPPED = (
    compilation(seconds=0.5, cudagraph_skip="skipping cudagraphs due to mutated inputs (1 instances)"),
    compilation("1/0", 0.5, function="loss", line=60, cudagraph_skip="skipping cudagraphs due to cpu device (arg2_1)"),
)


def analyzed(folder: Path, *made: Compilation, first_step_s: float = 0.2) -> PerfReport:
    COMPILATIONS.append(COMPILATIONS.path(folder, 0), *made)
    compile_ns = sum(each.time_ns for each in made if each.moment == "first step")
    entries = {("first step", "forward"): (first_step_s, 1)}
    return accounts.report_of(accounts.account(entries, compile_ns=compile_ns), folder)


def recompiling(folder: Path) -> PerfReport:
    """Sequences of three lengths."""
    return analyzed(folder, *SHAPES, first_step_s=2.2)


def costing(folder: Path) -> PerfReport:
    """A compilation of 40 s."""
    return analyzed(folder, *COSTLY, first_step_s=45.0)


def breaking(folder: Path) -> PerfReport:
    """An `.item()` in the model."""
    return analyzed(folder, *BROKEN)


def skipping(folder: Path) -> PerfReport:
    """Two graphs that cannot become CUDA graphs."""
    return analyzed(folder, *SKIPPED)
