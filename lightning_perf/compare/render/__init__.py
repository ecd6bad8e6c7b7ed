"""Renderers of a `Comparison`: they show its content and compute nothing."""
