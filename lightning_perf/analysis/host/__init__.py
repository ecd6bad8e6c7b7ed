"""What the host did: launches, waits, loading, its own computing."""
