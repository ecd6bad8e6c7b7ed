"""Names of products on Hopper and Blackwell: CUTLASS 3 symbols, DeepGEMM, cuDNN's attention."""

from __future__ import annotations

import pytest

from lightning_perf.analysis.kernels.kernel_names import is_product, kernel_arithmetic

GMMA = (
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int>, cutlass::gemm::"
    "collective::CollectiveMma<cutlass::gemm::MainloopSm90TmaGmmaWarpSpecialized<9, cute::tuple<cute::C<1> > >, "
    "{element}, cute::TiledMMA<cute::MMA_Atom<cute::SM90::GMMA::MMA_{shape}_SS<(cute::SM90::GMMA::Major)0> > > > > >"
)


@pytest.mark.parametrize(
    ("name", "arithmetic"),
    [
        (GMMA.format(element="cutlass::bfloat16_t", shape="64x64x16_F32BF16BF16"), "bf16"),
        (GMMA.format(element="cutlass::half_t", shape="64x128x16_F32F16F16"), "fp16"),
        (GMMA.format(element="cutlass::half_t", shape="64x128x16_F16F16F16"), "fp16"),
        (GMMA.format(element="cutlass::float_e4m3_t", shape="64x128x32_F32E4M3E4M3"), "fp8"),
        (GMMA.format(element="float", shape="64x128x8_F32TF32TF32"), "tf32"),  # FP32 tensors, multiplied in TF32
        (GMMA.format(element="signed char", shape="64x128x32_S32S8S8"), "int8"),
        ("cute::SM90_64x128x16_F32BF16BF16_SS<(cute::GMMA::Major)0> gemm", "bf16"),
        ("_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalI4GMMA28MMA_64x128x16_F32BF16BF16_SSE", "bf16"),
        ("void cutlass::device_kernel<gemm<cute::SM100_MMA_F8F6F4_SS<cutlass::float_e4m3_t, float> > >", "fp8"),
        ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 4096u, 1024u, 1u>(float*, int*)", "fp8"),
        ("void deep_gemm::sm90_fp8_paged_mqa_logits<1u, 64u>(unsigned int, float*)", "fp8"),
        ("void deep_gemm::sm100_fp8_fp4_gemm_1d1d_impl<1u>(float*)", "fp8"),
        ("void deep_gemm::fp8_gemm_kernel<4096u, 7168u, 128u>(__nv_bfloat16*, float*, int*)", "fp8"),
        ("void deep_gemm::sm90_bf16_gemm_impl<1u>(float*)", "bf16"),
        ("void cutlass::device_kernel<dpsk::grouped_gemm::cuda::fp8_dptp128c_acc::GemmKernel>(int)", "fp8"),
        ("cudnn_generated_oss_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_cga1x1x1_kernel0_0", None),
        ("cudnn_generated_oss_sdpa_sm100_flash_fprop_f16_knob_7_128x128x128_4x1x1_cga1x1x1_kernel0_0", None),
    ],
    ids=lambda value: str(value)[-60:],
)
def test_a_product_on_tensor_cores_and_its_arithmetic(name: str, arithmetic: str | None) -> None:
    found = kernel_arithmetic(name)
    assert (found.arithmetic, found.tensor_cores) == (arithmetic, True)
    assert is_product(name)


@pytest.mark.parametrize(
    "name",
    [
        "void deep_gemm::transpose_fp32<512u, 64u>(float const*, float*)",
        "void dpsk::grouped_gemm::cuda::utils::transpose<512, 128, 4, 4>(unsigned char const*, unsigned char*)",
    ],
)
def test_a_change_of_layout_beside_a_product_is_none(name: str) -> None:
    assert not is_product(name)
