"""Renderers of a `Tradeoff`: they show what it holds and compute nothing."""
