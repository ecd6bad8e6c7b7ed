"""Transforms that change a model's weights or layers before a runtime executes it."""
