"""Read run records, their metrics and fingerprints, and check whether two arms may be compared."""
