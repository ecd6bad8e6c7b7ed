"""The commands that read traces: ``analyze``, ``diff`` and ``view``."""
