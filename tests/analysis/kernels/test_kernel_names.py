"""Kernel names: known kernels from public recordings, which every row of the table has at least one of."""

import re

import pytest

from lightning_perf.analysis.kernels.kernel_names import RULES, is_product, kernel_arithmetic, spelled_arithmetic
from lightning_perf.trace.reader import read_trace
from tests.conftest import corpus_rows

GMMA = (
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int>, cutlass::gemm::"
    "collective::CollectiveMma<cutlass::gemm::MainloopSm90TmaGmmaWarpSpecialized<9, cute::tuple<cute::C<1> > >, "
    "{element}, cute::TiledMMA<cute::MMA_Atom<cute::SM90::GMMA::MMA_{shape}_SS<(cute::SM90::GMMA::Major)0> > > > > >"
)

TENSOR_CORES = [
    (GMMA.format(element="cutlass::bfloat16_t", shape="64x64x16_F32BF16BF16"), "bf16", True),
    (GMMA.format(element="cutlass::half_t", shape="64x128x16_F32F16F16"), "fp16", True),
    (GMMA.format(element="cutlass::half_t", shape="64x128x16_F16F16F16"), "fp16", True),
    (GMMA.format(element="cutlass::float_e4m3_t", shape="64x128x32_F32E4M3E4M3"), "fp8", True),
    (GMMA.format(element="float", shape="64x128x8_F32TF32TF32"), "tf32", True),  # FP32 tensors, multiplied in TF32
    (GMMA.format(element="signed char", shape="64x128x32_S32S8S8"), "int8", True),
    ("cute::SM90_64x128x16_F32BF16BF16_SS<(cute::GMMA::Major)0> gemm", "bf16", True),
    ("_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalI4GMMA28MMA_64x128x16_F32BF16BF16_SSE", "bf16", True),
    ("void cutlass::device_kernel<gemm<cute::SM100_MMA_F8F6F4_SS<cutlass::float_e4m3_t, float> > >", "fp8", True),
    ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 4096u, 1024u, 1u>(float*, int*)", "fp8", True),
    ("void deep_gemm::sm90_fp8_paged_mqa_logits<1u, 64u>(unsigned int, float*)", "fp8", True),
    ("void deep_gemm::sm100_fp8_fp4_gemm_1d1d_impl<1u>(float*)", "fp8", True),
    ("void deep_gemm::fp8_gemm_kernel<4096u, 7168u, 128u>(__nv_bfloat16*, float*, int*)", "fp8", True),
    ("void deep_gemm::sm90_bf16_gemm_impl<1u>(float*)", "bf16", True),
    ("void cutlass::device_kernel<dpsk::grouped_gemm::cuda::fp8_dptp128c_acc::GemmKernel>(int)", "fp8", True),
    ("cudnn_generated_oss_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_cga1x1x1_kernel0_0", None, True),
    ("cudnn_generated_oss_sdpa_sm100_flash_fprop_f16_knob_7_128x128x128_4x1x1_cga1x1x1_kernel0_0", None, True),
]
"""Products on Tensor Cores."""

WORKSPACE = "void cask_plugin__5x_cudnn::xmma__5x_cudnn::init_device_workspace_kernel<xmma__5x_cudnn::fprop::P>(P)"

KNOWN = [
    *TENSOR_CORES,
    # cuBLAS's letters: A and B, compute, output.
    ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTN", "bf16", True),
    ("nvjet_sm90_hss_320x128_64x3_1x2_h_bz_coopB_NNT", "fp16", True),
    ("nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NNT", "fp16", True),
    ("nvjet_qqtst_128x256_128x6_2x1_2cta_v_bz_TNT", "fp8", True),
    ("nvjet_sm100_ootst_128x128_256x7_4x1_2cta_v_bx_Avec16UE4M3_Bvec16UE4M3_TNT", "fp4", True),
    ("nvjet_sss_tf32_128x256_TNT", "tf32", True),
    ("nvjet_sss_128x256_TNT", None, None),
    # XMMA: the third and fourth types are what is multiplied.
    ("sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1", "fp16", True),
    ("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32", "tf32", True),
    ("sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16", "tf32", True),
    ("sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize32x32x8_ffma", "fp32", False),
    ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize64x64x128", "fp8", True),
    ("sm80_xmma_gemm_i8i8_i8i32_f32_tn_n_tilesize128x128x64", "int8", True),
    # The instruction's shape alone: 1688 is TF32 unless a 16-bit type stands there (Turing), 884 FP16 or, with d, FP64.
    ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_nn", "fp16", True),
    ("turing_h1688gemm_128x128_ldg8_nn", "fp16", True),
    ("volta_fp16_s884gemm_fp16_256x128_ldg8_f2f_nn", "fp16", True),
    ("volta_s884gemm_fp16_128x64_ldg8_f2f_nn", "fp16", True),
    ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_32x6_nn", "bf16", True),
    ("ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_relu_f2f_stages_64x6_tn", "fp16", True),
    ("ampere_tf32_s1688gemm_tf32_128x128_stages_16x3_nn", "tf32", True),
    ("cutlass_tensorop_s1688tf32gemm_256x128_16x3_nn_align4", "tf32", True),
    ("cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x128_32x4_tn_align8", "fp16", True),
    ("volta_h884cudnn_256x64_ldg8_relu_exp_small_nhwc_tn_v1", "fp16", True),
    ("volta_dgemm_64x64_nn", "fp64", False),
    ("ampere_sgemm_32x32_sliced1x4_tn", "fp32", False),
    ("volta_fp16_sgemm_fp16_128x64_nn", "fp32", False),
    # Attention and Triton.
    ("fmha_cutlassB_f16_aligned_64x64_k64_sm80", "fp16", True),
    ("void flash::flash_bwd_kernel<Flash_bwd_kernel_traits<64, cutlass::half_t> >", "fp16", True),
    ("triton_tem_fused_mm_3", None, None),
    ("triton_red_fused_native_layer_norm_0", None, False),
    # AMD.
    ("Cijk_Ailk_Bljk_HHS_BH_MT128x128x16_MI32x32x8x1_SN", "fp16", True),
    ("Cijk_Alik_Bljk_SB_MT64x64x16_MI32x32x2x1_SN", "fp32", True),
    ("Cijk_Alik_Bljk_F8BS_BH_Bias_HA_S_SAB_SAV_UserArgs_MT256x256x128_MI16x16x1", "fp8", True),
    ("Cijk_Alik_Bljk_I8BH_HAI_SAV_UserArgs_MT32x96x256_MI16x16x1", "int8", True),
    ("Cijk_Ailk_Bljk_DB_MT64x64x8_SE_K1", "fp64", None),
    ("igemm_fwd_gtcx3_nhwc_fp16_bx0_ex1_bt128x64x32", "fp16", True),
    # PyTorch: the element function's types stand in the last lambda, not in the arguments of what made it.
    (
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::clamp(at::TensorIteratorBase&, "
            "c10::Scalar)::{lambda()#1}::operator()() const::{lambda(c10::BFloat16)#1}, "
            "std::array<char*, 2ul> >(int)"
        ),
        "bf16",
        False,
    ),
    (
        (
            "void at::native::(anonymous namespace)::multi<3, at::native::stats(at::Tensor const&, double, double, "
            "long)::{lambda()#4}::operator()() const::{lambda(float, float, c10::BFloat16)#1}>(int)"
        ),
        "fp32",
        False,
    ),
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<c10::Half, float> >(c10::Half)", "fp16", False),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<long>, char*>(int)", "integer", False),
    ("void at::native::CatArrayBatchedCopy<at::native::OpaqueType<4u>, unsigned int, 1>(unsigned int)", None, False),
    ("void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<long, at::cuda::cub::OpaqueType<8> >(int)", None, False),
    (WORKSPACE, None, False),
    ("void cudnn::fusion::compute_dot_do_o_specialized<true, 64>(void const*, void const*, void*)", None, False),
    ("gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>", "fp32", False),
    ("_copy_page_indices_kernel", None, None),
    ("my_float_kernel", None, None),
    # Rules that no name above shows.
    ("nvjet_ddd_64x64_TNT", "fp64", None),
    ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8", "fp32", False),
    ("cutlass3x_sm90_tensorop_s64x256x16gemm_bf16_bf16_f32_bf16_bf16_128x256x64_2x1x1_0_tnn_align8", "bf16", True),
    ("cutlass3x_sm100_bstensorop_s256x192x64gemm_block_scaled_ue4m3xf4_ue4m3xf4_f32_f16_f16_256x192x256", "fp4", True),
    ("void cutlass::Kernel<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>", "fp32", False),
    ("void cutlass::Kernel<cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1>", "fp64", True),
    ("cutlass_80_tensorop_i16832gemm_s8_256x128_128x3_tn_align16", "int8", True),
    ("ampere_s16816gemm_128x128_ldg8_stages_32x5_nn", None, True),
    (
        "_ZN19cutlass_cudnn_train6Kernel_multistageINS_10tfloat32_tENS6_4warp11MmaTensorOpINS7_ILi64ELi64ELi32EEESC",
        "tf32",
        True,
    ),
    ("volta_fp16_scudnn_fp16_128x64_relu_interior_nn_v1", "fp16", False),
    ("volta_scudnn_128x64_relu_interior_nn_v1", "fp32", False),
    ("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext", "fp8", True),
    ("bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1", "fp8", True),
    ("bmm_Bfloat16_E2m1E2m1_Fp32_bA16_bB16_bC16", "fp4", True),
    ("fmha_cutlassF_f32_aligned_64x64_rf_sm80", "tf32", True),
    ("fmha_cutlassF_f32_aligned_64x64_rf_sm75", "fp32", False),
    (
        "Custom_Cijk_Alik_Bljk_S_MX_B_BIAS_HA_S_SAV_NTD_SK3_UserArgs_MT256x256x32_MI16x16x1_shortname0_gfx950",
        "tf32",
        True,
    ),
    (
        "_ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl_cshuffle_v3INS_34Gridwise",
        None,
        True,
    ),
    ("batched_transpose_32x32_half", None, False),
    ("cask_cudnn::computeOffsetsKernel(cask_cudnn::ComputeOffsetsParams)", "integer", False),
    ("void vllm::scaled_fp8_quant_kernel_strided<c10::BFloat16, c10::Float8_e4m3fn>(int)", "bf16", False),
    (
        "void transformer_engine::(anonymous namespace)::cast_transpose_general_kernel<8, 8, float, __nv_bfloat16>()",
        "bf16",
        False,
    ),
]


@pytest.mark.parametrize(("name", "arithmetic", "tensor_cores"), KNOWN, ids=lambda value: str(value)[:40])
def test_known_kernels(name, arithmetic, tensor_cores):
    found = kernel_arithmetic(name)
    assert (found.arithmetic, found.tensor_cores) == (arithmetic, tensor_cores)


PRODUCTS = {
    "volta_scudnn_128x64_relu_interior_nn_v1",
    "void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int)",
    "Cijk_Alik_Bljk_BBS_BH_MT64x32x128",
}
OTHERS = {
    "void fbgemm_gpu::permute_2D_data_kernel<true, int, int, float>(int)",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, float>(int)",
    "void gemv2T_kernel_val<int, int, float>(int)",
    "SubTensorOpWithScalar1d",
    # Beside the convolutions of cuDNN 9.19 on an H200.
    WORKSPACE,
    "void cudnn::fusion::compute_dot_do_o_specialized<true, 64>(void const*, void const*, void*, unsigned int)",
    "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float> >(int)",
    # Changes of layout beside a product.
    "void deep_gemm::transpose_fp32<512u, 64u>(float const*, float*)",
    "void dpsk::grouped_gemm::cuda::utils::transpose<512, 128, 4, 4>(unsigned char const*, unsigned char*)",
    "grad_engine",
}


def test_products():
    assert {name for name in PRODUCTS | OTHERS if is_product(name)} == PRODUCTS
    assert all(is_product(name) for name, _, _ in TENSOR_CORES)


@pytest.mark.corpus
def test_names_of_real_matrix_products_all_tell_their_arithmetic_or_leave_it_to_the_operator(corpus):
    """Across the recordings no product kernel falls to the rule of last resort and none contradicts its hardware."""
    for row in corpus_rows():
        trace = read_trace(corpus / "traces" / row["file"])
        for code in set(trace.device.name[trace.device.is_compute].tolist()):
            name = trace.names[code]
            found = kernel_arithmetic(name)
            if is_product(name) and found.arithmetic is None:
                assert re.search("attn_fwd|ck.*xdl", name), name  # Triton and composable kernel, without a scheme
            if any("V100" in gpu for gpu in row["gpu"] or ()):
                assert found.arithmetic not in ("tf32", "bf16", "fp8"), name


def test_every_rule_is_the_first_that_takes_a_known_name() -> None:
    first = {next((rule for rule in RULES if rule.search(name)), None) for name, _, _ in KNOWN}
    assert first >= set(RULES)
    assert all(rule.source.startswith("https://") for rule in RULES)


def test_what_nothing_is_spelled_like_is_refused():
    with pytest.raises(KeyError):
        spelled_arithmetic("q8")
