"""Train a small language model on generated text, with `lightning_perf.PerfCallback` in the Trainer."""
