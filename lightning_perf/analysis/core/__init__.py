"""Shared by the analyses: intervals, arrays, averaged steps, caching."""
