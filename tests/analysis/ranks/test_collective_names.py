from __future__ import annotations

import pytest

from lightning_perf.analysis.ranks.collective_names import bus_factor, collective_bytes, collective_kind, element_bytes
from lightning_perf.trace.assembly import Destination, device_kind
from lightning_perf.trace.columns import DeviceKind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("allreduce", "all_reduce"),
        ("allreduce_coalesced", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("alltoall_base", "all_to_all"),
        ("recv 1<-0", "send_recv"),
    ],
)
def test_kind_from_the_name(name, kind):
    assert collective_kind(name) == kind


def test_size_is_that_of_the_larger_buffer():
    assert collective_bytes("all_reduce", 100, 100, "Half") == 200
    assert collective_bytes("reduce_scatter", 800, 100, "Float") == 3200
    assert collective_bytes("all_gather", 100, 800, "Float") == 3200
    assert collective_bytes("all_reduce", 0, 0, "Half") is None
    assert collective_bytes("all_reduce", 10, 10, "Strange") is None
    assert element_bytes("Float8_e5m2") == 1


def test_bus_factors_of_nccl_tests():
    assert bus_factor("all_reduce", 4) == 1.5
    assert [bus_factor(kind, 4) for kind in ("all_gather", "reduce_scatter", "all_to_all")] == [0.75] * 3
    assert [bus_factor(kind, 4) for kind in ("broadcast", "reduce", "send_recv")] == [1.0] * 3
    assert bus_factor("other", 4) is None
    assert bus_factor("all_reduce", 1) is None


COMMUNICATION = [
    ("void vllm::cross_device_reduce_1stage<c10::BFloat16, 8>(...)", "all_reduce"),
    ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(...)", "all_reduce"),
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
    ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather"),
    ("ncclKernel_ReduceScatter_RING_LL_Sum_float", "reduce_scatter"),
    ("ncclKernel_Broadcast_RING_LL_Sum_int8_t", "broadcast"),
    ("ncclKernel_Reduce_RING_LL_Sum_float", "reduce"),
    ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", "send_recv"),
    # DeepEP, its forks, and DeepSeek's own recording (https://github.com/deepseek-ai/profile-data, train.json).
    ("void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(void*, float*, int*, long*)", "all_to_all"),
    ("void deep_ep::intranode::combine<__nv_bfloat16, (int)8, (int)768, (int)4096>(T1 *, float *)", "all_to_all"),
    ("_ZN7deep_ep7elastic13dispatch_implILb1EEEvPv", "all_to_all"),
    ("void primus_turbo::deep_ep::intranode::cached_notify_dispatch<8>(int const*, int)", "all_to_all"),
    (
        "void dpsk::ep::internode::combine<false, 8, __nv_bfloat16, 8, 2, 16, 24>(int4*, float*, bool const*)",
        "all_to_all",
    ),
    ("void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*, float*, long*, float*)", "all_to_all"),
    ("void dpsk::ep::internode::notify_dispatch<false, 8>(int const*, long*, int)", "all_to_all"),
    ("void dpsk::ep::internode::cached_notify<false>(int, int, int, int, int*)", "other"),
    # TensorRT-LLM and FlashInfer, MORI.
    ("void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<8, false>(int const*)", "all_to_all"),
    ("EpCombineIntraNodeKernel_bf16", "all_to_all"),
    ("void mori::moe::EpDispatchInterNodeKernel<__hip_bfloat16>(mori::moe::EpDispatchCombineArgs)", "all_to_all"),
    (
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1, __nv_bfloat16, 8>()",
        "all_reduce",
    ),
    # vLLM, SGLang, AITER.
    ("void sglang::cross_device_reduce_1stage<__half, 8>(sglang::RankData*, sglang::RankSignals)", "all_reduce"),
    ("aiter::cross_device_reduce_2stage<bf16,8,false>", "all_reduce"),
    (
        "void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half, CodecQ4<__half, 4>, true>, __half>()",
        "all_reduce",
    ),
    ("allreduce_prototype_twoshot", "all_reduce"),
    ("void aiter::allgather_lastdim<__hip_bfloat16, 8>(aiter::RankData*)", "all_gather"),
    ("one_shot_all_reduce_kernel_optimized", "all_reduce"),
    # PyTorch's symmetric memory.
    ("void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>()", "all_reduce"),
    ("void c10d::symmetric_memory::put_signal_kernel(unsigned int**, int, int, int, int)", "other"),
    # MSCCL, MSCCL++, RCCL, NVSHMEM.
    ("mscclKernel_Sum_hip_bfloat16_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)", "other"),
    ("void mscclpp::collective::allreducePacket<__half, 8>(__half*)", "all_reduce"),
    ("void allreduce7<float>(float*, float*, float*, unsigned long)", "all_reduce"),
    ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "other"),
    ("void barrier_on_stream_kernel_threadgroup<(threadgroup_t)1>(int, int)", "other"),
    ("nvshmemi_proxy_rma_entrypoint_blocking(void*, void*, unsigned long)", "other"),
]

COMPUTE = [
    "void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*, int*)",
    "void cub::DeviceReduceByKeyKernel<cub::DispatchReduceByKey<long*, long*>, int>(long*)",
    "flash_fwd_mla_combine_kernel",
    "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<64, 64>, 16>()",
    "void fmha::kernel<fmha::Allreduce<4> >(int)",
    "triton_poi_fused_all_reduce_0",
    "void at::native::elementwise_kernel<128, at::native::all_gather_like>(int)",
    "__amd_rocclr_copyBuffer.kd",
    "void at::native::reduce_kernel<512, 1>()",
    "void at::native::vectorized_gather_kernel<16, long>()",
    "sm90_xmma_gemm_f16f16",
]


@pytest.mark.parametrize(("name", "kind"), COMMUNICATION, ids=lambda value: str(value)[:50])
def test_communication(name: str, kind: str) -> None:
    assert device_kind(Destination.KERNEL, name, "") is DeviceKind.COLLECTIVE
    assert collective_kind(name) == kind


@pytest.mark.parametrize("name", COMPUTE, ids=lambda value: str(value)[:50])
def test_what_only_sounds_like_communication(name: str) -> None:
    assert device_kind(Destination.KERNEL, name, "") is DeviceKind.COMPUTE
