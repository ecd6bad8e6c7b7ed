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
        family: The maker of kernels with such names.
        pattern: A pattern in such names, in any case. A group named ``dtype`` holds the arithmetic's spelling. Most
            recordings need few patterns, and compiling all takes 10 ms, so each is compiled on its first use.
        arithmetic: The arithmetic, if it is the same for the whole family; ``None`` if the group gives it or the name
            does not show it.
        tensor_cores: Whether such kernels run on Tensor Cores; ``None`` if the name does not show it.
        source: The documentation of the scheme, or the place where the name was seen with operators of known types.
    """

    family: str
    pattern: str
    arithmetic: str | None
    tensor_cores: bool | None
    example: str
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


_rule = NameRule

# fmt: off
RULES: tuple[NameRule, ...] = (
    # cuBLAS's own code generator. Letters: A and B (one letter when they are the same and 16 or 32 bit wide), then
    # compute, then output. So tst is bf16 × bf16 in fp32 to bf16, hss fp16 to fp32, qqtst fp8, ootst fp4 (NVFP4).
    _rule("cuBLAS nvjet", r"nvjet_(sm\d+_)?\w*?(?<=_)sss_(?P<dtype>tf32)", None, True,
          "nvjet_sss_tf32_128x256_TNT", _NVJET_NAMES),
    _rule("cuBLAS nvjet", r"nvjet_(?:sm\d+_)?(?P<dtype>[thqro])[a-z]*_\d", None, True,
          "nvjet_sm90_tst_192x8_64x8_2x1_v_bz_TNT", _NVJET_NAMES),
    _rule("cuBLAS nvjet", r"nvjet_(?:sm\d+_)?(?P<dtype>d)dd_\d", None, None, "nvjet_ddd_64x64_TNT", _NVJET_NAMES),

    # XMMA: storage of A and B, then the type that is multiplied and the accumulator: f32f32_tf32f32 is TF32.
    _rule("cuBLAS/cuDNN XMMA without Tensor Cores",
          r"sm\d+_xmma_.*?_(?P<dtype>f64|f32)f\d+_f\d+_.*(ffma|simt)", None, False,
          "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute_"
          "kernel__5x_cublas", _XMMA_NAMES),
    _rule("cuBLAS/cuDNN XMMA",
          r"sm\d+_xmma_.*?_(?:bf16|tf32|f16|f32|f64|e4m3|e5m2|i8)[a-z]+\d+m?\d*_"
          r"(?P<dtype>bf16|tf32|f16|f64|e4m3|e5m2|i8)", None, True,
          "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel"
          "__5x_cublas", _XMMA_NAMES),
    _rule("cuBLAS/cuDNN XMMA in FP32", r"sm\d+_xmma_.*?_f32f32_(?P<dtype>f32)f32", None, False,
          "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8", _XMMA_NAMES),

    # CUTLASS 3: the operands' types follow the shape: …gemm_e4m3_e4m3_f32_bf16_bf16.
    _rule("CUTLASS 3", r"cutlass3x_sm\d+_(?:bs)?(?:sp)?tensorop_\w*?gemm_(?:block_scaled_)?(?:ue\w+?x)?"
          r"(?P<dtype>bf16|f16|tf32|f64|e4m3|e5m2|e2m1|s8|u8|f8)", None, True,
          "cutlass3x_sm90_tensorop_s64x256x16gemm_bf16_bf16_f32_bf16_bf16_128x256x64_2x1x1_0_tnn_align8",
          _CUTLASS_NAMES),
    # In its symbols the instruction names the types: of the sum, of A and of B. Blackwell's instructions take them as
    # arguments.
    _rule("CUTLASS 3 symbol", r"(?:MMA|SM90)_\d+x\d+x\d+_(?:F32|F16|S32)(?P<dtype>BF16|TF32|F16|E4M3|E5M2|S8|U8)", None,
          True, "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int>, cutlass::"
          "gemm::collective::CollectiveMma<cutlass::gemm::MainloopSm90TmaGmmaWarpSpecialized<9, cute::tuple<cute::C<1> "
          ">, cutlass::gemm::KernelTmaWarpSpecializedPingpong>, cutlass::bfloat16_t, cute::TiledMMA<cute::MMA_Atom<cute"
          "::SM90::GMMA::MMA_64x64x16_F32BF16BF16_SS<(cute::SM90::GMMA::Major)0> > > > >", _GMMA_NAMES),
    _rule("CUTLASS 3 symbol", r"SM100_MMA_\w+<cutlass::(?P<dtype>bfloat16_t|half_t|tfloat32_t|float_e[45]m\d_t)", None,
          True, "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int>, cute::MMA_Atom<"
          "cute::SM100_MMA_F16BF16_SS<cutlass::bfloat16_t, cutlass::bfloat16_t, float, 128> > > >", _GMMA_NAMES),
    _rule("DeepGEMM", r"deep_gemm::(?:sm\d+_)?(?P<dtype>fp8|bf16|tf32)_", None, True,
          "void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 4096u, 1024u, 1u>(float*, int*)",
          "https://github.com/deepseek-ai/DeepGEMM/tree/main/deep_gemm/include/deep_gemm/impls"),
    _rule("DeepSeek grouped GEMM", r"grouped_gemm::(?:\w+::)*?(?:\w*_)?(?P<dtype>fp8|bf16)\w*::GemmKernel", None, True,
          "void cutlass::device_kernel<dpsk::grouped_gemm::cuda::m_grouped_fp8_ptp128c::GemmKernel>(dpsk::grouped_gemm"
          "::cuda::m_grouped_fp8_ptp128c::GemmKernel::Params)", "https://github.com/deepseek-ai/profile-data"),
    _rule("CUTLASS 3", r"cutlass3x_sm\d+_(?:bs)?tensorop_\w*?ue\w+?x(?P<dtype>f4|e2m1)", "fp4", True,
          "cutlass3x_sm100_bstensorop_s256x192x64gemm_block_scaled_ue4m3xf4_ue4m3xf4_f32_f16_f16_256x192x256",
          _CUTLASS_NAMES),

    # CUTLASS 2 and cuBLAS's hand-written kernels: [type_]<accumulator><instruction shape>[type]<operation>. Instruction
    # shapes give the rest: m8n8k4 is fp16 (or fp64 with a d), m16n8k8 without a type TF32, m16n8k16 16 bit.
    _rule("CUTLASS/cuBLAS without Tensor Cores", r"(?:cutlass_\d*_?simt_|simt_)(?P<dtype>[sdhcz])gemm", None, False,
          "void cutlass::Kernel<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>"
          "(cutlass_80_simt_sgemm_128x32_8x5_nn_align1::Params)", _CUTLASS_NAMES),
    _rule("CUTLASS/cuBLAS, type before the instruction",
          r"(?:tensorop|volta|turing|ampere|ada|hopper)_(?P<dtype>bf16|fp16|f16|tf32|e4m3|e5m2|s8|u8|int8)_"
          r"[shdif](?:884|1688|16816|161616|16832|8816)", None, True,
          "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8>"
          "(cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8::Params)", _CUTLASS_NAMES),
    _rule("CUTLASS/cuBLAS, type after the instruction",
          r"(?:^|[_<])s(?:884|1688|16816|161616)(?P<dtype>tf32|bf16|f16)?(?:gemm|fprop|dgrad|wgrad|cudnn)\w*?_"
          r"(?P<dtype2>bf16|fp16|f16|tf32)_", None, True,
          "void cutlass_cudnn_infer::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32_128x128_16x4_nhwc_align4>"
          "(cutlass_tensorop_s1688fprop_optimized_tf32_128x128_16x4_nhwc_align4::Params)", _CUTLASS_NAMES),
    _rule("CUTLASS/cuBLAS TF32", r"(?:^|[_<])s1688(?:tf32)?(?:gemm|fprop|dgrad|wgrad)", "tf32", True,
          "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align1>"
          "(cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align1::Params)", _MMA_SHAPES),
    _rule("CUTLASS/cuBLAS FP16", r"(?:^|[_<])(?:h(?:884|1688|16816|161616)|s884)(?:gemm|cudnn|fprop|dgrad|wgrad)",
          "fp16", True, "volta_h884gemm_256x64_ldg8_nn", _MMA_SHAPES),
    _rule("CUTLASS/cuBLAS FP64", r"(?:^|[_<])d(?:884|1688|16816)gemm", "fp64", True,
          "void cutlass::Kernel<cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1>"
          "(cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1::Params)", _MMA_SHAPES),
    _rule("CUTLASS/cuBLAS INT8", r"(?:^|[_<])(?:i8816|i16832|i16864)|imma", "int8", True,
          "cutlass_80_tensorop_i16832gemm_s8_256x128_128x3_tn_align16", _MMA_SHAPES),
    _rule("Tensor Core kernel of unnamed type", r"hmma|(?:^|[_<])s16816|_tensorop_", None, True,
          "ampere_s16816gemm_128x128_ldg8_stages_32x5_nn", _CUBLAS_NAMES),
    # Anchored: a search that looks ahead from everywhere takes milliseconds on a name of thousands of letters.
    _rule("CUTLASS symbol",
          r"^(?=.*(?:MmaTensorOp|OpClassTensorOp|wgmma)).*?\d+(?P<dtype>tfloat32_t|bfloat16_t|half_t)", None, True,
          "_ZN19cutlass_cudnn_train6KernelINS_4conv6kernel23ImplicitGemmConvolutionINS1_11threadblock22ImplicitGemm"
          "MultistageINS_10tfloat32_tENS6_4warp11MmaTensorOpINS7_ILi64ELi64ELi32EEESC", _KINETO_SAMPLES),

    # cuBLAS and cuDNN on the ordinary cores, by BLAS letter (gcgemm: complex).
    _rule("cuDNN", r"(?:maxwell|pascal|volta|turing|ampere)_fp16_scudnn", "fp16", False,
          "volta_fp16_scudnn_fp16_128x64_relu_interior_nn_v1", _KINETO_SAMPLES),
    _rule("cuDNN", r"(?:maxwell|pascal|volta|turing|ampere)_(?P<dtype>[shd])cudnn_", None, False,
          "volta_scudnn_128x64_relu_interior_nn_v1", _KINETO_SAMPLES),
    _rule("cuBLAS", r"(?:maxwell|pascal|volta|turing|ampere|ada|hopper)_(?:fp16_)?g?(?P<dtype>[shdcz])gemm_", None,
          False, "volta_sgemm_128x64_nt", _KINETO_SAMPLES),

    # Attention.
    _rule("TensorRT-LLM attention", r"fmhaSm\d+\w*Qkv(?P<dtype>E4m3|Bfloat16|Fp16)", None, True,
          "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext", _NVJET_NAMES),
    _rule("TensorRT-LLM batched GEMM", r"^bmm_\w*?(?P<dtype>E4m3|E5m2)\w*_Fp32_", None, True,
          "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1", _NVJET_NAMES),
    _rule("TensorRT-LLM batched GEMM", r"^bmm_\w*?_\w*?(?P<dtype>E2m1)\w*_Fp32_", None, True,
          "bmm_Bfloat16_E2m1E2m1_Fp32_bA16_bB16_bC16", _NVJET_NAMES),
    _rule("memory-efficient attention", r"fmha_cutlass[FB]_(?P<dtype>bf16|f16)_", None, True,
          "fmha_cutlassF_bf16_aligned_64x128_rf_sm80", _MEM_EFFICIENT),
    # In FP32 it multiplies by CUTLASS's fast-FP32 operator from Ampere on: several TF32 products per product.
    _rule("memory-efficient attention in FP32", r"fmha_cutlass[FB]_f32_\w*sm(?:8\d|9\d|1\d\d)", "tf32", True,
          "fmha_cutlassF_f32_aligned_64x64_rf_sm80", _MEM_EFFICIENT),
    _rule("memory-efficient attention in FP32", r"fmha_cutlass[FB]_(?P<dtype>f32)_", None, False,
          "fmha_cutlassF_f32_aligned_64x64_rf_sm75", _MEM_EFFICIENT),
    # The f16 in these names stands for any 16-bit type: bf16 training calls the same.
    _rule("cuDNN attention", r"cudnn_generated_(?:fort_native|oss)_sdpa", None, True,
          "cudnn_generated_oss_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_cga1x1x1_kernel0_0",
          "https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Attention.html"),
    _rule("flash attention", r"flash(?:::|_fwd|_bwd|attn).*?(?P<dtype>bfloat16_t|half_t|float_e4m3_t)", None, True,
          "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, "
          "cutlass::bfloat16_t> >(pytorch_flash::Flash_fwd_params)", _FLASH),

    # AMD. Tensile writes the problem type after the index string: A and B, then output and compute (HHS: fp16 to fp16
    # in fp32), B for "uses beta". S_MX is FP32 by XF32, AMD's TF32. MI16x16x1 is the matrix instruction.
    _rule("rocBLAS/hipBLASLt", r"Cijk_A\w+_B[a-z]+_S_MX_", "tf32", True,
          "Custom_Cijk_Alik_Bljk_S_MX_B_BIAS_HA_S_SAV_NTD_SK3_UserArgs_MT256x256x32_MI16x16x1_shortname0_gfx950",
          _TENSILE_NAMES),
    _rule("rocBLAS/hipBLASLt", r"Cijk_A[a-z]+_B[a-z]+_(?P<dtype>F8N?|B8N?|4xi8|I8|[SDHBXCZ]).*_MI\d", None, True,
          "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT64x32x128_MI16x16x1_SN_LDSB1", _TENSILE_NAMES),
    _rule("rocBLAS/hipBLASLt", r"Cijk_A[a-z]+_B[a-z]+_(?P<dtype>F8N?|B8N?|4xi8|I8|[SDHBXCZ])", None, None,
          "Cijk_Ailk_Bljk_HHS_BH_MT64x64x16_SE_K1", _TENSILE_NAMES),
    _rule("MIOpen implicit GEMM", r"igemm_(?:fwd|bwd|wrw)_gtcx\d?\w*?_(?P<dtype>bf16|fp16|fp32|int8)_", None, True,
          "igemm_bwd_gtcx3_nhwc_bf16_bx0_ex1_bt256x64x32_wt32x32x8_ws1x1_wr2x2",
          "https://github.com/ROCm/MIOpen/tree/develop/src/kernels (gtc: Matrix Core convolutions)"),
    # In symbols types are single letters and bf16 is `unsigned short`, so the operator's types say more.
    _rule("composable kernel", r"(?:_ZN\d*ck|ck::tensor_operation|ck_tile).*(?:xdl|wmma|mfma)", None, True,
          "_ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl_cshuffle_v3INS_34Gridwise",
          "https://github.com/ROCm/composable_kernel (xdl: Matrix Core instructions)"),
    _rule("MIOpen/ROCm data movement", r"^(?:batched_transpose_|SubTensorOp|transpose_)", None, False,
          "batched_transpose_32x32_half", "https://github.com/ROCm/MIOpen/tree/develop/src/kernels"),

    # The tables of offsets that cuDNN's implicit GEMMs read.
    _rule("cuDNN index computation", r"cask_cudnn\w*::compute\w*Offsets", "integer", False,
          "cask_cudnn::computeOffsetsKernel(cask_cudnn::ComputeOffsetsParams)", _KINETO_SAMPLES),

    # Triton by Inductor: the prefix gives the kind (pointwise, reduction, persistent, template), not the type.
    _rule("Triton", r"^triton_(?:poi|red|per|for|split_scan)_", None, False, "triton_poi_fused_add_cos_sin_0",
          _INDUCTOR_NAMES),
    _rule("Triton template", r"^triton_tem_", None, None, "triton_tem_fused_mm_3", _INDUCTOR_NAMES),

    # Quantization: named after the type of its result, and works in the type of its input.
    _rule("quantisation", r"quant\w*(?:kernel|_size)\w*<[^>]*?(?P<dtype>c10::BFloat16|__nv_bfloat16|c10::Half|__half)",
          None, False, "void vllm::scaled_fp8_quant_kernel_strided<c10::BFloat16, c10::Float8_e4m3fn>"
          "(c10::Float8_e4m3fn*, c10::BFloat16 const*, float const*, int, long)", "https://github.com/vllm-project/vllm"),
    _rule("Transformer Engine cast",
          r"transformer_engine::.*?(?:cast|quantize)\w*kernel.*?(?P<dtype>__nv_bfloat16|__half)", None, False,
          "void transformer_engine::(anonymous namespace)::cast_transpose_general_kernel<8, 8, float, __nv_bfloat16, "
          "__nv_fp8_e4m3>(__nv_bfloat16 const*, float const*, __nv_fp8_e4m3*)", _TE_CASTS),
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

    arithmetic: str | None
    tensor_cores: bool | None
    family: str | None


_T = TypeVar("_T")


def _by_matched_part(function: Callable[[str], _T]) -> Callable[[str], _T]:
    """Let a function see only the part of a name that patterns may see, and keep its results."""
    cached = lru_cache(maxsize=65536)(function)
    return wraps(function)(lambda name: cached(matched_part(name)))


# Kernels that products launch in addition to their own: changes of layout, sums of partial results, biases. PyTorch's
# own convolutions, which are depthwise, are among ``at::native``.
_HELPERS = (
    r"splitKreduce|ReduceSplitK|computeOffsets|im2col|gemv|nchwToNhwc|nhwcToNchw|flip_filter|at::native::"
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
            return KernelArithmetic(arithmetic, rule.tensor_cores, rule.family)
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


def _template_arithmetic(name: str) -> KernelArithmetic:
    """Return the arithmetic of a C++ kernel by its types: of the element function, or else of the template."""
    for types in reversed(_LAMBDA.findall(name)):
        if found := _CPP_FLOAT.search(types):
            return KernelArithmetic(spelled_arithmetic(found.group(1)), False, "C++ template")
    head = name.split(">(")[0]
    if ("<" not in head and "(" not in head) or "OpaqueType" in head:  # opaque: moves bytes of any type
        return KernelArithmetic(None, None, None)
    if found := _CPP_FLOAT.search(head) or _CPP_POINTER.search(name):
        arithmetic = spelled_arithmetic(found.group(1))
        # FP32 and FP64 products of templates run on the ordinary cores. Those of narrower types may run on either.
        product = arithmetic not in ("fp32", "fp64") and _PRODUCT.search(head)
        return KernelArithmetic(arithmetic, None if product else False, "C++ template")
    if _CPP_INTEGER.search(head):
        return KernelArithmetic("integer", False, "C++ template")
    return KernelArithmetic(None, None, None)
