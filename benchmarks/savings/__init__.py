"""Estimated savings against measured ones."""
