"""Latency and accuracy of one variant."""
