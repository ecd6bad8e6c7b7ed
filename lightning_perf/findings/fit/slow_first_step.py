"""The rule for a first step that takes much longer than the others."""

from __future__ import annotations

from lightning_perf.analysis.steps.fit_time import FitTime
from lightning_perf.findings.finding import Finding
from lightning_perf.findings.fit.fit_finding import fit_finding, is_worth_it, of_fit
from lightning_perf.units import format_duration

__all__ = ["is_compilation", "slow_first_step"]

COMPILE_SHARE = 0.5
"""From this share of the extra time on, compilation is the reason."""


def slow_first_step(fit: FitTime) -> Finding | None:
    """Find a first step that takes much longer than the later ones, and the reason.

    Model: at most the time beyond a later step goes away.
    """
    first, later = fit.group("first step"), fit.group("training steps")
    others = fit.steps - 1
    extra_ns = _extra_ns(fit)
    if others < 1 or not is_worth_it(extra_ns, fit):
        return None
    usual_ns = later.time_ns / others
    extra_of_parts = {part.name: part.time_ns - later.part(part.name).time_ns / others for part in first.parts}
    top = max(extra_of_parts, key=lambda name: extra_of_parts[name])
    reason, action = _reason(fit, top)
    return fit_finding(
        "slow-first-step",
        f"Slow first step: it takes {of_fit(first.time_ns, fit)}",
        (
            (
                f"A later step takes {format_duration(usual_ns)} on average. The largest part of the difference is "
                f"{format_duration(extra_of_parts[top])} in {'the rest of the loop' if top == 'loop' else top}."
            ),
            *((reason,) if reason else ()),
        ),
        action,
        saving_ns=(0.0, extra_ns),
        fit=fit,
        model="At most the time beyond a later step goes away.",
    )


def is_compilation(fit: FitTime) -> bool:
    """Return whether compilation is the reason for a slow first step."""
    return fit.compile_ns is not None and fit.compile_ns >= COMPILE_SHARE * _extra_ns(fit)


def _extra_ns(fit: FitTime) -> float:
    """Return the time of the first step beyond the mean of the others."""
    others = max(fit.steps - 1, 1)
    return fit.group("first step").time_ns - fit.group("training steps").time_ns / others


def _reason(fit: FitTime, top: str) -> tuple[str, str]:
    """Return the reason as a sentence, which may be empty, and the fix."""
    facts = fit.facts
    if fit.compile_ns is not None and is_compilation(fit):
        return (
            f"torch.compile takes {format_duration(fit.compile_ns)} of it.",
            (
                "Keep the compiled code between runs: set TORCHINDUCTOR_CACHE_DIR to a folder that lasts. Or compile "
                "only the block that repeats: model.block.compile()."
            ),
        )
    if top == "fetch":
        return (
            "The first batch is loaded in it.",
            "Make the first sample cheaper: move one-time work of the data set into setup, or start workers earlier.",
        )
    if facts.device == "cuda" and facts.cudnn_benchmark:
        return (
            "cuDNN measures its algorithms in it, because torch.backends.cudnn.benchmark is on.",
            "In a short fit, turn the search off: Trainer(benchmark=False). It runs again for every new input shape.",
        )
    if facts.device == "cuda":
        return (
            "CUDA loads each kernel at its first launch, and cuBLAS and cuDNN initialize.",
            "Train longer per process, e.g. several short fits in one process, so that this cost is paid once.",
        )
    return "", f"Look for one-time work in {top}, e.g. caches that it fills, and do it once for several fits."
