"""Studies: their definition, their execution, their progress and their results."""
