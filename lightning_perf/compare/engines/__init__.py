"""Engines, which run the blocks of a study: on this machine, on a Ray cluster, or through SLURM."""
