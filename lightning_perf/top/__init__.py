"""``lightning-perf top``: the live view of a run, from the logs that it writes anyway."""
