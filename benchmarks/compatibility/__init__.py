"""Measure programs by others, and check that the measurement changes nothing and adds up."""
