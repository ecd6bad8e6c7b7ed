"""Rules for trainings on a CPU."""
