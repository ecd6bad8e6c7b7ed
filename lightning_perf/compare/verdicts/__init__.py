"""From run records to a `Comparison`: results per metric, gates and the verdict in words."""
