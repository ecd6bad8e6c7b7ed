"""A trained model ─► variants ─► measurements ─► a table of accuracy against latency and size."""
