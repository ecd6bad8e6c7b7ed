"""Comparing runs: records, statistics over repeated runs, fairness, studies, verdicts."""
