"""Rules about several ranks."""
