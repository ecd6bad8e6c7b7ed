"""Values ─► `Finding`: one rule a file, each with evidence, an action and a predicted saving."""
