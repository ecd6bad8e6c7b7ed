"""Language models, attention and gradient checkpointing as console text."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from lightning_perf.analysis.model.attention import Attention, AttentionKind
from lightning_perf.analysis.model.language_model import LanguageModel
from lightning_perf.analysis.model.recompute import Recompute
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.savings import each, share_of_step
from lightning_perf.report.console.layout import label, table
from lightning_perf.report.labels import count_of
from lightning_perf.units import format_count, format_duration, format_flops, format_rate, format_ratio, format_share

__all__ = ["attention_section", "language_model_section", "recompute_section"]


def language_model_section(model: LanguageModel) -> RenderableType:
    """Return tokens, padding, FLOPs per token and MFU, one line each."""
    lines = [_tokens(model)]
    if model.flops_per_token is not None:
        lines.append(_flops(model, model.flops_per_token))
    if model.formula_mfu is not None:
        lines.append(f"MFU by the formula: {format_share(model.formula_mfu)}")
    return Text("\n".join(lines))


def _tokens(model: LanguageModel) -> str:
    facts = [f"{format_count(model.tokens_per_step)} tokens per step"]
    if model.tokens_per_second is not None:
        facts.append(f"{format_rate(model.tokens_per_second, 'tokens')} under the profiler")
    if model.padding is not None:
        facts.append(f"{format_share(model.padding)} padding")
        if model.tokens_per_second is not None and model.padding:
            facts.append(format_rate(model.tokens_per_second * (1 - model.padding), "real tokens"))
    return " · ".join(facts)


def _flops(model: LanguageModel, flops_per_token: float) -> str:
    text = f"{format_flops(flops_per_token)} per token, forward and backward"
    if model.formula_flops_per_token is None or model.parameters is None:
        return text
    ratio = format_ratio(flops_per_token / model.formula_flops_per_token)
    attention = " + 12·L·d·T" if model.attention_flops_per_token else ""
    return f"{text}: {ratio} the formula 6N{attention} (N = {format_count(model.parameters)} parameters)"


def attention_section(attention: Attention, top: int) -> RenderableType:
    """Return a table of the implementations of attention with their inputs, and the time of each."""
    steps = max(attention.steps, 1)
    grid = table("implementation", "calls", "device" if attention.on_device else "host")
    grid.add_column("inputs")
    for kind in attention.kinds[:top]:
        grid.add_row(
            label(kind.implementation),
            format_count(kind.calls / steps),
            format_duration(kind.time_ns / steps),
            _inputs(kind),
        )
    more = len(attention.kinds) - top
    return Group(grid, *([Text(f"… and {count_of(more, 'more row')} (--top N shows more)", "dim")] if more > 0 else []))


def _inputs(kind: AttentionKind) -> str:
    facts = [f"{'×'.join(map(str, kind.query))} queries"] if kind.query else []
    facts += [f"{kind.keys} keys"] if kind.keys else []
    facts += [kind.type.removeprefix("c10::")] if kind.type else []
    facts += ["causal"] if kind.causal else []
    facts += ["with a mask"] if kind.mask else []
    facts += [f"dropout {kind.dropout:g}"] if kind.dropout else []
    return ", ".join(facts)


def recompute_section(repeated: Recompute, analysis: RankAnalysis) -> RenderableType:
    """Return the time of the forward work that the backward repeats."""
    time_ns = repeated.time_ns / max(repeated.steps, 1)
    where = "of the device" if repeated.on_device else "of the host"
    share = f", {share_of_step(time_ns, analysis)} of the step" if not repeated.on_device else ""
    return Text(f"The backward repeats forward work: {format_duration(time_ns)} {where} {each(analysis)}{share}")
