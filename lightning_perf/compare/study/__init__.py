"""Studies: their definition, how they run, how far they are, and the runs they leave."""
