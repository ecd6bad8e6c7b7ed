"""Kernels that move data between devices under names other than NCCL's."""

from __future__ import annotations

import pytest

from lightning_perf.analysis.ranks.collective_names import collective_kind
from lightning_perf.trace.assembly import Destination, device_kind
from lightning_perf.trace.columns import DeviceKind

COMMUNICATION = [
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
]


@pytest.mark.parametrize(("name", "kind"), COMMUNICATION, ids=lambda value: str(value)[:50])
def test_communication(name: str, kind: str) -> None:
    assert device_kind(Destination.KERNEL, name, "") is DeviceKind.COLLECTIVE
    assert collective_kind(name) == kind


@pytest.mark.parametrize("name", COMPUTE, ids=lambda value: str(value)[:50])
def test_what_only_sounds_like_communication(name: str) -> None:
    assert device_kind(Destination.KERNEL, name, "") is DeviceKind.COMPUTE
