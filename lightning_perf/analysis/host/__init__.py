"""The host's activity: launches, waits, loading, its own computing."""
