"""Settings for debugging that were on while the training was recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Problem, SavingRange, Severity
from lightning_perf.findings.rules import rule
from lightning_perf.findings.savings import counted, each, step_ns
from lightning_perf.units import format_duration

STACK_NS = (100_000.0, 1_000_000.0)
"""Time to note the Python stack of one node of the graph, at least and at most. Measured on an EPYC: 250 µs below 5
frames, 480 µs below 20, 800 µs below 60."""

MOST_OF_FORWARD = 0.9
"""Share of the forward phase that stacks take at most."""


class _Variable(NamedTuple):
    """An environment variable for debugging: the values that turn it on (any but 0 if empty), and its cost."""

    values: tuple[str, ...]
    severity: Severity
    cost: str


VARIABLES = {
    "CUDA_LAUNCH_BLOCKING": _Variable(
        (), "high", "Each launch waits for its kernel, so nothing is queued ahead and no other finding holds."
    ),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": _Variable((), "high", "Each tensor asks the driver for its memory."),
    "TORCH_DISTRIBUTED_DEBUG": _Variable(
        ("INFO", "DETAIL"), "moderate", "With DETAIL, each collective first compares its inputs between the ranks."
    ),
    "NCCL_DEBUG": _Variable(("INFO", "TRACE"), "low", "NCCL writes its decisions to the log, with TRACE each call."),
    "TORCH_SHOW_CPP_STACKTRACES": _Variable((), "low", "Each C++ error collects and names its stack."),
    "TORCH_CPP_LOG_LEVEL": _Variable(("INFO",), "low", "torch writes a line for each event of its C++ code."),
}
"""Environment variables for debugging that are often left on."""


@rule("debug-settings")
def debug_settings(analysis: RankAnalysis) -> Problem | None:
    """Find settings for debugging that are on: anomaly detection, by its checks in the trace, and variables.

    Model for anomaly detection: the checks go away, as measured, and a stack for each node of the graph. For variables
    no saving is estimated.
    """
    variables = dict(_variables(analysis))
    anomaly = _anomaly(analysis)
    if not variables and anomaly is None:
        return None
    names = [*(["anomaly detection"] if anomaly else []), *variables]
    removed = f"Unset {', '.join(variables)}." if variables else ""
    off = "Turn anomaly detection off: Trainer(detect_anomaly=False), or remove torch.autograd.detect_anomaly()."
    severities = {"high"} if anomaly else {variable.severity for variable in variables.values()}
    return Problem(
        f"{'Debug settings are' if len(names) > 1 else 'A debug setting is'} on: {', '.join(names)}",
        [*([anomaly[0]] if anomaly else []), *(f"{name}: {one.cost}" for name, one in variables.items())],
        " ".join(part for part in (off if anomaly else "", removed) if part),
        anomaly[1] if anomaly else None,
        severity=next(level for level in ("high", "moderate", "low") if level in severities),
    )


def blocks_launches(analysis: RankAnalysis) -> bool:
    """Return whether each launch waited for its kernel."""
    return any(name.startswith("CUDA_LAUNCH_BLOCKING=") for name, _ in _variables(analysis))


def _variables(analysis: RankAnalysis) -> Iterator[tuple[str, _Variable]]:
    settings = analysis.metadata.settings
    for text in settings.variables if settings is not None else ():
        name, _, value = text.partition("=")
        known = VARIABLES.get(name)
        if known is not None and (value.upper() in known.values if known.values else value not in ("", "0")):
            yield text, known


def _anomaly(analysis: RankAnalysis) -> tuple[str, SavingRange | None] | None:
    """Return a sentence about anomaly detection, and its saving if the trace shows its checks; None if it is off."""
    checks, settings = analysis.anomaly_checks, analysis.metadata.settings
    if checks is None:
        if settings is None or not settings.detect_anomaly:
            return None
        return "Anomaly detection was on while the training was recorded.", None
    steps = max(checks.steps, 1)
    check_ns, nodes = checks.check_ns / steps, checks.nodes / steps
    forward_ns = MOST_OF_FORWARD * (analysis.phases.phase("forward").mean_ns or step_ns(analysis))
    low_ns, high_ns = (check_ns + min(nodes * stack_ns, forward_ns) for stack_ns in STACK_NS)
    text = (
        f"{counted(checks.checks / steps, 'tensor')} {each(analysis)} are checked for NaN in the backward pass, in "
        f"{format_duration(check_ns)}. The forward pass notes a Python stack for each of "
        f"{counted(nodes, 'node')} of the graph."
    )
    model = "The checks go away, and 0.1 to 1 ms per stack."
    return text, SavingRange((low_ns, high_ns), model)
