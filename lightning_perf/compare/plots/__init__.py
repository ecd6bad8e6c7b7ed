"""Plots of a `Comparison`: they draw what it holds and compute nothing."""
