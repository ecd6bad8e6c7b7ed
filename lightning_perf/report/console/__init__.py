"""The report on the console."""
