"""Backbones without training, compared by latency."""
