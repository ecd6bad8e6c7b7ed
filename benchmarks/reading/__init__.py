"""Reading of traces, snapshots and documents: speed, memory and robustness."""
