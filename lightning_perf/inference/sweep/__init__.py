"""Compare untrained backbones by latency."""
