"""What a kernel's name tells: its arithmetic, by the table of naming schemes or else by its C++ types."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from lightning_perf.analysis.kernel_name_rules import RULES, spelled_arithmetic

__all__ = ["KernelArithmetic", "is_product", "kernel_arithmetic"]


@dataclass(frozen=True)
class KernelArithmetic:
    """What a name tells.

    Attributes:
        arithmetic: The arithmetic, or ``None`` when the name does not tell.
        tensor_cores: Whether the kernel runs on Tensor Cores, or ``None`` when the name does not tell.
        family: The rule's family, or ``None`` when no rule matched.
    """

    arithmetic: str | None
    tensor_cores: bool | None
    family: str | None


_PRODUCT_KERNEL = re.compile(
    r"^(?!.*(?:splitKreduce|ReduceSplitK|computeOffsets|im2col|gemv|nchwToNhwc|nhwcToNchw|flip_filter|at::native::))"
    r".*(?:(?<!fb)gemm(?!v)|xmma|scudnn|hcudnn|nvjet|cijk_|igemm|tensorop_|implicit_?convolve|explicit_?convolve|\w+grad\w*_engine"
    r"|dgrad2d|conv\w*_(?:fwd|bwd|xdl)|fmha|flash_(?:fwd|bwd)|flashattn|attn_fwd|attn_bwd|sdpa|^bmm_|^triton_tem_)",
    re.IGNORECASE,
)
_LAMBDA = re.compile(r"\{lambda\(([^(){}]*)\)")
_CPP_FLOAT = re.compile(
    r"\b(double|float|c10::Half|__half|half_t|_Float16|c10::BFloat16|__nv_bfloat16|__hip_bfloat16|bfloat16_t|tfloat32_t"
    r"|c10::Float8_\w+|__nv_fp8_\w+|float_e[45]m\d_t)(?=[\s,>*&)]|$)"
)
_CPP_POINTER = re.compile(_CPP_FLOAT.pattern.split("(?=")[0] + r"(?=(?: const)?\s?\*)")
_CPP_INTEGER = re.compile(r"\b(long|int|short|unsigned char|signed char|int8_t|bool)(?=[\s,>*&)]|$)")
_PRODUCT = re.compile(r"gemm|conv(?!ert)|attention|attn|fmha|mma", re.IGNORECASE)


@lru_cache(maxsize=65536)
def kernel_arithmetic(name: str) -> KernelArithmetic:
    """What a kernel's name tells of its arithmetic.

    Args:
        name: The kernel's name as recorded, demangled or not.

    Returns:
        The arithmetic (``fp64``, ``fp32``, ``tf32``, ``fp16``, ``bf16``, ``fp8``, ``fp4``, ``int8``, ``integer``) and
        whether it runs on Tensor Cores, each ``None`` where the name does not tell.

    Example:
        >>> kernel_arithmetic("cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4").arithmetic
        'tf32'
        >>> kernel_arithmetic("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<c10::Half>>")
        KernelArithmetic(arithmetic='fp16', tensor_cores=False, family='C++ template')
        >>> kernel_arithmetic("my_kernel").arithmetic is None
        True
    """
    for rule in RULES:
        if found := rule.pattern.search(name):
            named = found.groupdict()
            spelling = named.get("dtype2") or named.get("dtype")
            arithmetic = rule.arithmetic or (spelled_arithmetic(spelling) if spelling else None)
            return KernelArithmetic(arithmetic, rule.tensor_cores, rule.family)
    return _template_arithmetic(name)


@lru_cache(maxsize=65536)
def is_product(name: str) -> bool:
    """Whether a kernel multiplies matrices (convolution and attention too), as Tensor Cores do.

    Products with a vector are left out: memory bounds them.

    Example:
        >>> is_product("volta_sgemm_128x64_nt"), is_product("gemv2T_kernel_val<int, float>")
        (True, False)
    """
    return _PRODUCT_KERNEL.search(name) is not None


def _template_arithmetic(name: str) -> KernelArithmetic:
    """The arithmetic of a C++ kernel by its types: of the element function if it is one, else of the template."""
    for types in reversed(_LAMBDA.findall(name)):
        if found := _CPP_FLOAT.search(types):
            return KernelArithmetic(spelled_arithmetic(found.group(1)), False, "C++ template")
    head = name.split(">(")[0]
    if ("<" not in head and "(" not in head) or "OpaqueType" in head:  # opaque: moves bytes of any type
        return KernelArithmetic(None, None, None)
    if found := _CPP_FLOAT.search(head) or _CPP_POINTER.search(name):
        arithmetic = spelled_arithmetic(found.group(1))
        # FP32 and FP64 products of templates run on the ordinary cores; those of narrower types may run on either.
        product = arithmetic not in ("fp32", "fp64") and _PRODUCT.search(head)
        return KernelArithmetic(arithmetic, None if product else False, "C++ template")
    if _CPP_INTEGER.search(head):
        return KernelArithmetic("integer", False, "C++ template")
    return KernelArithmetic(None, None, None)
