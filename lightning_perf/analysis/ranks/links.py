"""The use of the link between the devices: bus bandwidth against the link's peak."""

from __future__ import annotations

from msgspec import Struct

from lightning_perf.analysis.ranks.communication import CollectiveRow
from lightning_perf.analysis.ranks.distributed import Distributed
from lightning_perf.machine.hardware import DeviceLink, find_link
from lightning_perf.trace.description import Metadata


class LinkUse(Struct, frozen=True):
    """How fast the collectives of known sizes move their bytes.

    Attributes:
        bus_bytes_per_s: Their bus bandwidth.
        at_least: Whether it can be higher, because not all ranks were read. It then follows from the shortest call of
            each size, which may include a wait for another rank.
        call_bus_bytes: Mean of the bytes that bus bandwidth counts for a call.
        link: Name of the link; None if it is not known.
        link_bytes_per_s: Its peak bandwidth in one direction.
        share: The bus bandwidth as a part of it.
        missing: Why the link is not known.
    """

    bus_bytes_per_s: float
    at_least: bool
    call_bus_bytes: float
    link: str | None = None
    link_bytes_per_s: float | None = None
    share: float | None = None
    missing: str | None = None


def link_use(
    collectives: tuple[CollectiveRow, ...], metadata: Metadata, compared: Distributed | None, given: float | None = None
) -> LinkUse | None:
    """Compare the bus bandwidth of one rank's collectives with the peak of its link; None for unknown sizes.

    Args:
        given: Peak of the link in one direction, in bytes per second, from the user.
    """
    told = [row for row in collectives if row.best_bus_bytes_per_s and row.bus_bytes_per_s]
    bus_bytes = sum((row.bus_bytes_per_s or 0.0) * row.total_ns / 1e9 for row in told)
    if not bus_bytes:
        return None
    whole = compared is not None and not compared.missing_ranks and compared.bus_bytes_per_s is not None
    rate = compared.bus_bytes_per_s if compared is not None and whole else None
    if rate is None:
        rate = bus_bytes / sum(row.calls * row.min_ns / 1e9 for row in told)
    calls = bus_bytes / sum(row.calls for row in told)
    link = DeviceLink("the given link", given) if given else _link(metadata, compared)
    if isinstance(link, str):
        return LinkUse(rate, not whole, calls, missing=link)
    return LinkUse(rate, not whole, calls, link.name, link.bytes_per_s, rate / link.bytes_per_s)


def _link(metadata: Metadata, compared: Distributed | None) -> DeviceLink | str:
    """Return the link inside of the machine, or why it is not known."""
    hosts = {share.hostname for share in compared.ranks} if compared and not compared.missing_ranks else {None}
    nodes = metadata.settings.nodes if metadata.settings is not None else None
    if nodes != 1 and (nodes is not None or len(hosts) > 1 or None in hosts):
        # A process may see only its own device, so fewer devices than ranks do not show several machines.
        return f"ranks {'are' if (nodes or len(hosts)) > 1 else 'may be'} on several machines"
    names = {device.name for device in metadata.devices if device.name}
    name = next(iter(names)) if len(names) == 1 else None
    return find_link(name) or f"no link of {name or 'these devices'} is known"
