"""Findings about input, launches and waits."""
