"""Mixed precision: its predicted gain, the cost of casts, loss scale, underflow, drift."""
