"""The rule for attention that runs as separate products and softmax instead of one fused kernel."""

from __future__ import annotations

from lightning_perf.analysis.model.attention import Attention, AttentionKind
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import device_saving_ns, each, share_of_step, step_ns, worth_it
from lightning_perf.units import format_duration, format_share

__all__ = ["attention_math"]

UNFUSED = ("math", "written out")

LEAST_REMOVED = 0.25
"""Least share of the time outside of products that a fused kernel saves. It still computes the softmax. On a processor,
it saved 16 to 70 % of the attention at 128 to 1,024 tokens and head sizes of 32 and 64. There, 47 to 62 % of the time
was outside of products."""

CAUSAL_PRODUCTS = 0.5
"""Share of the products that a fused causal kernel skips: nearly half of all scores are masked."""

ALIGNMENT = {"float": 4, "c10::Half": 8, "c10::BFloat16": 8}
"""The head size is a multiple of this for the memory-efficient kernel, 16 bytes for 16-bit types and FP32
(``check_head_dim_size_mem_efficient`` in PyTorch's ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``)."""


def attention_math(analysis: RankAnalysis) -> Finding | None:
    """Find attention that writes all scores to memory, and the reason why no fused kernel runs.

    Model: of the time outside of products, a quarter to all goes away. In causal attention, up to half of the products
    goes away, too.
    """
    found = analysis.attention
    kinds = [kind for kind in found.kinds if kind.implementation in UNFUSED] if found is not None else []
    if found is None or not kinds:
        return None
    time_ns = sum(kind.time_ns for kind in kinds) / found.steps
    products_ns = sum(kind.product_ns for kind in kinds) / found.steps
    causal_ns = sum(kind.product_ns for kind in kinds if kind.causal) / found.steps
    other_ns = time_ns - products_ns
    saving_ns = LEAST_REMOVED * other_ns, other_ns + CAUSAL_PRODUCTS * causal_ns
    if found.on_device:
        saving_ns = device_saving_ns(analysis, *saving_ns)
    if not worth_it(saving_ns[1], analysis):
        return None
    reason, action = _reason(kinds[0], found)
    return finding(
        "attention-math",
        f"Attention without a fused kernel: it takes {share_of_step(time_ns, analysis)} of the step",
        (
            (
                f"Attention takes {format_duration(time_ns)} {each(analysis)} with its backward, "
                f"{format_share(products_ns / time_ns if time_ns else None)} of it in matrix products. The rest reads "
                "and writes the scores of all pairs of tokens."
            ),
            reason,
        ),
        action,
        saving_ns=saving_ns,
        step_ns=step_ns(analysis),
        model="A fused kernel keeps the scores on the chip. A quarter to all of the time outside of products goes "
        "away, and up to half of the products in causal attention.",
        rank=analysis.rank,
    )


def _reason(kind: AttentionKind, found: Attention) -> tuple[str, str]:
    """Return why no fused kernel runs, as a sentence, and the fix."""
    if kind.implementation == "written out":
        return (
            "The model's own code multiplies, takes the softmax and multiplies again, which PyTorch does not fuse.",
            (
                "Call torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True). Models of "
                'Hugging Face: from_pretrained(…, attn_implementation="sdpa").'
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
    size, alignment = kind.query[-1] if kind.query else 0, ALIGNMENT.get(kind.type)
    if found.on_device and alignment is not None and size % alignment:
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
