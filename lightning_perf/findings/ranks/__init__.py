"""Findings about several ranks."""
