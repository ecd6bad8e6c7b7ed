"""Language models, attention and gradient checkpointing."""

from __future__ import annotations

from collections.abc import Iterator

from lightning_perf.analysis.model.attention import Attention, AttentionKind, LanguageModel
from lightning_perf.analysis.model.recompute import Recompute
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.savings import counted, each, share_of_step, whole
from lightning_perf.show.blocks import Block, Heading, Line, listing, rest, table
from lightning_perf.units import format_count, format_duration, format_flops, format_rate, format_ratio, format_share


def language_model_sections(analysis: RankAnalysis, top: int) -> Iterator[Block]:
    """Yield tokens and FLOPs of a language model, its attention, and the forward work that the backward repeats."""
    if analysis.language_model is not None:
        yield Heading("Language model", definition="tokens")
        yield from _language_model(analysis.language_model)
    if analysis.attention is not None:
        yield Heading(f"Attention, {each(analysis)}", definition="attention")
        yield from _attention(analysis.attention, top)
    if analysis.recompute is not None:
        yield Heading("Gradient checkpointing", definition="repeated-forward-work")
        yield _recompute(analysis.recompute, analysis)


def _language_model(model: LanguageModel) -> Iterator[Block]:
    lines = [_tokens(model)]
    if model.flops_per_token is not None:
        lines.append(_flops(model, model.flops_per_token))
    if model.formula_mfu is not None:
        lines.append(f"MFU by the formula: {format_share(model.formula_mfu)}")
    yield from listing(lines)


def _tokens(model: LanguageModel) -> str:
    facts = [f"{counted(model.tokens_per_step, 'token')} per step"]
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


def _attention(attention: Attention, top: int) -> Iterator[Block]:
    steps = max(attention.steps, 1)
    yield table(
        ("implementation", "calls", "device" if attention.on_device else "host", "inputs"),
        (
            (kind.implementation, kind.calls / steps, kind.time_ns / steps, _inputs(kind))
            for kind in attention.kinds[:top]
        ),
        kinds="name count duration text",
    )
    yield from rest(len(attention.kinds) - top, "row")


def _inputs(kind: AttentionKind) -> str:
    facts = [f"{'×'.join(map(str, kind.query))} queries"] if kind.query else []
    facts += [counted(kind.keys, "key")] if kind.keys else []
    facts += [kind.type.removeprefix("c10::")] if kind.type else []
    facts += ["causal"] if kind.causal else []
    facts += ["with a mask"] if kind.mask else []
    facts += [f"dropout {kind.dropout:g}"] if kind.dropout else []
    return ", ".join(facts)


def _recompute(repeated: Recompute, analysis: RankAnalysis) -> Line:
    time_ns = repeated.time_ns / max(repeated.steps, 1)
    where = "of the device" if repeated.on_device else "of the host"
    share = f", {share_of_step(time_ns, analysis)} of {whole(analysis)}" if not repeated.on_device else ""
    return Line(f"The backward repeats forward work: {format_duration(time_ns)} {where} {each(analysis)}{share}")
