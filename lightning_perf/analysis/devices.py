"""What the recording tells of a device."""

from __future__ import annotations

from lightning_perf.trace.description import DeviceProperties
from lightning_perf.trace.trace import Trace

__all__ = ["device_properties"]


def device_properties(trace: Trace, ordinal: int) -> DeviceProperties:
    """The properties of one device, without any where the recording does not tell.

    Under HIP and with visible devices restricted, kernels can carry an ordinal that no described device has. When all
    described devices are of one kind, it is of that kind too.

    Args:
        trace: The recording.
        ordinal: The device's number in `Trace.device`.
    """
    devices = trace.metadata.devices
    for device in devices:
        if device.ordinal == ordinal:
            return device
    return devices[0] if len({device.name for device in devices}) == 1 else DeviceProperties(ordinal)
