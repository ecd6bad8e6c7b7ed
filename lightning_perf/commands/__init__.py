"""The commands of ``lightning-perf``, one per module: parse, call, show the document, return the exit code."""
