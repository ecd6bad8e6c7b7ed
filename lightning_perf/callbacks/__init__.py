"""Callbacks to add to a Trainer."""
