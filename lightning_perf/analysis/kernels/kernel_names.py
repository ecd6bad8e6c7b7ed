"""The meaning of a kernel's name: library, arithmetic, and whether it uses Tensor Cores."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

from msgspec import Struct

from lightning_perf.trace.columns import matched_part


class NameRule(Struct, frozen=True):
    """One naming scheme.

    Attributes:
        pattern: A pattern in such names, in any case. A group named ``dtype`` holds the arithmetic's spelling. Most
            recordings need few patterns, and compiling all takes 10 ms, so each is compiled on its first use.
        arithmetic: The arithmetic, if it is the same for the whole family; ``None`` if the group gives it or the name
            does not show it.
        tensor_cores: Whether such kernels run on Tensor Cores; ``None`` if the name does not show it.
        source: The documentation of the scheme, or the place where the name was seen with operators of known types.
    """

    pattern: str
    arithmetic: str | None
    tensor_cores: bool | None
    source: str

    def search(self, name: str) -> re.Match[str] | None:
        """Search a name for the pattern."""
        return re.search(self.pattern, name, re.IGNORECASE)


_SPELLINGS = {
    # Spellings of CUTLASS, cuBLAS, cuDNN and MIOpen, then letters of BLAS, nvjet and Tensile, then types of C++.
    "fp64": ("f64", "d", "z", "double"),
    "fp32": ("f32", "fp32", "s", "c", "float"),
    "tf32": ("tf32", "x", "tfloat32_t"),
    "fp16": ("f16", "fp16", "h", "c10::half", "__half", "half_t", "_float16"),
    "bf16": ("bf16", "bfloat16", "b", "t", "c10::bfloat16", "__nv_bfloat16", "__hip_bfloat16", "bfloat16_t"),
    "fp8": (
        "e4m3", "e5m2", "f8", "fp8", "q", "r", "f8n", "b8", "b8n", "float_e4m3_t", "float_e5m2_t", "__nv_fp8_e4m3",
        "__nv_fp8_e5m2",
    ),
    "fp4": ("e2m1", "f4", "o"),
    "int8": ("i8", "s8", "u8", "int8", "4xi8"),
}  # fmt: skip
_ARITHMETICS = {spelling: arithmetic for arithmetic, spellings in _SPELLINGS.items() for spelling in spellings}

_CUTLASS_NAMES = "https://github.com/NVIDIA/cutlass/blob/main/python/cutlass_library/gemm_operation.py"
_GMMA_NAMES = "https://github.com/NVIDIA/cutlass/tree/main/include/cute/arch (mma_sm90_gmma.hpp, mma_sm100_umma.hpp)"
_MMA_SHAPES = "https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions"
_TENSILE_NAMES = "https://rocm.docs.amd.com/projects/Tensile/en/latest/ (solution and kernel names)"
_XMMA_NAMES = "https://github.com/NVIDIA/TensorRT-LLM/issues/1541"
_NVJET_NAMES = "https://github.com/AMD-AGI/TraceLens (tests: H100, B200); letters checked against operator types there"
_INDUCTOR_NAMES = "https://github.com/pytorch/pytorch/blob/main/torch/_inductor/codegen/triton.py"
_MEM_EFFICIENT = (
    "https://github.com/pytorch/pytorch/tree/main/aten/src/ATen/native/transformers/cuda/mem_eff_attention/kernels"
)
_TE_CASTS = "https://github.com/NVIDIA/TransformerEngine/tree/main/transformer_engine/common/transpose"
_FLASH = "https://github.com/Dao-AILab/flash-attention/blob/main/csrc/flash_attn/src/kernel_traits.h"
_CUBLAS_NAMES = "https://github.com/NVIDIA/cutlass/issues/1025"
_KINETO_SAMPLES = "https://github.com/pytorch/kineto/tree/main/tb_plugin/samples"


# fmt: off
RULES: tuple[NameRule, ...] = (
    # cuBLAS's own code generator. Letters: A and B (one letter when they are the same and 16 or 32 bit wide), then
    # compute, then output. So tst is bf16 × bf16 in fp32 to bf16, hss fp16 to fp32, qqtst fp8, ootst fp4 (NVFP4).
    NameRule(r"nvjet_(sm\d+_)?\w*?(?<=_)sss_(?P<dtype>tf32)", None, True, _NVJET_NAMES),
    NameRule(r"nvjet_(?:sm\d+_)?(?P<dtype>[thqro])[a-z]*_\d", None, True, _NVJET_NAMES),
    NameRule(r"nvjet_(?:sm\d+_)?(?P<dtype>d)dd_\d", None, None, _NVJET_NAMES),

    # XMMA: storage of A and B, then the type that is multiplied and the accumulator: f32f32_tf32f32 is TF32.
    NameRule(r"sm\d+_xmma_.*?_(?P<dtype>f64|f32)f\d+_f\d+_.*(ffma|simt)", None, False, _XMMA_NAMES),
    NameRule(r"sm\d+_xmma_.*?_(?:bf16|tf32|f16|f32|f64|e4m3|e5m2|i8)[a-z]+\d+m?\d*_"
          r"(?P<dtype>bf16|tf32|f16|f64|e4m3|e5m2|i8)", None, True, _XMMA_NAMES),
    NameRule(r"sm\d+_xmma_.*?_f32f32_(?P<dtype>f32)f32", None, False, _XMMA_NAMES),

    # CUTLASS 3: the operands' types follow the shape: …gemm_e4m3_e4m3_f32_bf16_bf16.
    NameRule(r"cutlass3x_sm\d+_(?:bs)?(?:sp)?tensorop_\w*?gemm_(?:block_scaled_)?(?:ue\w+?x)?"
          r"(?P<dtype>bf16|f16|tf32|f64|e4m3|e5m2|e2m1|s8|u8|f8)", None, True, _CUTLASS_NAMES),
    # In its symbols the instruction names the types: of the sum, of A and of B. Blackwell's instructions take them as
    # arguments.
    NameRule(r"(?:MMA|SM90)_\d+x\d+x\d+_(?:F32|F16|S32)(?P<dtype>BF16|TF32|F16|E4M3|E5M2|S8|U8)",
          None, True, _GMMA_NAMES),
    NameRule(r"SM100_MMA_\w+<cutlass::(?P<dtype>bfloat16_t|half_t|tfloat32_t|float_e[45]m\d_t)",
          None, True, _GMMA_NAMES),
    NameRule(r"deep_gemm::(?:sm\d+_)?(?P<dtype>fp8|bf16|tf32)_",
          None, True, "https://github.com/deepseek-ai/DeepGEMM/tree/main/deep_gemm/include/deep_gemm/impls"),
    NameRule(r"grouped_gemm::(?:\w+::)*?(?:\w*_)?(?P<dtype>fp8|bf16)\w*::GemmKernel",
          None, True, "https://github.com/deepseek-ai/profile-data"),
    NameRule(r"cutlass3x_sm\d+_(?:bs)?tensorop_\w*?ue\w+?x(?P<dtype>f4|e2m1)", "fp4", True, _CUTLASS_NAMES),

    # CUTLASS 2 and cuBLAS's hand-written kernels: [type_]<accumulator><instruction shape>[type]<operation>. Instruction
    # shapes give the rest: m8n8k4 is fp16 (or fp64 with a d), m16n8k8 without a type TF32, m16n8k16 16 bit.
    NameRule(r"(?:cutlass_\d*_?simt_|simt_)(?P<dtype>[sdhcz])gemm", None, False, _CUTLASS_NAMES),
    NameRule(r"(?:tensorop|volta|turing|ampere|ada|hopper)_(?P<dtype>bf16|fp16|f16|tf32|e4m3|e5m2|s8|u8|int8)_"
          r"[shdif](?:884|1688|16816|161616|16832|8816)", None, True, _CUTLASS_NAMES),
    NameRule(r"(?:^|[_<])s(?:884|1688|16816|161616)(?P<dtype>tf32|bf16|f16)?(?:gemm|fprop|dgrad|wgrad|cudnn)\w*?_"
          r"(?P<dtype2>bf16|fp16|f16|tf32)_", None, True, _CUTLASS_NAMES),
    NameRule(r"(?:^|[_<])s1688(?:tf32)?(?:gemm|fprop|dgrad|wgrad)", "tf32", True, _MMA_SHAPES),
    NameRule(r"(?:^|[_<])(?:h(?:884|1688|16816|161616)|s884)(?:gemm|cudnn|fprop|dgrad|wgrad)",
          "fp16", True, _MMA_SHAPES),
    NameRule(r"(?:^|[_<])d(?:884|1688|16816)gemm", "fp64", True, _MMA_SHAPES),
    NameRule(r"(?:^|[_<])(?:i8816|i16832|i16864)|imma", "int8", True, _MMA_SHAPES),
    NameRule(r"hmma|(?:^|[_<])s16816|_tensorop_", None, True, _CUBLAS_NAMES),
    # Anchored: a search that looks ahead from everywhere takes milliseconds on a name of thousands of letters.
    NameRule(r"^(?=.*(?:MmaTensorOp|OpClassTensorOp|wgmma)).*?\d+(?P<dtype>tfloat32_t|bfloat16_t|half_t)",
          None, True, _KINETO_SAMPLES),

    # cuBLAS and cuDNN on the ordinary cores, by BLAS letter (gcgemm: complex).
    NameRule(r"(?:maxwell|pascal|volta|turing|ampere)_fp16_scudnn", "fp16", False, _KINETO_SAMPLES),
    NameRule(r"(?:maxwell|pascal|volta|turing|ampere)_(?P<dtype>[shd])cudnn_", None, False, _KINETO_SAMPLES),
    NameRule(r"(?:maxwell|pascal|volta|turing|ampere|ada|hopper)_(?:fp16_)?g?(?P<dtype>[shdcz])gemm_",
          None, False, _KINETO_SAMPLES),

    # Attention.
    NameRule(r"fmhaSm\d+\w*Qkv(?P<dtype>E4m3|Bfloat16|Fp16)", None, True, _NVJET_NAMES),  # TensorRT-LLM attention
    NameRule(r"^bmm_\w*?(?P<dtype>E4m3|E5m2)\w*_Fp32_", None, True, _NVJET_NAMES),  # TensorRT-LLM batched GEMM
    NameRule(r"^bmm_\w*?_\w*?(?P<dtype>E2m1)\w*_Fp32_", None, True, _NVJET_NAMES),  # TensorRT-LLM batched GEMM
    NameRule(r"fmha_cutlass[FB]_(?P<dtype>bf16|f16)_", None, True, _MEM_EFFICIENT),
    # In FP32 it multiplies by CUTLASS's fast-FP32 operator from Ampere on: several TF32 products per product.
    NameRule(r"fmha_cutlass[FB]_f32_\w*sm(?:8\d|9\d|1\d\d)", "tf32", True, _MEM_EFFICIENT),
    NameRule(r"fmha_cutlass[FB]_(?P<dtype>f32)_", None, False, _MEM_EFFICIENT),
    # The f16 in these names stands for any 16-bit type: bf16 training calls the same.
    NameRule(r"cudnn_generated_(?:fort_native|oss)_sdpa",
          None, True, "https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Attention.html"),
    # Beside products of cuDNN: counters set to zero, and in the backward of attention sums of gradient times output.
    NameRule(r"init_device_workspace_kernel|cudnn::fusion::compute_dot_do_o",
          None, False, "https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Attention.html"),
    NameRule(r"flash(?:::|_fwd|_bwd|attn).*?(?P<dtype>bfloat16_t|half_t|float_e4m3_t)", None, True, _FLASH),

    # AMD. Tensile writes the problem type after the index string: A and B, then output and compute (HHS: fp16 to fp16
    # in fp32), B for "uses beta". S_MX is FP32 by XF32, AMD's TF32. MI16x16x1 is the matrix instruction.
    NameRule(r"Cijk_A\w+_B[a-z]+_S_MX_", "tf32", True, _TENSILE_NAMES),
    NameRule(r"Cijk_A[a-z]+_B[a-z]+_(?P<dtype>F8N?|B8N?|4xi8|I8|[SDHBXCZ]).*_MI\d", None, True, _TENSILE_NAMES),
    NameRule(r"Cijk_A[a-z]+_B[a-z]+_(?P<dtype>F8N?|B8N?|4xi8|I8|[SDHBXCZ])", None, None, _TENSILE_NAMES),
    NameRule(r"igemm_(?:fwd|bwd|wrw)_gtcx\d?\w*?_(?P<dtype>bf16|fp16|fp32|int8)_",
          None, True, "https://github.com/ROCm/MIOpen/tree/develop/src/kernels (gtc: Matrix Core convolutions)"),
    # In symbols types are single letters and bf16 is `unsigned short`, so the operator's types say more.
    NameRule(r"(?:_ZN\d*ck|ck::tensor_operation|ck_tile).*(?:xdl|wmma|mfma)",
          None, True, "https://github.com/ROCm/composable_kernel (xdl: Matrix Core instructions)"),
    NameRule(r"^(?:batched_transpose_|SubTensorOp|transpose_)",
          None, False, "https://github.com/ROCm/MIOpen/tree/develop/src/kernels"),

    # The tables of offsets that cuDNN's implicit GEMMs read.
    NameRule(r"cask_cudnn\w*::compute\w*Offsets", "integer", False, _KINETO_SAMPLES),

    # Triton by Inductor: the prefix gives the kind (pointwise, reduction, persistent, template), not the type.
    NameRule(r"^triton_(?:poi|red|per|for|split_scan)_", None, False, _INDUCTOR_NAMES),
    NameRule(r"^triton_tem_", None, None, _INDUCTOR_NAMES),

    # Quantization: named after the type of its result, and works in the type of its input.
    NameRule(r"quant\w*(?:kernel|_size)\w*<[^>]*?(?P<dtype>c10::BFloat16|__nv_bfloat16|c10::Half|__half)",
          None, False, "https://github.com/vllm-project/vllm"),
    NameRule(r"transformer_engine::.*?(?:cast|quantize)\w*kernel.*?(?P<dtype>__nv_bfloat16|__half)",
          None, False, _TE_CASTS),
)
# fmt: on


def spelled_arithmetic(spelling: str) -> str:
    """Return the arithmetic of a spelling in a kernel's name.

    Raises:
        KeyError: No arithmetic is spelled like that.
    """
    key = spelling.lower()
    if key.startswith(("c10::float8", "__nv_fp8")):
        return "fp8"
    return _ARITHMETICS[key]


class KernelArithmetic(Struct, frozen=True):
    """The facts in a name. None stands for one that it does not show."""

    arithmetic: str | None = None
    tensor_cores: bool | None = None


_T = TypeVar("_T")


def _by_matched_part(function: Callable[[str], _T]) -> Callable[[str], _T]:
    """Let a function see only the part of a name that patterns may see, and keep its results."""
    cached = lru_cache(maxsize=65536)(function)
    return wraps(function)(lambda name: cached(matched_part(name)))


# Kernels that products launch in addition to their own: changes of layout, sums of partial results, biases, and
# counters set to zero. PyTorch's own convolutions, which are depthwise, are among ``at::native``.
_HELPERS = (
    r"splitKreduce|ReduceSplitK|computeOffsets|init_device_workspace|im2col|gemv|nchwToNhwc|nhwcToNchw|flip_filter|at::native::"
    r"|deep_gemm::(?:transpose|pack)_|grouped_gemm::\w+::utils::"
)
_MOVES_DATA = re.compile(
    rf"{_HELPERS}|col2im|vol2col|depthwise|_c1_k1_|^batched_transpose_|^SubTensorOp|^transpose_", re.IGNORECASE
)
_PRODUCT_KERNEL = re.compile(
    rf"^(?!.*(?:{_HELPERS}))"
    r".*(?:(?<!fb)gemm(?!v)|xmma|scudnn|hcudnn|nvjet|cijk_|igemm|tensorop_|implicit_?convolve|explicit_?convolve|(?<=\w)grad\w*_engine"
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


@_by_matched_part
def kernel_arithmetic(name: str) -> KernelArithmetic:
    """Read from a kernel's name, demangled or not, in which arithmetic it computes, and if on Tensor Cores."""
    for rule in RULES:
        if found := rule.search(name):
            named = found.groupdict()
            spelling = named.get("dtype2") or named.get("dtype")
            arithmetic = rule.arithmetic or (spelled_arithmetic(spelling) if spelling else None)
            return KernelArithmetic(arithmetic, rule.tensor_cores)
    return _template_arithmetic(name)


@_by_matched_part
def is_product(name: str) -> bool:
    """Return whether a kernel multiplies matrices (convolution and attention too), as Tensor Cores do.

    Products with a vector are left out: memory bounds them.
    """
    return _PRODUCT_KERNEL.search(name) is not None


@_by_matched_part
def moves_data(name: str) -> bool:
    """Return whether memory bounds a kernel of a product or convolution, so that its type sets its bytes, not its rate.

    These are changes of layout, sums of partial results, products with a vector and depthwise convolutions.
    """
    return _MOVES_DATA.search(name) is not None


# cuDNN's and MIOpen's conversions: `cudnn::ops::nchwToNhwcKernel`, `nhwcToNchwKernel`, `batched_transpose_32x32_half`.
_CHANGES_LAYOUT = re.compile(r"nchwTo?Nhwc|nhwcTo?Nchw|nchw2nhwc|nhwc2nchw|batched_transpose_\d+x\d+", re.IGNORECASE)


@_by_matched_part
def changes_layout(name: str) -> bool:
    """Return whether a kernel only converts between channels first and channels last."""
    return _CHANGES_LAYOUT.search(name) is not None


def _template_arithmetic(name: str) -> KernelArithmetic:
    """Return the arithmetic of a C++ kernel by its types: of the element function, or else of the template."""
    for types in reversed(_LAMBDA.findall(name)):
        if found := _CPP_FLOAT.search(types):
            return KernelArithmetic(spelled_arithmetic(found.group(1)), False)
    head = name.split(">(")[0]
    if "OpaqueType" in head:  # moves bytes of any type
        return KernelArithmetic(None, False)
    if "<" not in head and "(" not in head:
        return KernelArithmetic()
    if found := _CPP_FLOAT.search(head) or _CPP_POINTER.search(name):
        arithmetic = spelled_arithmetic(found.group(1))
        # FP32 and FP64 products of templates run on the ordinary cores. Those of narrower types may run on either.
        product = arithmetic not in ("fp32", "fp64") and _PRODUCT.search(head)
        return KernelArithmetic(arithmetic, None if product else False)
    if _CPP_INTEGER.search(head):
        return KernelArithmetic("integer", False)
    return KernelArithmetic()
