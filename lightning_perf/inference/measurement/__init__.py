"""Measure the latency and accuracy of one variant."""
