"""Plots of a `Comparison`: they draw its content and compute nothing."""
