"""Turn run records into a `Comparison`: results per metric, gates and the verdict in words."""
