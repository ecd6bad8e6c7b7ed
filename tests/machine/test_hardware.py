import re

import pytest

from lightning_perf.machine.hardware import DEVICES, find_device


@pytest.mark.parametrize(
    ("device", "memory_gb", "row"),
    [
        ("NVIDIA H200", 141, "H200 SXM5"),
        ("NVIDIA H200 NVL", 141, "H200 NVL"),
        ("NVIDIA H100 80GB HBM3", 80, "H100 SXM5"),
        ("NVIDIA H100 PCIe", 80, "H100 PCIe"),
        ("NVIDIA H100 NVL", 94, "H100 NVL"),
        ("NVIDIA GH200 480GB", 96, "GH200"),
        ("NVIDIA GH200 144G HBM3e", 144, "GH200 144GB"),
        ("NVIDIA B200", 180, "B200"),
        ("NVIDIA GB200", 186, "GB200"),
        ("NVIDIA A100-SXM4-40GB", 40, "A100 40GB"),
        ("NVIDIA A100-SXM4-80GB", 80, "A100 80GB SXM4"),
        ("NVIDIA A100-SXM4-80GB", None, "A100 80GB SXM4"),
        ("NVIDIA A100 80GB PCIe", 80, "A100 80GB PCIe"),
        ("NVIDIA A100-PG509-200", 40, "A100 40GB"),
        ("Tesla V100-DGXS-32GB", 32, "V100 SXM2"),
        ("Tesla V100-PCIE-16GB", 16, "V100 PCIe"),
        ("Tesla P100-PCIE-16GB", 16, "P100 PCIe"),
        ("Quadro GP100", 16, "GP100"),
        ("Tesla T4", 15, "T4"),
        ("NVIDIA A10G", 24, "A10G"),
        ("NVIDIA A10", 24, "A10"),
        ("NVIDIA L40S", 46, "L40S"),
        ("NVIDIA L4", 23, "L4"),
        ("NVIDIA RTX 6000 Ada Generation", 48, "RTX 6000 Ada"),
        ("NVIDIA RTX A6000", 48, "RTX A6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97, "RTX PRO 6000 Blackwell Workstation"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97, "RTX PRO 6000 Blackwell Server"),
        ("NVIDIA GeForce RTX 4090", 24, "RTX 4090"),
        ("NVIDIA GeForce RTX 3090 Ti", 24, "RTX 3090 Ti"),
        ("AMD Instinct MI300X VF", 192, "Instinct MI300X"),
        ("AMD Instinct MI250X / MI250", 64, "Instinct MI250 (one die)"),
        ("AMD Instinct MI250X", 64, "Instinct MI250X (one die)"),
        ("AMD Instinct MI100", 32, "Instinct MI100"),
        ("AMD Instinct MI355X", 288, "Instinct MI355X"),
    ],
)
def test_devices_are_found_by_the_names_that_frameworks_give(device, memory_gb, row):
    found = find_device(device, None if memory_gb is None else int(memory_gb * 1e9))
    assert found.name == row


@pytest.mark.parametrize(
    "name",
    [None, "", "AMD Radeon Graphics", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA GeForce RTX 4090 Laptop GPU",
     "NVIDIA GeForce RTX 4080 SUPER", "NVIDIA A1000", "Apple M3",
     "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"],
)  # fmt: skip
def test_what_is_not_in_the_table_has_no_peak(name):
    assert find_device(name) is None


def test_every_row_can_be_found_and_is_sound():
    for device in DEVICES:
        re.compile(device.pattern)
        assert device.source.startswith("https://")
        rates = device.flops_per_s
        assert rates, device.name
        # TFLOP/s and TB/s, not GFLOP/s and GB/s: a slip of three zeros shows here.
        assert all(1e12 <= rate < 1e17 for rate in rates.values()), device.name
        assert 1e11 <= device.bandwidth_bytes_per_s < 1e13, device.name
        order = [rates[a] for a in ("fp32", "tf32", "bf16", "fp8", "fp4") if a in rates]
        assert order == sorted(order), f"{device.name}: fewer bits are never slower"


def test_generations_of_one_chip_differ_in_memory_only():
    """The H200 is an H100 with more and faster memory; the GH200 carries the same chip."""
    h100, h200 = find_device("NVIDIA H100 80GB HBM3"), find_device("NVIDIA H200")
    assert h100.flops_per_s == h200.flops_per_s
    assert h100.bandwidth_bytes_per_s < h200.bandwidth_bytes_per_s
