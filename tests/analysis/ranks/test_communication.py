"""Communication: overlap, sizes, also those that only an annotation records, and wrappers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_perf.analysis.intervals import averaged_steps
from lightning_perf.analysis.ranks.communication import (
    HostCollective,
    bus_factor,
    collective_bytes,
    collective_kind,
    communication,
    element_bytes,
    wrappers,
)
from lightning_perf.analysis.steps.breakdown import breakdown
from lightning_perf.trace.assembly import Destination, device_kind
from lightning_perf.trace.columns import DeviceKind
from lightning_perf.trace.reader import read_trace
from tests.support.known import known
from tests.support.trace_builder import FETCH, TraceBuilder

ALL_REDUCE = {
    "Collective name": "allreduce", "dtype": "Float", "In msg nelems": 1000, "Out msg nelems": 1000, "Group size": 4,
    "Process Group Name": "0",
}  # fmt: skip


def test_hidden_and_exposed_communication():
    trace = (
        TraceBuilder()
        .step(1, 0, 100)
        .step(2, 100, 100)
        .launch("gemm", call_us=5, call_duration_us=2, start_us=10, duration_us=40)
        .launch("ncclAllReduce", call_us=8, call_duration_us=2, start_us=30, duration_us=50, stream=9)
        .launch("gemm", call_us=105, call_duration_us=2, start_us=110, duration_us=10)
        .build()
    )
    value = known(communication(trace))
    assert (value.communication_ns, value.overlapped_ns, value.exposed_ns) == (50_000, 20_000, 30_000)
    assert value.exposed_share == pytest.approx(0.15)


def test_bandwidth_by_size():
    trace = (
        TraceBuilder()
        .kernel("ncclAllReduce", 0, 10, 1, **ALL_REDUCE)
        .kernel("ncclAllReduce", 20, 30, 2, **ALL_REDUCE)
        .kernel("ncclAllReduce", 60, 8, 3, **{**ALL_REDUCE, "dtype": "Half"})
        .kernel("ncclBroadcast", 80, 5, 4)
        .build()
    )
    value = known(communication(trace))
    floats, halves, broadcast = value.collectives
    assert (floats.name, floats.dtype, floats.group, floats.ranks, floats.bytes) == ("allreduce", "Float", "0", 4, 4000)
    assert (floats.calls, floats.total_ns, floats.mean_ns) == (2, 40_000, 20_000)
    assert (floats.min_ns, floats.max_ns) == (10_000, 30_000)
    assert floats.algorithm_bytes_per_s == pytest.approx(4000 / 20e-6)
    assert floats.bus_bytes_per_s == pytest.approx(4000 / 20e-6 * 1.5)
    assert floats.best_bus_bytes_per_s == pytest.approx(4000 / 10e-6 * 1.5)
    assert (halves.bytes, halves.calls) == (2000, 1)
    assert broadcast.name == "ncclBroadcast"
    assert (broadcast.bytes, broadcast.ranks, broadcast.bus_bytes_per_s) == (None, None, None)


def test_collectives_on_the_host():
    trace = TraceBuilder().annotation("gloo:all_reduce", 0, 5).annotation("gloo:all_reduce", 10, 7).build()
    value = known(communication(trace))
    assert value.host_collectives == (HostCollective("gloo:all_reduce", 2, 12_000),)
    assert (value.communication_ns, value.collectives) == (0, ())


def test_collectives_on_the_host_are_exposed_while_it_does_nothing_else():
    builder = TraceBuilder().step(1, 0, 100).annotation("gloo:all_reduce", 10, 60, thread=3000)
    builder.annotation("gloo:broadcast", 65, 10, thread=3000).op("aten::mm", 0, 20).op("aten::mul", 30, 5, thread=2000)
    builder.annotation(FETCH, 50, 4)
    value = known(communication(builder.build()))
    # From 20 to 75, without the operator and the fetch in it.
    assert value.host_exposed_ns == (55 - 5 - 4) * 1000


@pytest.mark.corpus
def test_real_traces(trace, row):
    value = communication(trace)
    if value is None:
        assert not trace.device.is_collective.any()
        return
    if value.collectives:
        per_step = np.array(breakdown(trace).category("communication").per_step_ns)
        assert value.exposed_ns == per_step[averaged_steps(trace)].sum()
    assert sum(call.calls for call in value.collectives) <= trace.device.is_collective.sum()
    read = row["device_sets_ns"] or {}
    if not read.get("comm_ns"):
        return
    # The other reading knows collectives by "nccl" alone; here symmetric-memory kernels count too.
    if trace.device.is_collective.sum() == read["comm_kernels"]:
        assert (value.communication_ns, value.overlapped_ns) == (read["comm_ns"], read["overlap_comp_comm_ns"])
    else:
        assert value.communication_ns > read["comm_ns"]


def annotated(name: str, types: list[str], dims: list[list[int]]) -> TraceBuilder:
    builder = TraceBuilder().step(1, 0, 1000)
    inputs: dict[str, Any] = {"Input type": types, "Input Dims": dims}
    builder.host("user_annotation", name, 10, 50, **inputs).annotation("nccl:unrelated", 100, 20)
    return builder.launch("ncclKernel_X", call_us=20, call_duration_us=5, start_us=40, duration_us=200)


def test_the_annotation_of_a_collective_gives_its_size():
    found = known(communication(annotated("nccl:all_reduce", ["float"], [[394241]]).build()))
    (row,) = found.collectives
    assert (row.name, row.dtype, row.bytes, row.calls) == ("all_reduce", "float", 1_576_964, 1)
    assert row.algorithm_bytes_per_s == pytest.approx(1_576_964 / 200e-6)
    assert row.bus_bytes_per_s is None  # the annotation does not name the ranks


@pytest.mark.parametrize(("name", "types"), [("nccl:_all_gather_base", ["float"]), ("nccl:all_reduce", ["TensorList"])])
def test_a_size_that_the_annotation_does_not_show_is_unknown(name: str, types: list[str]):
    found = known(communication(annotated(name, types, [[8]]).build()))
    assert found.collectives[0].bytes is None


@pytest.mark.corpus
def test_sizes_of_a_recommendation_model(corpus: Path):
    folder = corpus / "traces" / "param" / "dlrm_kineto"
    if not folder.is_dir():
        pytest.skip("docs/corpus.md says where to get this recording")
    found = known(communication(read_trace(next(folder.glob("worker0_*")))))
    reduced = [row for row in found.collectives if row.name == "all_reduce"]
    assert sum(row.calls for row in reduced) == 3
    # The inputs in the file: 394,241, 112 and 226,960 floats.
    assert sum(row.calls * (row.bytes or 0) for row in reduced) == 2_485_252 == 4 * (394_241 + 112 + 226_960)


def test_wrappers_by_their_marks() -> None:
    assert wrappers(TraceBuilder().op("aten::mm", 0, 10).build()) == ()
    assert wrappers(TraceBuilder().annotation("DistributedDataParallel.forward", 0, 10).build()) == (
        "DistributedDataParallel",
    )
    # Old recordings have marks among the operators.
    assert wrappers(TraceBuilder().op("DataParallel.forward", 0, 10).build()) == ("DataParallel",)


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
def test_kind_from_the_name(name: str, kind: str) -> None:
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


@pytest.mark.parametrize(("name", "kind"), COMMUNICATION + [(name, None) for name in COMPUTE])
def test_kernels_of_communication_and_those_that_only_sound_like_it(name: str, kind: str | None) -> None:
    assert device_kind(Destination.KERNEL, name, "") is (DeviceKind.COLLECTIVE if kind else DeviceKind.COMPUTE)
    assert kind is None or collective_kind(name) == kind
