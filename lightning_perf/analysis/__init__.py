"""`Trace` ─► values: each module answers one question with one pure function and one small frozen value."""
