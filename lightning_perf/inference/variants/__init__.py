"""Variants: chains of transforms and a runtime, built and run in worker processes."""
