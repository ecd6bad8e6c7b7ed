"""Renderers of a `Comparison`: they show what it holds and compute nothing."""
