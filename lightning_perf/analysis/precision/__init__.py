"""Mixed precision: what it would gain, what casts cost, loss scale, underflow, drift."""
