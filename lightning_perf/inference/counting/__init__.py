"""Count operations, and bound the latency by a device's peak rates."""
