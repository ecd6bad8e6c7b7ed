"""Several ranks: collectives, communication, who waits for whom."""
