"""What runs the blocks of a study: this machine, a Ray cluster, or SLURM."""
