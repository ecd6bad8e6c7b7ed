"""Measurements to repeat by hand; `results/` contains the figures, with hardware and versions."""
