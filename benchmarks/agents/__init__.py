"""Findings and answers for agents, scored on cases with known answers."""
