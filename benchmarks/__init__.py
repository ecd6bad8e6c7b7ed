"""Measurements that are repeated by hand; `results/` holds what they found, with hardware and versions."""
