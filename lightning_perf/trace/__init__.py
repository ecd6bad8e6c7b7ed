"""Trace file ─► `Trace`: the reader, the columns, step windows and launch-to-device links."""
