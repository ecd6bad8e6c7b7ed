"""Helpers that all analyses share: intervals, arrays, averaged steps, caching."""
