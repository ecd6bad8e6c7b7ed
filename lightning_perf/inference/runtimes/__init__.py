"""Runtimes that execute a model, one per module."""
