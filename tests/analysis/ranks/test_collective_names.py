from __future__ import annotations

import pytest

from lightning_perf.analysis.ranks.collective_names import bus_factor, collective_bytes, collective_kind, element_bytes


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("allreduce", "all_reduce"),
        ("allreduce_coalesced", "all_reduce"),
        ("void vllm::cross_device_reduce_1stage<c10::BFloat16, 8>(...)", "all_reduce"),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(...)", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_float", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("alltoall_base", "all_to_all"),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t", "broadcast"),
        ("ncclKernel_Reduce_RING_LL_Sum_float", "reduce"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", "send_recv"),
        ("recv 1<-0", "send_recv"),
        ("ncclDevKernel_Generic", "other"),
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
    assert [bus_factor(kind, 4) for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")] == [
        1.5,
        0.75,
        0.75,
        0.75,
    ]
    assert [bus_factor(kind, 4) for kind in ("broadcast", "reduce", "send_recv")] == [1.0, 1.0, 1.0]
    assert bus_factor("other", 4) is None
    assert bus_factor("all_reduce", 1) is None
