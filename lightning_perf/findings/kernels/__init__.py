"""Findings about arithmetic and layout on the device."""
