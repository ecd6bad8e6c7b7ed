"""Several ranks: collectives, communication, and which rank waits for which."""
