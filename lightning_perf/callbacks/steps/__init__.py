"""Hooks of the Trainer, turned into whole optimizer steps and their phases, timed and logged."""
