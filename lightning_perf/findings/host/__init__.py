"""Rules about input, launches and waits."""
