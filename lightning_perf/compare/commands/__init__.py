"""The commands ``lightning-perf compare`` and ``lightning-perf study``."""
