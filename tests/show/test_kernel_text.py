"""The names of kernels as tables show them."""

import pytest

from lightning_perf.show.kernel_text import kernel_text

COPY = (
    "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#12}"
    "::operator()() const::{lambda(c10::BFloat16)#1}"
)
UNNAMED = "at::native::(anonymous namespace)::"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("volta_sgemm_64x64_nn", "volta_sgemm_64x64_nn"),
        (
            "void at::native::elementwise_kernel<4, at::native::Add<float>, std::array<char*, 3ul> >(int, Add)",
            "elementwise Add float",
        ),
        ("k<(a::Mode)1>(int, f(*)(int))", "k<(a::Mode)1>"),
        ("void (anonymous namespace)::softmax<float>(float*)", "softmax<float>"),
        ("unbalanced)", "unbalanced)"),
        ("(all)", "(all)"),
        ("Memset (Device)", "Memset (Device)"),
        ("", ""),
        # As recorded on an H200.
        (
            (
                f"void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<{COPY}>"
                f"(at::TensorIteratorBase&, {COPY} const&)::{{lambda(int)#1}}>(int, at::native::gpu_kernel_impl_nocast)"
            ),
            "elementwise direct_copy BFloat16",
        ),
        (
            (
                f"void at::native::unrolled_elementwise_kernel<{COPY.replace('c10::BFloat16', 'float')}, "
                "std::array<char*, 2ul>, 4, TrivialOffsetCalculator<1, unsigned int>, "
                "at::native::memory::LoadWithCast<1>, at::native::memory::StoreWithCast<1> >(int, char*)"
            ),
            "casting direct_copy float",
        ),
        (
            (
                "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<c10::BFloat16, "
                "c10::BFloat16, c10::BFloat16, at::native::binary_internal::MulFunctor<float> >, "
                "std::array<char*, 2ul> >(int, int)"
            ),
            "vectorized AUnary Mul BFloat16",
        ),
        (
            (
                "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16, at::native::func_wrapper_t<"
                "c10::BFloat16, at::native::sum_functor<c10::BFloat16, float, c10::BFloat16>::operator()"
                "(at::TensorIterator&)::{lambda(float, float)#1}>, unsigned int, c10::BFloat16, 4, 8> >(int)"
            ),
            "reduce sum BFloat16",
        ),
        (
            (
                f"void {UNNAMED}multi_tensor_apply_kernel<{UNNAMED}TensorListMetadata<2>, "
                f"{UNNAMED}TernaryOpScalarFunctor<float, 2, 2, 0>, at::native::LerpFunctor<float>, float>(int)"
            ),
            "multi_tensor TernaryOpScalar Lerp float",
        ),
        (
            "sm90_xmma_gemm_f32f32_tf32f32_f32_nt_n_tilesize64x256x32_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
            "sm90_xmma_gemm_f32f32_tf32f32_f32_nt_n_tilesize64x256x32",
        ),
        ("void at_cuda_detail::cub::detail::radix_sort::DeviceSort<long, 4>(long*)", "cub::DeviceSort"),
    ],
)
def test_kernel_names_keep_what_tells_them_apart(name: str, expected: str) -> None:
    assert kernel_text(name) == expected
