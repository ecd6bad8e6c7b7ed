"""Runtimes that execute a model."""
