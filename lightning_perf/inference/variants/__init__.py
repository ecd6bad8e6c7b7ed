"""Variants: a transform and a runtime, built and run in worker processes."""
