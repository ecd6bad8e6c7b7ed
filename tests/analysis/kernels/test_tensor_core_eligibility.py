import pytest

from lightning_perf.analysis.kernels.arithmetic import arithmetic
from lightning_perf.analysis.kernels.tensor_core_eligibility import REASONS, device_properties, has_tensor_cores
from lightning_perf.trace.description import DeviceProperties
from tests.analysis.kernels.test_arithmetic import FLOAT, HALF, Kernels
from tests.support.trace_builder import TraceBuilder

EVEN, ODD = [[64, 128], [128, 256]], [[64, 127], [127, 256]]


def device(builder, name, major):
    return builder.gpu(name, computeMajor=major, computeMinor=0, numSms=80)


def reasons(builder):
    return {found.reason: found.time_ns for found in arithmetic(builder.build()).eligible_unused}


def test_fp32_on_ampere_with_tf32_off():
    builder = device(Kernels(), "NVIDIA A100-SXM4-40GB", 8).run("ampere_sgemm_128x64_nn", FLOAT, dims=EVEN)
    (found,) = arithmetic(builder.build()).eligible_unused
    assert (found.reason, found.time_ns, found.kernels, found.operators) == ("tf32_off", 10_000, 1, ("aten::mm",))


def test_fp32_on_volta_has_no_tf32_to_turn_on():
    builder = device(Kernels(), "Tesla V100-SXM2-32GB", 7).run("volta_sgemm_128x64_nn", FLOAT, dims=EVEN)
    assert reasons(builder) == {"fp32_inputs": 10_000}


def test_pascal_has_none():
    builder = device(Kernels(), "Tesla P100-PCIE-16GB", 6).run("maxwell_sgemm_128x64_nn", FLOAT, dims=EVEN)
    assert reasons(builder) == {"device_has_none": 10_000}


def test_where_other_products_run_in_tf32_it_is_on_and_dimensions_decide():
    builder = device(Kernels(), "NVIDIA A100-SXM4-40GB", 8)
    builder.run("cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4", FLOAT, dims=EVEN)
    builder.run("ampere_sgemm_128x64_nn", FLOAT, dims=ODD).run("ampere_sgemm_32x32_nn", FLOAT, dims=EVEN)
    assert reasons(builder) == {"dimensions": 10_000, "library_choice": 10_000}


def test_tf32_of_convolutions_says_nothing_of_matrix_products():
    """PyTorch allows TF32 for convolutions by default and for products not."""
    builder = device(Kernels(), "NVIDIA A100-SXM4-40GB", 8)
    builder.run(
        "cutlass_tensorop_s1688fprop_optimized_tf32_128x128_16x4_nhwc_align4", FLOAT, op="aten::cudnn_convolution"
    )
    builder.run("ampere_sgemm_128x64_nn", FLOAT, dims=EVEN)
    assert reasons(builder) == {"tf32_off": 10_000}


CUTLASS = "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_32x5_nn_align4>(Params)"


@pytest.mark.parametrize(
    ("operator", "kernel", "reason"),
    [
        ("aten::cudnn_convolution", CUTLASS, "tf32_off"),  # 1 x 1
        ("aten::_cudnn_rnn", CUTLASS, "tf32_off"),
        ("aten::_efficient_attention_forward", "fmha_cutlassF_f32_aligned_64x64_rf_sm80(Params)", "tf32_off"),
        ("aten::bmm", CUTLASS, "library_choice"),
        ("aten::_slow_conv2d_forward", CUTLASS, "library_choice"),
        ("Torch-Compiled Region: 0/0", CUTLASS, "library_choice"),
    ],
)
def test_only_other_matrix_products_tell_whether_tf32_is_on_for_them(operator, kernel, reason):
    builder = device(Kernels(), "NVIDIA A100-SXM4-40GB", 8).run(kernel, FLOAT, op=operator)
    builder.run("ampere_sgemm_128x64_nn", FLOAT, dims=EVEN)
    assert reasons(builder) == {reason: 10_000}


def test_a_convolution_without_tf32_beside_one_with_it_is_the_choice_of_the_library():
    builder = device(Kernels(), "NVIDIA A100-SXM4-40GB", 8)
    builder.run(CUTLASS, FLOAT, op="aten::cudnn_convolution")
    builder.run("ampere_sgemm_128x64_nn", FLOAT, op="aten::cudnn_convolution", dims=[[8, 64, 7, 7], [64, 64, 1, 1]])
    assert reasons(builder) == {"library_choice": 10_000}


@pytest.mark.parametrize(
    ("dims", "reason"), [(ODD, "dimensions"), (EVEN, "library_choice"), (None, "shapes_not_recorded")]
)
def test_16_bit_inputs_without_tensor_cores(dims, reason):
    builder = device(Kernels(), "NVIDIA A100-SXM4-40GB", 8).run("ampere_hgemm_128x64_nn", HALF, dims=dims)
    assert reasons(builder) == {reason: 10_000}


def test_channels_of_a_convolution_and_not_its_image_must_divide():
    builder = device(Kernels(), "Tesla V100-SXM2-32GB", 7)
    builder.run("volta_fp16_scudnn_fp16_128x64_relu_interior_nn_v1", HALF, dims=[[8, 64, 7, 7], [32, 64, 3, 3]])
    builder.run("volta_fp16_scudnn_fp16_128x128_relu_interior_nn_v1", HALF, dims=[[8, 3, 224, 224], [64, 3, 7, 7]])
    assert reasons(builder) == {"library_choice": 10_000, "dimensions": 10_000}


def test_fp64_and_operators_that_autocast_keeps_in_fp32():
    builder = device(Kernels(), "NVIDIA A100-SXM4-40GB", 8).run("volta_dgemm_64x64_nn", ["double", "double"], dims=EVEN)
    builder.op("aten::cdist", builder.at + 90, 80)  # around the next operator
    builder.run("ampere_sgemm_128x64_nn", FLOAT, dims=EVEN)
    assert reasons(builder) == {"fp64_inputs": 10_000, "fp32_only_operator": 10_000}


def test_what_runs_on_them_or_is_no_product_is_not_listed():
    builder = device(Kernels(), "NVIDIA A100-SXM4-40GB", 8)
    builder.run("cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x128_32x4_tn_align8", HALF)
    builder.run("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float> >(int)", FLOAT)
    builder.run("void gemv2T_kernel_val<int, int, float>(int)", FLOAT)
    assert reasons(builder) == {}


def test_most_time_comes_first_and_every_reason_is_explained():
    builder = device(Kernels(), "NVIDIA A100-SXM4-40GB", 8)
    builder.run("volta_dgemm_64x64_nn").run("ampere_sgemm_128x64_nn", FLOAT).run("ampere_sgemm_64x64_nn", FLOAT)
    found = arithmetic(builder.build()).eligible_unused
    assert [f.reason for f in found] == ["tf32_off", "fp64_inputs"]
    assert all(f.reason in REASONS for f in found)


@pytest.mark.parametrize(
    ("name", "major", "expected"),
    [
        ("NVIDIA H200", 9, True),
        ("NVIDIA GeForce GTX 1660 Ti", 7, False),
        ("Tesla P100-PCIE-16GB", 6, False),
        ("AMD Instinct MI300X", 9, True),
        ("AMD Radeon Graphics", 9, None),
        ("AMD Instinct MI50", 9, False),
        (None, None, None),
    ],
)
def test_which_devices_have_them(name, major, expected):
    assert has_tensor_cores(DeviceProperties(0, name=name, compute_major=major)) is expected


def test_by_ordinal():
    trace = TraceBuilder().gpu("A", ordinal=0).gpu("B", ordinal=1).step(1, 0, 10).build()
    assert device_properties(trace, 1).name == "B"
    assert device_properties(trace, 5).name is None


def test_an_ordinal_that_no_device_has_is_of_the_one_kind_there_is():
    builder = TraceBuilder().gpu("AMD Instinct MI300X", ordinal=0).gpu("AMD Instinct MI300X", ordinal=1)
    trace = builder.step(1, 0, 10).build()
    assert device_properties(trace, 4).name == "AMD Instinct MI300X"


def test_a_trace_that_describes_none():
    assert device_properties(TraceBuilder().step(1, 0, 10).build(), 0).name is None
