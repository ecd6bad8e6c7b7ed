"""Peak rates of devices: the rates of a perfect program.

This is a data table with dense peak FLOP/s by arithmetic and memory bandwidth, each row with its source. The rates are
those of Tensor or Matrix Cores if the device has them for that arithmetic: FP16 with FP32 accumulation, boost clock, no
sparsity. Vendors quote some rates with structured sparsity. Those were halved. ``docs/limits.md`` names the rows that
were checked against a second source.
"""

from __future__ import annotations

import re

from msgspec import Struct


class DevicePeak(Struct, frozen=True):
    """Peak rates of one device, as the framework sees it (an MI250's two dies are two devices).

    Attributes:
        pattern: Regular expression that finds it in the device's name, without case.
        flops_per_s: Dense peak by arithmetic: ``fp64``, ``fp32``, ``tf32``, ``fp16``, ``bf16``, ``fp8``, ``fp4``,
            ``int8``. An arithmetic that the device does not speed up is absent.
        min_memory_gb: Take this row only for a device with at least this memory, where products share a name.
    """

    name: str
    pattern: str
    flops_per_s: dict[str, float]
    bandwidth_bytes_per_s: float
    source: str
    min_memory_gb: int = 0


_NVIDIA = "https://www.nvidia.com/content/dam/en-zz/Solutions"
_P100 = "https://images.nvidia.com/content/tesla/pdf/nvidia-tesla-p100-datasheet.pdf"
_V100 = "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"
_T4 = f"{_NVIDIA}/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf"
_TURING = f"{_NVIDIA}/design-visualization/technologies/turing-architecture/NVIDIA-Turing-Architecture-Whitepaper.pdf"
_A100 = f"{_NVIDIA}/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
_GA102 = "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf"
_ADA = "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
_H100 = "https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet"
_H200 = "https://www.nvidia.com/en-us/data-center/h200/"
_GH200 = "https://resources.nvidia.com/en-us-grace-cpu/grace-hopper-superchip"
_H20 = "https://zangshuxian.com/new/674733024499207168 (no public datasheet)"
_BLACKWELL = "https://resources.nvidia.com/en-us-blackwell-architecture/datasheet"
_B300 = "https://www.nvidia.com/en-us/data-center/dgx-b300/"
_RTX_PRO_SERVER = "https://www.nvidia.com/en-us/data-center/rtx-pro-6000-blackwell-server-edition/"
_RTX_BLACKWELL = (
    "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf"
)
_AMD = "https://www.amd.com/en/products/accelerators/instinct"
_CDNA1 = "https://www.amd.com/system/files/documents/instinct-mi100-brochure.pdf"


def _device(
    name: str,
    pattern: str,
    bandwidth_gb_per_s: float,
    source: str,
    *,
    min_memory_gb: int = 0,
    **tflops: float,
) -> DevicePeak:
    if half := tflops.pop("half", None):  # FP16 and BF16 alike
        tflops |= {"fp16": half, "bf16": half}
    rates = {arithmetic: rate * 1e12 for arithmetic, rate in tflops.items()}
    return DevicePeak(name, pattern, rates, bandwidth_gb_per_s * 1e9, source, min_memory_gb)


# fmt: off
DEVICES: tuple[DevicePeak, ...] = (
    # NVIDIA data center. Variants come before the plain name.
    _device("P100 PCIe", r"\bP100-PCIE", 732, _P100, fp64=4.7, fp32=9.3, fp16=18.7),
    _device("P100 SXM2", r"\bP100", 732, _P100, fp64=5.3, fp32=10.6, fp16=21.2),
    _device("GP100", r"GP100", 717, "https://www.nvidia.com/content/dam/en-zz/Solutions/design-visualization/documents/"
            "quadro-gp100-datasheet.pdf", fp64=5.2, fp32=10.3, fp16=20.7),
    _device("V100S PCIe", r"V100S", 1134, _V100, fp64=8.2, fp32=16.4, fp16=130),
    _device("V100 PCIe", r"V100-(PCIE|FHHL)", 900, _V100, fp64=7.0, fp32=14.0, fp16=112),
    _device("V100 SXM2", r"V100", 900, _V100, fp64=7.8, fp32=15.7, fp16=125),
    _device("T4", r"\bT4\b", 320, _T4, fp32=8.1, fp16=65, int8=130),
    _device("A100 80GB PCIe", r"A100 80GB PCIe", 1935, _A100, fp64=19.5, fp32=19.5, tf32=156, half=312, int8=624),
    _device("A100 80GB SXM4", r"\bA[18]00\b", 2039, _A100, min_memory_gb=60,
            fp64=19.5, fp32=19.5, tf32=156, half=312, int8=624),
    _device("A100 80GB SXM4", r"A[18]00-SXM4-80GB", 2039, _A100,
            fp64=19.5, fp32=19.5, tf32=156, half=312, int8=624),
    _device("A100 40GB", r"\bA[18]00\b", 1555, _A100, fp64=19.5, fp32=19.5, tf32=156, half=312, int8=624),
    _device("A30", r"\bA30\b", 933, f"{_NVIDIA}/data-center/products/a30-gpu/pdf/a30-datasheet.pdf",
            fp64=10.3, fp32=10.3, tf32=82, half=165, int8=330),
    _device("A40", r"\bA40\b", 696, "https://www.nvidia.com/en-us/data-center/a40/",
            fp32=37.4, tf32=74.8, half=149.7, int8=299.3),
    _device("A10G", r"\bA10G\b", 600, "https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_"
            "02_17_2022.pdf", fp32=35, tf32=35, half=70, int8=140),
    _device("A10", r"\bA10\b", 600, "https://www.nvidia.com/en-us/data-center/products/a10-gpu/",
            fp32=31.2, tf32=62.5, half=125, int8=250),
    _device("A2", r"\bA2\b", 200, "https://www.nvidia.com/en-us/data-center/products/a2/",
            fp32=4.5, tf32=9, half=18, int8=36),
    _device("L40S", r"\bL40S\b", 864, "https://www.nvidia.com/en-us/data-center/l40s/",
            fp32=91.6, tf32=183, half=362, fp8=733, int8=733),
    _device("L40", r"\bL40\b", 864, "https://www.nvidia.com/en-us/data-center/l40/",
            fp32=90.5, tf32=90.5, half=181, fp8=362, int8=362),
    _device("L4", r"\bL4\b", 300, "https://www.nvidia.com/en-us/data-center/l4/",
            fp32=30.3, tf32=60, half=121, fp8=242.5, int8=242.5),
    _device("GH200 144GB", r"GH200", 4900, _GH200, min_memory_gb=120,
            fp64=67, fp32=67, tf32=494.7, half=989.4, fp8=1978.9, int8=1978.9),
    _device("GH200", r"GH200", 4000, _GH200, fp64=67, fp32=67, tf32=494.7, half=989.4, fp8=1978.9, int8=1978.9),
    _device("H100 NVL", r"H100 NVL", 3938, _H100, fp64=60, fp32=60, tf32=417.5, half=835.5, fp8=1670.5, int8=1670.5),
    _device("H100 PCIe", r"H100 PCIe", 2039, _H100, fp64=51, fp32=51, tf32=378, half=756, fp8=1513, int8=1513),
    _device("H100 SXM5", r"\bH100\b", 3350, _H100, fp64=67, fp32=67, tf32=494.7, half=989.4, fp8=1978.9, int8=1978.9),
    _device("H200 NVL", r"H200 NVL", 4800, _H200, fp64=60, fp32=60, tf32=417.5, half=835.5, fp8=1670.5, int8=1670.5),
    _device("H200 SXM5", r"\bH200\b", 4800, _H200, fp64=67, fp32=67, tf32=494.7, half=989.4, fp8=1978.9, int8=1978.9),
    _device("H800", r"H800", 3350, _H100, fp64=1, fp32=67, tf32=494.7, half=989.4, fp8=1978.9, int8=1978.9),
    _device("H20", r"\bH20\b", 4000, _H20, fp64=1, fp32=44, tf32=74, half=148, fp8=296, int8=296),
    _device("GB300", r"GB300", 8000, _B300, fp64=1.3, fp32=80, tf32=1250, half=2500, fp8=5000, fp4=15000),
    _device("B300", r"\bB300\b", 7700, _B300, fp64=1.2, fp32=75, tf32=1125, half=2250, fp8=4500, fp4=13500),
    _device("GB200", r"GB200", 8000, _BLACKWELL,
            fp64=40, fp32=80, tf32=1250, half=2500, fp8=5000, fp4=10000, int8=5000),
    _device("B200", r"\bB200\b", 7700, _BLACKWELL,
            fp64=37, fp32=75, tf32=1125, half=2250, fp8=4500, fp4=9000, int8=4500),
    _device("B100", r"\bB100\b", 8000, _BLACKWELL,
            fp64=30, fp32=60, tf32=900, half=1750, fp8=3500, fp4=7000, int8=3500),

    # NVIDIA workstation and GeForce. Laptop chips of the same name are slower and not listed.
    _device("RTX PRO 6000 Blackwell Workstation", r"RTX PRO 6000 Blackwell Workstation Edition", 1792, _RTX_BLACKWELL,
            fp32=126, tf32=251.9, half=503.8, fp8=1007.6, fp4=2015.2, int8=1007.6),
    # FP32 and bandwidth as published; the others by the Workstation Edition's ratios to FP32: the chip is the same.
    _device("RTX PRO 6000 Blackwell Server", r"RTX PRO 6000 Blackwell Server Edition", 1597, _RTX_PRO_SERVER,
            fp32=120, tf32=240, half=480, fp8=960, fp4=1920, int8=960),
    _device("RTX 6000 Ada", r"RTX 6000 Ada", 960, _ADA, fp32=91.1, tf32=182.1, half=364.2, fp8=728.5, int8=728.5),
    _device("RTX A6000", r"RTX A6000", 768, _GA102, fp32=38.7, tf32=77.4, half=154.8, int8=309.7),
    _device("RTX 5090", r"RTX 5090\b(?! (D|Laptop))", 1792, _RTX_BLACKWELL,
            fp32=104.8, tf32=104.8, half=209.5, fp8=419, fp4=1676, int8=838),
    _device("RTX 5080", r"RTX 5080\b(?! Laptop)", 960, _RTX_BLACKWELL,
            fp32=56.3, tf32=56.3, half=112.6, fp8=225.1, fp4=900.4, int8=450.2),
    _device("RTX 5070 Ti", r"RTX 5070 Ti\b(?! Laptop)", 896, _RTX_BLACKWELL,
            fp32=43.9, tf32=43.9, half=87.9, fp8=175.8, fp4=703, int8=351.5),
    _device("RTX 5070", r"RTX 5070\b(?! (Ti|Laptop))", 672, _RTX_BLACKWELL,
            fp32=30.9, tf32=30.9, half=61.7, fp8=123.5, fp4=493.9, int8=246.9),
    _device("RTX 4090", r"RTX 4090\b(?! (D|Laptop))", 1008, _ADA,
            fp32=82.6, tf32=82.6, half=165.2, fp8=330.3, int8=660.6),
    _device("RTX 4080", r"RTX 4080\b(?! (SUPER|Laptop))", 717, _ADA,
            fp32=48.7, tf32=48.7, half=97.5, fp8=194.9, int8=389.9),
    _device("RTX 4070", r"RTX 4070\b(?! (Ti|SUPER|Laptop))", 504, _ADA,
            fp32=29.1, tf32=29.1, half=58.3, fp8=116.6, int8=233.2),
    _device("RTX 3090 Ti", r"RTX 3090 Ti\b", 1008, _GA102, fp32=40, tf32=40, half=80, int8=320),
    _device("RTX 3090", r"RTX 3090\b(?! Ti)", 936, _GA102, fp32=35.6, tf32=35.6, half=71.2, int8=284.7),
    _device("RTX 3080", r"RTX 3080\b(?! (Ti|Laptop))", 760, _GA102, fp32=29.8, tf32=29.8, half=59.5, int8=238.1),
    _device("RTX 3070", r"RTX 3070\b(?! (Ti|Laptop))", 448, _GA102, fp32=20.3, tf32=20.3, half=40.6, int8=162.6),
    _device("RTX 2080 Ti", r"RTX 2080 Ti\b", 616, _TURING, fp32=13.4, fp16=53.8, int8=215.2),
    _device("TITAN RTX", r"TITAN RTX", 672, _TURING, fp32=16.3, fp16=130.5, int8=261),

    # AMD Instinct: matrix rates. One die of an MI250 is one device. tf32 is XF32, which the MI350 series dropped.
    _device("Instinct MI100", r"MI100\b", 1229, _CDNA1, fp64=11.5, fp32=46.1, fp16=184.6, bf16=92.3, int8=184.6),
    _device("Instinct MI210", r"MI210\b", 1638, f"{_AMD}/mi200/mi210.html", fp64=45.3, fp32=45.3, half=181, int8=181),
    _device("Instinct MI250X (one die)", r"MI250X(?! / MI250)", 1638, f"{_AMD}/mi200/mi250x.html",
            fp64=47.9, fp32=47.9, half=191.5, int8=191.5),
    _device("Instinct MI250 (one die)", r"MI250\b", 1638, f"{_AMD}/mi200/mi250.html",
            fp64=45.3, fp32=45.3, half=181, int8=181),
    _device("Instinct MI300A", r"MI300A\b", 5300, f"{_AMD}/mi300/mi300a.html",
            fp64=122.6, fp32=122.6, tf32=490.3, half=980.6, fp8=1961.2, int8=1961.2),
    _device("Instinct MI300X", r"MI300X\b", 5300, f"{_AMD}/mi300/mi300x.html",
            fp64=163.4, fp32=163.4, tf32=653.7, half=1307.4, fp8=2614.9, int8=2614.9),
    _device("Instinct MI325X", r"MI325X\b", 6000, f"{_AMD}/mi300/mi325x.html",
            fp64=163.4, fp32=163.4, tf32=653.7, half=1307.4, fp8=2614.9, int8=2614.9),
    _device("Instinct MI350X", r"MI350X\b", 8000, f"{_AMD}/mi350/mi350x.html",
            fp64=72.1, fp32=144.2, half=2309.6, fp8=4614, fp4=9227, int8=4614),
    _device("Instinct MI355X", r"MI355X\b", 8000, f"{_AMD}/mi350/mi355x.html",
            fp64=78.6, fp32=157.3, half=2516.6, fp8=5033.2, fp4=10066, int8=5033.2),
)
# fmt: on


def find_device(name: str | None, total_memory_bytes: int | None = None) -> DevicePeak | None:
    """Find the peak rates of a device by the name that the framework gives it.

    Returns:
        The row, or ``None`` for a device that is not in the table and for a slice of one (MIG).
    """
    if not name or re.search(r"\bMIG\b|Laptop|Max-Q", name):
        return None
    memory_gb = (total_memory_bytes or 0) / 1e9
    for device in DEVICES:
        if memory_gb >= device.min_memory_gb and re.search(device.pattern, name, re.IGNORECASE):
            return device
    return None


class DeviceLink(Struct, frozen=True):
    """The link of a device to those next to it.

    Attributes:
        bytes_per_s: Peak bandwidth of all its lanes in one direction. Vendors quote twice that, for both directions.
    """

    name: str
    bytes_per_s: float


_LINKS = (
    (r"P100-SXM", "NVLink", 80),
    (r"V100-SXM", "NVLink 2", 150),
    (r"A100-SXM", "NVLink 3", 300),
    (r"A800-SXM|H800$", "NVLink", 200),
    (r"H100 (80GB HBM3|SXM)|\bH20$|\bH200$|GH200", "NVLink 4", 450),
    (r"\bG?B[123]00\b", "NVLink 5", 900),
    (r"[PV]100S?-PCIE|\bT4\b", "PCIe 3 ×16", 16),
    (r"\bA10G?\b|\bL4(0S?)?\b|RTX 40[789]0|RTX 6000 Ada", "PCIe 4 ×16", 32),
    (r"RTX 50[789]0|RTX PRO 6000", "PCIe 5 ×16", 64),
)
"""GB/s in one direction by a pattern in the device's name, from the sources of `DEVICES`. Absent are PCIe cards
that can have a bridge of NVLink, and AMD's devices, with links to one other device each."""


def find_link(name: str | None) -> DeviceLink | None:
    """Find the link of a device inside of its machine, by the name that the framework gives it; None if unknown.

    Example:
        >>> find_link("NVIDIA H100 80GB HBM3"), find_link("NVIDIA H100 PCIe")
        (DeviceLink(name='NVLink 4', bytes_per_s=450000000000.0), None)
    """
    if not name or re.search(r"\bMIG\b|Laptop|Max-Q", name):
        return None
    found = next((row for row in _LINKS if re.search(row[0], name)), None)
    return None if found is None else DeviceLink(found[1], found[2] * 1e9)


def is_amd(name: str | None) -> bool:
    """Return whether a device is one of AMD's, by its name. Its ``gfx9`` reads as compute capability 9.0.

    Example:
        >>> is_amd("AMD Instinct MI300X"), is_amd("NVIDIA H200"), is_amd(None)
        (True, False, False)
    """
    return re.search(r"AMD|Radeon|Instinct", name or "") is not None


BEYOND_PEAKS = 1.1
"""Largest speed-up of products that move to another arithmetic, over the ratio of the device's peak rates. At 8192³, an
H100 SXM multiplies 52.1 TFLOP/s in FP32, 416.6 in TF32 (8.0 times) and 762.9 in FP16 (14.6 times), by a published
Nsight Systems profile. In BF16 it reaches up to 798 (15.3 times; PyTorch 2.11). Its peaks are 7.4 and 14.8 times apart,
because FP32 products reach a smaller part of theirs."""

LARGE_RATIO = 4.0
"""From this ratio of peak rates on, products gain at least `LEAST_SPEED_UP`. Below it they may gain nothing: the device
has no Tensor Cores for the faster arithmetic, or limits them in favor of graphics."""

LEAST_SPEED_UP = 2.0


def product_speed_up(device: DevicePeak, arithmetic: str, faster: str) -> tuple[float, float] | None:
    """Return the smallest and largest speed-up of matrix products that move to a faster arithmetic.

    Returns:
        The two factors, or `None` if the device lacks a rate for either.

    Example:
        >>> product_speed_up(find_device("NVIDIA A100-SXM4-40GB"), "fp32", "tf32")
        (2.0, 8.8)
        >>> product_speed_up(find_device("NVIDIA A10G"), "fp32", "tf32")
        (1.0, 1.1)
    """
    if arithmetic not in device.flops_per_s or faster not in device.flops_per_s:
        return None
    ratio = device.flops_per_s[faster] / device.flops_per_s[arithmetic]
    return LEAST_SPEED_UP if ratio >= LARGE_RATIO else 1.0, BEYOND_PEAKS * ratio
