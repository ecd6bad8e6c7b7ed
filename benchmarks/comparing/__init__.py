"""Comparisons, tuning and history on simulated runs with known answers."""
