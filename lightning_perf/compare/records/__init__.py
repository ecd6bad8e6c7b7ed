"""Run records as values to compare: their metrics, fingerprints and whether two arms may be compared."""
