"""Rules about the time of a whole fit, from its account."""
