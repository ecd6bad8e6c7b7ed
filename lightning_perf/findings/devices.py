"""What rules need to know of the device that was used."""

from __future__ import annotations

import re

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.trace.description import DeviceProperties

__all__ = ["device_in_use", "has_bf16"]


def device_in_use(analysis: RankAnalysis) -> DeviceProperties | None:
    """The device that the recording used, or the first that it lists; ``None`` when it lists none."""
    devices = analysis.metadata.devices
    used = {device.ordinal for device in analysis.efficiency.devices} if analysis.efficiency is not None else set()
    return next((device for device in devices if device.ordinal in used), devices[0] if devices else None)


def has_bf16(device: DeviceProperties | None) -> bool:
    """Whether a device multiplies BF16 natively: NVIDIA from compute capability 8.0, AMD's Instinct from MI100 on."""
    if device is None:
        return False
    if re.search(r"\bMI\d{3}", device.name or ""):
        return True
    is_amd = re.search(r"AMD|Radeon|Instinct", device.name or "") is not None
    return not is_amd and device.compute_major is not None and device.compute_major >= 8
