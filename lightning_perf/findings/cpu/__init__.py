"""Findings for training on a CPU."""
