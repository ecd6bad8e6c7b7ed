"""Rules about the model and its batches: attention, padding and gradient checkpointing."""

from __future__ import annotations

from lightning_perf.analysis.host.launches import bounded_by_host
from lightning_perf.analysis.model.attention import Attention, AttentionKind
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.cpu import host_saving_ns
from lightning_perf.findings.finding import ANOTHER_MODEL, Problem, SavingRange, rule
from lightning_perf.findings.memory import fullest_device
from lightning_perf.findings.savings import (
    device_saving_ns,
    each,
    in_phases,
    loader_of,
    processor_of,
    share_of_step,
    step_ns,
    whole,
)
from lightning_perf.units import counted, format_bytes, format_count, format_duration, format_share

UNFUSED = ("math", "written out")

TYPES = {"float": "FP32", "double": "FP64", "c10::Half": "FP16", "c10::BFloat16": "BF16"}
"""Names of element types as recorded."""

LEAST_FUSED = 0.25
"""Least share of the time outside of products that a fused kernel saves. It still computes the softmax. On a processor,
it saved 16 to 70 % of the attention at 128 to 1,024 tokens and head sizes of 32 and 64. There, 47 to 62 % of the time
was outside of products."""

CAUSAL_PRODUCTS = 0.5
"""Share of the products that a fused causal kernel skips: nearly half of all scores are masked."""

HEAD_ALIGNMENT = {"float": 4, "c10::Half": 8, "c10::BFloat16": 8}
"""The head size is a multiple of this for the memory-efficient kernel, 16 bytes for 16-bit types and FP32
(``check_head_dim_size_mem_efficient`` in PyTorch's ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``)."""


@rule("attention-math", part=in_phases("forward", "backward"))
def attention_math(analysis: RankAnalysis) -> Problem | None:
    """Find attention that writes all scores to memory, and the reason why no fused kernel runs."""
    found = analysis.attention
    kinds = [kind for kind in found.kinds if kind.implementation in UNFUSED] if found is not None else []
    if found is None or not kinds:
        return None
    time_ns = sum(kind.time_ns for kind in kinds) / found.steps
    products_ns = sum(kind.product_ns for kind in kinds) / found.steps
    causal_ns = sum(kind.product_ns for kind in kinds if kind.causal) / found.steps
    other_ns = time_ns - products_ns
    saving_ns = LEAST_FUSED * other_ns, other_ns + CAUSAL_PRODUCTS * causal_ns
    if found.on_device:
        saving_ns = device_saving_ns(analysis, *saving_ns)
    reason, action = _unfused_reason(kinds[0], found)
    return Problem(
        f"Attention without a fused kernel: it takes {share_of_step(time_ns, analysis)} of {whole(analysis)}",
        (
            (
                f"Attention {_inputs(kinds[0])}takes {format_duration(time_ns)} {each(analysis)}"
                f"{' with its backward' if found.with_backward else ''}, "
                f"{format_share(products_ns / time_ns if time_ns else None)} of it in matrix products. The rest reads "
                "and writes the scores of all pairs of tokens."
            ),
            reason,
        ),
        action,
        SavingRange(
            saving_ns,
            "A fused kernel keeps the scores on the chip. A quarter to all of the time outside of products goes "
            "away, and up to half of the products in causal attention.",
        ),
        changes=_other_attention(kinds[0], found),
    )


def _inputs(kind: AttentionKind) -> str:
    """Return the type and the length of the inputs as a part of a sentence; empty if they were not recorded."""
    type_name = TYPES.get(kind.type, kind.type.removeprefix("c10::"))
    parts = [type_name, f"with {counted(kind.keys, 'key')}" if kind.keys else ""]
    text = " ".join(part for part in parts if part)
    return f"in {text} " if type_name else f"{text} " if text else ""


def _other_attention(kind: AttentionKind, found: Attention) -> str:
    """Return how the fix may change results."""
    if kind.implementation == "written out":
        return "only if you leave out a mask, a scale or dropout of your code, so compare the outputs once"
    if not found.on_device and kind.dropout:
        return ANOTHER_MODEL
    return "products round to FP32" if kind.type == "double" else ANOTHER_MODEL if _is_unaligned(kind, found) else ""


def _is_unaligned(kind: AttentionKind, found: Attention) -> bool:
    """Return whether the head size keeps the memory-efficient kernel from running."""
    alignment = HEAD_ALIGNMENT.get(kind.type)
    return found.on_device and alignment is not None and bool(kind.query and kind.query[-1] % alignment)


GIVEN_MASK = " Give ~mask for masked_fill(mask, …), or the bias that your code adds; if causal, is_causal=True instead."
WITH_MASK = {
    True: ("attn_mask=…", GIVEN_MASK),
    False: ("", ""),
    None: ("", " If your code masks scores, add attn_mask=…"),
}
"""The argument for a mask, and a sentence about it, by whether a mask was seen."""


def _sdpa_call(kind: AttentionKind) -> str:
    """Return the call that replaces attention that is written out."""
    mask, hint = ("is_causal=True", "") if kind.causal else WITH_MASK[kind.mask]
    arguments = ", ".join(
        part for part in ("query, key, value", mask, "" if kind.dropout == 0 else "dropout_p=…") if part
    )
    return (
        f"Call torch.nn.functional.scaled_dot_product_attention({arguments}).{hint} "
        "Give scale=…, unless it is 1/sqrt(head size)."
    )


def _unfused_reason(kind: AttentionKind, found: Attention) -> tuple[str, str]:
    """Return why no fused kernel runs, as a sentence, and the fix."""
    if kind.implementation == "written out":
        return (
            "The code multiplies, takes the softmax and multiplies again, which PyTorch does not fuse.",
            (
                f"{_sdpa_call(kind)} Call nn.MultiheadAttention with need_weights=False. Models of Hugging Face: "
                'from_pretrained(…, attn_implementation="sdpa").'
            ),
        )
    if not found.on_device and kind.dropout:
        return (
            f"The fused kernel of processors has no dropout, and dropout_p is {kind.dropout:g}.",
            (
                "Call scaled_dot_product_attention(…, dropout_p=0.0), and keep dropout on the outputs of attention and "
                "the perceptron."
            ),
        )
    if kind.type == "double":
        return "No fused kernel computes in float64.", 'Train in FP32 or less: Trainer(precision="32-true").'
    if _is_unaligned(kind, found):
        size, alignment = kind.query[-1], HEAD_ALIGNMENT[kind.type]
        return (
            f"The head size of {size} is not a multiple of {alignment}.",
            f"Choose width and number of heads so that the head size is a multiple of {alignment}, or better of 64.",
        )
    return (
        "Type, head size and dropout, as recorded, do not rule a fused kernel out.",
        (
            "Remove sdpa_kernel(SDPBackend.MATH) and enable_flash_sdp(False), if your code has them. To see the "
            "reason, run one step inside torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION): PyTorch then "
            "warns about each limit that the inputs break."
        ),
    )


LEAST_UNPADDED = 0.5
"""Least share of the padding that a better batch avoids: that of batches of similar length in large buckets."""

MOST_IN_BUCKETS = 0.15
"""Share of padding that is left in batches of similar length: with a sampler of its own, a training is at its goal."""

BEYOND_LONGEST = 0.5
"""From this share of the padding on, it is enough to pad each batch to its own longest sequence."""


@rule("padding", part=in_phases("forward", "backward"))
def padding(analysis: RankAnalysis) -> Problem | None:
    """Find batches in which much of the compute is spent on padding."""
    model = analysis.language_model
    if model is None or not model.padding or model.beyond_longest is None:
        return None
    category = "device_compute" if analysis.breakdown.has_device else "host_compute"
    busy_ns = sum(analysis.phases.time_ns(phase, category) or 0.0 for phase in ("forward", "backward"))
    found = analysis.attention
    attention_ns = sum(kind.time_ns for kind in found.kinds) / found.steps if found is not None else 0.0
    linear_ns = model.padding * busy_ns
    square_ns = model.padding * (1 - model.padding) * min(attention_ns, busy_ns)
    needed = model.beyond_longest < BEYOND_LONGEST * model.padding
    sampler = loader_of(analysis).sampler
    if needed and sampler is not None and model.padding < MOST_IN_BUCKETS:
        return None
    saving_ns = LEAST_UNPADDED * linear_ns, linear_ns + square_ns
    if analysis.breakdown.has_device:
        saving_ns = bounded_by_host(*saving_ns, step_ns(analysis), analysis.host_pace)
    wasted = format_count(model.padding * model.tokens_per_step)
    evidence = [
        (
            f"About {wasted} of {format_count(model.tokens_per_step)} tokens per step are padding. Forward and "
            f"backward compute for {format_duration(busy_ns)} {each(analysis)}, for padding as for any other token."
        )
    ]
    changes = "sequences in one row must not attend to each other, and sorting changes which samples share a batch"
    if not needed:
        evidence.append(
            f"Most of it is not needed: {format_share(model.beyond_longest)} of the tokens lie beyond the longest "
            "sequence of their batch."
        )
        action = (
            "Pad each batch to its own longest sequence in collate_fn instead of a fixed length, e.g. with "
            "torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)."
        )
        changes = "only if the model does not mask padding"
    elif sampler is not None:
        evidence.append(f"{sampler} chooses the samples of a batch.")
        action = f"Pack several sequences into each row, or let {sampler} sort by length within larger buckets."
    else:
        action = (
            "Pack several sequences into each row, or batch sequences of similar length: DataLoader(…, "
            "batch_sampler=…) with a sampler that sorts by length within large buckets."
        )
    return Problem(
        f"Padding: {format_share(model.padding)} of the tokens in a batch are padding",
        evidence,
        action,
        SavingRange(
            saving_ns,
            "Forward and backward take time in proportion to the tokens, attention up to their square. Packing "
            "removes all padding, and batches of similar length at least half of it. A step keeps its real tokens.",
        ),
        changes=changes,
    )


MOST_USED = 0.5
"""Share of the device's memory in use at the peak up to which some blocks can keep their activations."""


FEWER_BLOCKS = (
    "Checkpoint fewer blocks, e.g. every second one, as long as the peak stays below about 90 % of the memory."
)

FEWER_BLOCKS_ON_CPU = (
    "Checkpoint fewer blocks, or none, as long as memory suffices. With transformers: "
    "model.gradient_checkpointing_disable(), or gradient_checkpointing=False in the TrainingArguments."
)


@rule("recompute")
def recompute(analysis: RankAnalysis) -> Problem | None:
    """Find checkpointed regions that repeat their forward although memory is free."""
    repeated = analysis.recompute
    if repeated is None:
        return None
    time_ns = repeated.time_ns / repeated.steps
    if repeated.on_device:
        saving_ns = device_saving_ns(analysis, time_ns / 4, time_ns)
        action, memory = FEWER_BLOCKS, _device_memory(analysis)
    else:
        saving_ns = host_saving_ns(analysis, time_ns / 4, time_ns)
        action, memory = FEWER_BLOCKS_ON_CPU, _host_memory(analysis)
    if memory is None:
        return None
    text, is_known = memory
    return Problem(
        f"Gradient checkpointing{' with free memory' if is_known else ''}: repeated work takes "
        f"{share_of_step(time_ns, analysis)} of {whole(analysis)}",
        f"The backward runs forward operators again for {format_duration(time_ns)} {each(analysis)}. {text}",
        action,
        SavingRange(
            saving_ns if is_known else (0.0, saving_ns[1]),
            "A quarter to all of the repeated work goes away, by the number of blocks that can keep activations.",
        ),
    )


def _device_memory(analysis: RankAnalysis) -> tuple[str, bool] | None:
    """Return a sentence about the device's memory; None if it is not free, or not recorded."""
    peak, total = fullest_device(analysis)
    if peak / total > MOST_USED:
        return None
    text = f"At its peak the run uses {format_bytes(peak)} of {format_bytes(total)}, {format_share(peak / total)}."
    return text, True


def _host_memory(analysis: RankAnalysis) -> tuple[str, bool] | None:
    """Return a sentence about the memory of the host, and whether it is known to be free; None if it is not free."""
    free, used = processor_of(analysis).free_bytes, processor_of(analysis).used_bytes
    if free is None or used is None:
        return "The recording does not show how much memory is free.", False
    if used / (used + free) > MOST_USED:
        return None
    return f"The training uses {format_bytes(used)}, and {format_bytes(free)} are free.", True
